"""What is kept of answers in the making, and that nothing is sent before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

import pytest
from tests.support.builders import make_job

from laneway.schemas.events import Event, Tokens
from laneway.schemas.ids import JobId
from laneway.schemas.keys import lanes
from laneway.schemas.record import Kept
from laneway.worker import keeping
from laneway.worker.errors import QueueUnavailable
from laneway.worker.keeping import AnswerKeeper
from laneway.worker.link import Link
from laneway.worker.ports import Addition, Claim, JobQueue
from laneway.worker.publisher import Publisher
from laneway.worker.telemetry import Telemetry


class Server:
    """Keeps and publishes, and remembers in which order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.lengths: dict[JobId, int] = {}
        self.fenced: set[JobId] = set()
        self.away = False

    async def keep(self, additions: Sequence[Addition]) -> list[int]:
        if self.away:
            raise QueueUnavailable("away")
        self.calls.append(f"keep {sum(len(addition.events) for addition in additions)}")
        return [self._keep(addition) for addition in additions]

    def _keep(self, addition: Addition) -> int:
        job_id = addition.claim.job.id
        if job_id in self.fenced:
            return -1
        if self.lengths.get(job_id, 0) >= addition.first:
            self.lengths[job_id] = addition.first + len(addition.events)
        return self.lengths.get(job_id, 0)

    async def publish(self, events: Mapping[str, Sequence[Event]]) -> set[str]:
        self.calls.append(f"publish {sum(map(len, events.values()))}")
        return set()


class Bench:
    def __init__(self) -> None:
        self.server = Server()
        self.lost: list[JobId] = []
        queue, link = cast(JobQueue, self.server), Link(Telemetry())
        self.keeper = AnswerKeeper(queue, link, lambda job_id, why: self.lost.append(job_id))
        self.publisher = Publisher(queue, link, save=self.keeper.save)

    def say(self, claim: Claim, seq: int, *, kept: bool = True) -> None:
        if kept:
            self.keeper.add(claim, seq, Kept(attempt=1, text="t"))
        self.publisher.post(["out"], Tokens(job_id=claim.job.id, attempt=1, seq=seq, text="t"))

    async def flush(self) -> None:
        task = asyncio.create_task(self.publisher.run())
        await self.publisher.flush(2)
        task.cancel()
        await asyncio.wait([task])


def claim() -> Claim:
    return Claim(job=make_job(), lane=lanes(0)[0], entry="1-0", attempt=1)


async def test_tokens_are_kept_before_they_are_sent() -> None:
    """One call for all jobs of a flush, and only then the events."""
    bench = Bench()
    for one in (claim(), claim()):
        bench.say(one, 0)
        bench.say(one, 1)
    await bench.flush()
    assert bench.server.calls == ["keep 4", "publish 4"]


async def test_jobs_that_cannot_go_on_cost_no_call() -> None:
    """Nothing to keep: one flush is one call, as ever."""
    bench = Bench()
    bench.say(claim(), 0, kept=False)
    await bench.flush()
    assert bench.server.calls == ["publish 1"]


async def test_nothing_is_sent_of_a_job_that_turns_out_to_be_somebody_elses() -> None:
    """The server says so before the events are out: they are dropped, and the job is."""
    bench, mine, fenced = Bench(), claim(), claim()
    bench.server.fenced.add(fenced.job.id)
    bench.say(mine, 0)
    bench.say(fenced, 0)
    await bench.flush()
    assert bench.server.calls == ["keep 2", "publish 1"]
    assert bench.lost == [fenced.job.id]


async def test_what_could_not_be_kept_is_kept_later() -> None:
    """After an outage everything goes at once; an addition whose reply was lost may be repeated."""
    bench, one = Bench(), claim()
    bench.server.away = True
    bench.keeper.add(one, 0, Kept(attempt=1))
    with pytest.raises(QueueUnavailable):
        await bench.keeper.save()
    bench.server.away = False
    bench.keeper.add(one, 1, Kept(attempt=1))
    assert await bench.keeper.save() == set()
    assert bench.server.lengths == {one.job.id: 2}
    await bench.keeper.save()
    assert bench.server.calls == ["keep 2"]


async def test_where_earlier_events_have_vanished_nothing_more_is_kept() -> None:
    """A beginning with a hole helps nobody: the job would start again."""
    bench, one = Bench(), claim()
    bench.keeper.add(one, 5, Kept(attempt=1))
    await bench.keeper.save()
    bench.keeper.add(one, 6, Kept(attempt=1))
    await bench.keeper.save()
    assert bench.server.calls == ["keep 1"]
    assert not bench.lost


async def test_what_is_kept_of_one_job_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a very long answer would be generated again."""
    monkeypatch.setattr(keeping, "MOST_EVENTS", 3)
    bench, one = Bench(), claim()
    for seq in range(5):
        bench.keeper.add(one, seq, Kept(attempt=1))
    await bench.keeper.save()
    assert bench.server.lengths == {one.job.id: 3}
