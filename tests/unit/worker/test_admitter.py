"""The gate before the engine: who goes in next, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from laneway.schemas.cards import Floor
from laneway.schemas.ids import AdapterId, new_job_id
from laneway.schemas.job import Bucket, Job, Prompt, SloClass
from laneway.schemas.keys import Lane
from laneway.schemas.sampling import Sampling
from laneway.worker.admitter import Admitter
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.errors import DeadlineOutOfReach
from laneway.worker.observer import Observer
from laneway.worker.policy import planner
from laneway.worker.policy.planner import Reason
from laneway.worker.ports import Claim
from laneway.worker.settings import WorkerSettings

Enter = Callable[..., asyncio.Task[None]]


class Gate:
    """An admitter on its own clock, and jobs that stay in the engine until they are told to leave."""

    def __init__(self, seats: int, *, infeasible: Any = "relegate", **engine: Any) -> None:
        self.now = 1000.0
        self.observer = Observer()
        self.engine = FakeEngine(FakeEngineSettings(seats=seats, **engine))
        self.admitter = Admitter(
            self.engine,
            WorkerSettings(engine="fake", infeasible=infeasible),
            self.observer,
            now_ms=lambda: round(self.now * 1000),
            broke=lambda error: self.defects.append(error),
            clock=lambda: self.now,
        )
        self.defects: list[Exception] = []
        self.order: list[str] = []
        self.inside: dict[str, asyncio.Event] = {}
        self.most_adapters = 0
        self.tasks: list[asyncio.Task[None]] = []

    def send(
        self, name: str, *, slo: str = "throughput", due: float | None = None, **fields: Any
    ) -> asyncio.Task[None]:
        """A job at the gate."""
        job = Job(
            id=new_job_id("m", 0),
            model="m",
            payload=Prompt(text="one two three"),
            sampling=Sampling(max_tokens=4),
            slo=SloClass(slo),
            **fields,
        )
        lane = Lane(0, job.slo, Bucket.SHORT)
        submitted = round(self.now * 1000)
        claim = Claim(job=job, lane=lane, entry="1-0", attempt=1, submitted_ms=submitted, deadline=due)
        task = asyncio.create_task(self._go(name, claim))
        self.tasks.append(task)
        return task

    async def _go(self, name: str, claim: Claim) -> None:
        prepared = await self.engine.prepare(claim.job)
        async with self.admitter.turn(claim, prepared) as turn:
            self.order.append(name)
            leave = self.inside[name] = asyncio.Event()
            slots = self.admitter.state.slots
            self.most_adapters = max(self.most_adapters, len(slots.in_flight))
            turn.first_token()
            await leave.wait()
            turn.tokens = 4

    async def settle(self) -> None:
        """Let everything happen that can happen now."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def leave(self, name: str) -> None:
        """One job ends; others may go in."""
        self.inside.pop(name).set()
        await self.settle()

    def assert_empty(self) -> None:
        """Nothing is in the books any more."""
        room, slots = self.admitter.state.headroom, self.admitter.state.slots
        assert (room.holdings, room.latency_seats, room.throughput_seats, room.backlog) == ({}, 0, 0, 0)
        assert not slots.in_flight


@pytest.fixture
async def gate() -> AsyncIterator[Callable[..., Gate]]:
    made: list[Gate] = []

    def make(seats: int, **engine: Any) -> Gate:
        made.append(Gate(seats, **engine))
        return made[-1]

    yield make
    for each in made:
        each.admitter.close()
        for task in each.tasks:
            task.cancel()
        await asyncio.gather(*each.tasks, return_exceptions=True)


async def test_a_latency_job_goes_in_while_a_flood_of_batch_work_waits(gate: Callable[..., Gate]) -> None:
    """A seat is kept for it, whatever was there before; and the lanes say why their first job waits."""
    it = gate(4)
    for n in range(10):
        it.send(f"batch {n}")
    await it.settle()
    assert len(it.inside) == 3
    assert it.admitter.waits == {(SloClass.THROUGHPUT, Bucket.SHORT): Reason.KEPT}
    it.send("chat", slo="latency")
    await it.settle()
    assert it.order[-1] == "chat"


async def test_the_earliest_deadline_goes_in_first(gate: Callable[..., Gate]) -> None:
    """Whatever came first; work without a deadline stands as though due in five minutes, so that it is never last for ever."""
    it = gate(1)
    it.send("first")
    await it.settle()
    for name, due in (("later", 9000.0), ("free", None), ("late", 1200.0), ("soon", 1100.0)):
        it.send(name, due=due)
    for name in ("first", "soon", "late", "free"):
        await it.settle()
        await it.leave(name)
    assert it.order == ["first", "soon", "late", "free", "later"]


async def test_a_latency_job_that_cannot_end_in_time_goes_in_last(gate: Callable[..., Gate]) -> None:
    """Its deadline is nearer than an idle engine's two seconds: throughput work that can be in time comes first."""
    it = gate(1)
    it.observer.floor = Floor(token_s=2.0)
    it.send("first")
    await it.settle()
    it.send("hopeless", slo="latency", due=1001.0)
    it.send("batch")
    for name in ("first", "batch"):
        await it.settle()
        await it.leave(name)
    assert it.order == ["first", "batch", "hopeless"]


async def test_a_job_that_cannot_end_in_time_is_turned_away_where_that_is_wanted(
    gate: Callable[..., Gate],
) -> None:
    """At once, or as soon as it has waited too long; whoever can still make it stays."""
    it = gate(1, infeasible="expire")
    it.observer.floor = Floor(token_s=2.0)
    it.send("first")
    await it.settle()
    hopeless, waiting = it.send("hopeless", due=1001.0), it.send("waiting", due=1003.0)
    it.send("patient", due=1100.0)
    await it.settle()
    assert isinstance(hopeless.exception(), DeadlineOutOfReach)
    assert not waiting.done()
    it.now += 1.5
    it.send("another")  # something happens
    await it.settle()
    assert isinstance(waiting.exception(), DeadlineOutOfReach)
    await it.leave("first")
    assert it.order == ["first", "patient"]
    await it.leave("patient")
    await it.leave("another")
    it.assert_empty()


async def test_tenants_share_what_the_gate_shows(gate: Callable[..., Gate]) -> None:
    """One that sends four times as much, and sends first, gets no more seats than another that waits as well."""
    it = gate(2)
    for n in range(40):
        it.send(f"big {n}", tenant="big")
    for n in range(10):
        it.send(f"small {n}", tenant="small")
    await it.settle()
    while len(it.order) < 20:
        await it.leave(next(iter(it.inside)))
    small = sum(name.startswith("small") for name in it.order)
    assert abs(small - 10) <= 1


async def test_a_busy_adapter_gives_its_slot_to_one_that_has_waited(gate: Callable[..., Gate]) -> None:
    """Two seconds are enough; the adapters in the engine never exceed its slots."""
    it = gate(8, max_loras=1)
    for n in range(4):
        it.send(f"hot {n}", lora=AdapterId("hot"))
    await it.settle()
    it.send("cold", lora=AdapterId("cold"))
    await it.settle()
    assert it.admitter.waits == {(SloClass.THROUGHPUT, Bucket.SHORT): Reason.ADAPTER}
    it.now += 2.5
    it.send("hot again", lora=AdapterId("hot"))
    await it.settle()
    assert "hot again" not in it.order
    for n in range(4):
        await it.leave(f"hot {n}")
    assert it.order[-1] == "cold"
    assert it.most_adapters == 1


async def test_a_defect_of_the_plan_is_told(
    gate: Callable[..., Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the worker would look well, and let nothing in for ever."""
    it = gate(2)
    monkeypatch.setattr(planner, "plan", lambda *_, **__: 1 / 0)
    it.send("one")
    await it.settle()
    assert [type(error) for error in it.defects] == [ZeroDivisionError]


async def test_who_is_told_to_leave_before_it_has_begun_stays(gate: Callable[..., Gate]) -> None:
    """It may be loading its adapter: nothing breaks, and plans go on."""
    it = gate(2)
    it.send("one")
    await it.settle()
    (job_id,) = it.admitter.state.headroom.holdings
    it.admitter._preempt(job_id)
    await it.leave("one")
    it.send("two")
    await it.settle()
    assert it.order == ["one", "two"]


async def test_who_gives_up_at_the_gate_leaves_nothing_behind(gate: Callable[..., Gate]) -> None:
    """Cancelled while it waits, or at the very moment it is let in: its seat and its slot are free again."""
    it = gate(2)
    it.send("one")
    await it.settle()
    waiting = it.send("two")
    await it.settle()
    waiting.cancel()
    at_the_door = it.send("three", slo="latency")
    for _ in range(12):
        await asyncio.sleep(0)
        if it.admitter.state.headroom.latency_seats:
            break  # let in, and not told yet
    at_the_door.cancel()
    await it.settle()
    await it.leave("one")
    it.assert_empty()


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_comes_no_seat_idles_and_all_get_in(gate: Callable[..., Gate], seed: int) -> None:
    """Random jobs of both classes, three tenants and no adapter: every one goes in; a free seat that is not kept means
    that nobody waits."""
    chance = random.Random(seed)
    it = gate(6)
    for n in range(60):
        slo = chance.choice(["latency", "throughput"])
        due = it.now + chance.uniform(5, 500) if slo == "throughput" and chance.random() < 0.5 else None
        it.send(f"job {n}", slo=slo, tenant=chance.choice("abc"), due=due)
        if chance.random() < 0.5:
            await it.settle()
            kept = 3  # at most half of the seats
            waiting = sum(not task.done() for task in it.tasks) - len(it.inside)
            assert not waiting or len(it.inside) >= 6 - kept
        if it.inside and chance.random() < 0.4:
            await it.leave(chance.choice(list(it.inside)))
        it.now += chance.uniform(0, 2)
    for _ in range(200):
        await it.settle()
        if not it.inside:
            break
        it.now += 1
        await it.leave(next(iter(it.inside)))
    assert len(it.order) == 60
    it.assert_empty()
