"""What a worker keeps, and what it lets go by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from laneway.schemas.ids import JobId, new_job_id
from laneway.schemas.job import Job, Prompt
from laneway.schemas.keys import lanes
from laneway.worker.errors import EngineDied, QueueUnavailable
from laneway.worker.lease import CHUNK, LeaseKeeper
from laneway.worker.link import Link
from laneway.worker.ports import Claim, JobQueue
from laneway.worker.telemetry import Telemetry

LEASE_S = 15.0
HANG_S = 30.0


class World:
    """A clock, an engine's step counter, and a server that may be away or give jobs to others."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.steps = 0
        self.away = False
        self.taken: set[JobId] = set()
        self.calls: list[int] = []
        self.renewed: list[JobId] = []
        self.lost: dict[JobId, str] = {}
        self.inside: dict[JobId, float] = {}
        self.keeper = LeaseKeeper(
            cast(JobQueue, self),
            Link(Telemetry()),
            lease_s=LEASE_S,
            hang_s=HANG_S,
            steps=lambda: self.steps,
            lost=self.lost.__setitem__,
            clock=lambda: self.now,
        )
        self.keeper.watch()

    async def renew(self, claims: Sequence[Claim]) -> list[JobId]:
        if self.away:
            raise QueueUnavailable("away")
        self.calls.append(len(claims))
        self.renewed += [claim.job.id for claim in claims]
        return [claim.job.id for claim in claims if claim.job.id in self.taken]

    def take(self, inside: bool = False) -> JobId:
        job = Job(id=new_job_id("m", 0), model="m", payload=Prompt(text="x"))
        claim = Claim(job=job, lane=lanes(0)[0], entry="1-0", attempt=1)
        if inside:
            self.inside[job.id] = self.now
        self.keeper.add(claim, lambda: self.inside.get(job.id), self.now)
        return job.id

    def pass_time(self, seconds: float, *, stepping: bool = True) -> None:
        """Time goes by with the loop alive: it looks every second."""
        for _ in range(round(seconds)):
            self.now += 1
            self.steps += stepping
            self.keeper.watch()

    def freeze(self, seconds: float) -> None:
        """The whole process stands still, as after SIGSTOP."""
        self.now += seconds


@pytest.fixture
def world() -> World:
    return World()


async def test_a_job_is_kept_while_its_engine_makes_steps(world: World) -> None:
    """Renewed every third of the lease, a job stays in hand for ever."""
    job = world.take(inside=True)
    for _ in range(20):
        world.pass_time(LEASE_S / 3)
        await world.keeper.renew()
    assert not world.lost
    assert world.renewed == [job] * 20


async def test_a_job_of_which_nothing_is_in_the_engine_is_kept_without_steps(world: World) -> None:
    """A job that waits, for its adapter say, is not held against the engine."""
    world.take()
    for _ in range(20):
        world.pass_time(LEASE_S / 3, stepping=False)
        await world.keeper.renew()
    assert not world.lost


async def test_a_hung_engine_loses_its_jobs_and_then_the_worker(world: World) -> None:
    """No step: no renewal, then the worker drops the job, claims nothing, and at last gives the engine up."""
    job = world.take(inside=True)
    while not world.lost:
        world.pass_time(1, stepping=False)
        await world.keeper.renew()
    assert world.keeper.stuck
    assert world.now - 1000 < 2 * LEASE_S
    with pytest.raises(EngineDied, match="no step for 30 s"):
        world.pass_time(HANG_S, stepping=False)
    assert world.lost == {job: "not_renewed"}
    assert HANG_S <= world.now - 1000 <= HANG_S + 2


async def test_a_step_may_take_most_of_a_lease(world: World) -> None:
    """A slow engine keeps its jobs: steps of 0.9 leases, one after the other, lose none."""
    world.take(inside=True)
    for _ in range(5):
        for _ in range(3):
            world.pass_time(0.3 * LEASE_S, stepping=False)
            await world.keeper.renew()
        world.pass_time(1)
    assert not world.lost


async def test_an_engine_that_moves_again_is_trusted_again(world: World) -> None:
    """A stand-still of nearly two leases costs the jobs, not the worker."""
    world.take(inside=True)
    while not world.keeper.stuck:
        world.pass_time(1, stepping=False)
        await world.keeper.renew()
    assert world.lost
    world.pass_time(1)
    assert not world.keeper.stuck
    world.pass_time(60)


async def test_an_idle_engine_is_not_a_hung_one(world: World) -> None:
    """Without jobs there are no steps, however long."""
    world.pass_time(10 * HANG_S, stepping=False)
    world.take(inside=True)
    world.pass_time(LEASE_S / 3, stepping=False)
    assert not world.lost


@pytest.mark.case("C35")
async def test_jobs_are_dropped_before_the_lease_lapses_when_the_server_is_away(world: World) -> None:
    """At 0.7 of the lease without renewal the worker lets go, by its own clock."""
    job = world.take(inside=True)
    world.away = True
    world.pass_time(0.7 * LEASE_S - 1)
    with pytest.raises(QueueUnavailable):
        await world.keeper.renew()
    assert not world.lost
    world.pass_time(2)
    assert world.lost == {job: "not_renewed"}


@pytest.mark.case("A6")
async def test_a_worker_that_was_frozen_drops_what_it_held(world: World) -> None:
    """After SIGSTOP and SIGCONT the jobs may be somebody else's; the engine is not blamed."""
    job = world.take(inside=True)
    world.freeze(100)
    assert world.keeper.is_stale(job)
    assert not world.keeper.end(job)
    world.keeper.watch()
    assert world.lost == {job: "not_renewed"}
    assert not world.keeper.stuck


async def test_an_outcome_reached_in_time_is_kept_through_an_outage(world: World) -> None:
    """What is done is offered until the server is back; whether it still counts, the server decides."""
    job = world.take(inside=True)
    assert world.keeper.end(job)
    world.freeze(100)
    world.keeper.watch()
    assert not world.lost
    assert not world.keeper.is_stale(job)


async def test_jobs_taken_by_others_are_lost_at_once(world: World) -> None:
    """What a renewal reports as taken is dropped, and nothing else."""
    jobs = [world.take(inside=True) for _ in range(3)]
    world.taken = {jobs[1]}
    world.pass_time(LEASE_S / 3)
    await world.keeper.renew()
    assert world.lost == {jobs[1]: "taken"}


async def test_leases_are_renewed_in_chunks(world: World) -> None:
    """One call never holds the server up for long."""
    for _ in range(2 * CHUNK + 1):
        world.take(inside=True)
    await world.keeper.renew()
    assert world.calls == [CHUNK, CHUNK, 1]
