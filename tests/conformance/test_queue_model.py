"""The life of jobs as a state machine: whatever workers, producers and servers do, no job is lost or ends twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import Struct
from tests.conftest import NAMES, Servers
from tests.support.builders import completed, make_job
from tests.support.installations import Installation, MemoryInstallation, RedisInstallation, take

from laneway.schemas.ids import JobId
from laneway.schemas.outcome import Cancelled, JobError
from laneway.schemas.record import Kept
from laneway.worker.ports import Addition, Claim, JobQueue, Settlement

WORKERS = ("a", "b", "c")
ERROR = JobError(code="engine_died", message="the engine died")
workers = st.sampled_from(WORKERS)
picks = st.integers(0, 1000)


class Known(Struct):
    """What must hold of a job."""

    attempt: int = 0
    failures: int = 0
    text: str | None = None
    """Text of its outcome; empty for a cancel."""
    ended_by: int | None = None
    """Attempt that stored the outcome; 0 for a cancel."""
    kept: tuple[Kept, ...] = ()
    """Token events for the next attempt."""
    given_up: int = 0
    """Attempt that last offered it again."""


class Life(RuleBasedStateMachine):
    """Three workers and any number of producers on one queue, with everything going wrong."""

    def __init__(self, install: Callable[[], Installation]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.both_ends = install()
        self.queues: dict[str, JobQueue] = {}
        self.jobs: dict[JobId, Known] = {}
        self.claims: list[tuple[str, Claim]] = []
        """Every claim ever made, with its worker: those that know no better still act on old ones."""

    def do(self, work: Any) -> Any:
        return self.runner.run(work)

    @initialize()
    def open(self) -> None:
        for worker in WORKERS:
            self.queues[worker] = self.do(self.both_ends.queue(worker, lease_s=60.0))

    def teardown(self) -> None:
        try:
            if self.queues:
                self.everything_ends()
        finally:
            self.do(self.both_ends.flush())
            self.do(self.both_ends.close())
            self.runner.close()

    # --- what may happen --------------------------------------------------------

    @rule(slo=st.sampled_from(["latency", "throughput"]), count=st.integers(1, 3), large=st.booleans())
    def submit(self, slo: str, count: int, large: bool) -> None:
        for _ in range(count):
            job = make_job(slo=slo, prompt="x" * (70_000 if large else 5))
            self.do(self.both_ends.submit(job))
            self.jobs[job.id] = Known()

    @rule(worker=workers, total=st.integers(1, 4))
    def claim(self, worker: str, total: int) -> None:
        self.note(worker, self.do(take(self.queues[worker], total)))

    @rule(worker=workers)
    def isolate(self, worker: str) -> None:
        self.note(worker, self.do(self.queues[worker].isolate(0, empty=True)) or [])

    def note(self, worker: str, claims: Sequence[Any]) -> None:
        for claim in claims:
            known = self.jobs[claim.job.id]
            assert known.text is None, "a job that has ended was claimed"
            assert claim.attempt == known.attempt + 1
            assert claim.failures == known.failures
            assert claim.kept == known.kept
            known.attempt = claim.attempt
            self.claims.append((worker, claim))

    @precondition(lambda self: self.claims)
    @rule(pick=picks, count=st.integers(1, 3), repeated=st.integers(0, 2))
    def keep(self, pick: int, count: int, repeated: int) -> None:
        worker, claim = self.claims[pick % len(self.claims)]
        known = self.jobs.get(claim.job.id, Known())
        own = known.kept if known.attempt == claim.attempt else claim.kept
        first = max(len(claim.kept), len(own) - repeated)
        more = tuple(Kept(attempt=claim.attempt, text=str(n)) for n in range(first, len(own) + count))
        (length,) = self.do(self.queues[worker].keep([Addition(claim, first, more)]))
        if length == first + len(more) and known.text is None:
            assert claim.attempt == known.attempt, "a former owner added to an answer"
            known.kept = own[:first] + more
        elif length >= 0 and known.text is None:
            assert claim.job.id not in self.jobs, "events vanished"

    @precondition(lambda self: self.claims)
    @rule(pick=picks)
    def settle(self, pick: int) -> None:
        worker, claim = self.claims[pick % len(self.claims)]
        text = f"by {worker}, attempt {claim.attempt}"
        told = self.do(self.queues[worker].settle(claim, completed(claim.job.id, text, claim.attempt)))
        known = self.jobs.get(claim.job.id)
        if known is None:  # flushed since
            return
        if known.text is not None:
            repeated = known.ended_by == claim.attempt
            assert told is (Settlement.REPEATED if repeated else Settlement.FENCED)
        elif claim.attempt != known.attempt:
            assert told is Settlement.FENCED
        else:
            assert told is Settlement.STORED
            known.text, known.ended_by = text, claim.attempt

    @precondition(lambda self: self.claims)
    @rule(pick=picks)
    def retry(self, pick: int) -> None:
        worker, claim = self.claims[pick % len(self.claims)]
        if self.give_up(claim, self.do(self.queues[worker].retry(claim, ERROR, 0))):
            self.jobs[claim.job.id].failures += 1

    @precondition(lambda self: self.claims)
    @rule(pick=picks)
    def lose(self, pick: int) -> None:
        worker, claim = self.claims[pick % len(self.claims)]
        self.give_up(claim, self.do(self.queues[worker].lose(claim, ERROR)))

    def give_up(self, claim: Claim, kept: bool) -> bool:
        """Whether this call, and no earlier one of the same attempt, offered the job again."""
        known = self.jobs.get(claim.job.id)
        if known is None or not kept or claim.attempt == known.given_up:
            return False
        assert claim.attempt == known.attempt, "a former owner gave the job up"
        known.given_up = claim.attempt
        return True

    @precondition(lambda self: self.claims)
    @rule(pick=picks)
    def hand_back(self, pick: int) -> None:
        worker, claim = self.claims[pick % len(self.claims)]
        self.do(self.queues[worker].hand_back([claim]))

    @rule(worker=workers)
    def renew(self, worker: str) -> None:
        own = [claim for holder, claim in self.claims if holder == worker and claim.job.id in self.jobs]
        lost = self.do(self.queues[worker].renew(own))
        ended = {claim.job.id for claim in own if self.jobs[claim.job.id].text is not None}
        later = {claim.job.id for claim in own if self.jobs[claim.job.id].attempt > claim.attempt}
        assert set(lost) >= ended | later

    @precondition(lambda self: self.claims)
    @rule(worker=workers, by=workers, total=st.integers(0, 4))
    def fall_silent(self, worker: str, by: str, total: int) -> None:
        self.do(self.both_ends.lapse(worker))
        self.do(self.queues[by].reclaim())
        if total:
            self.claim(by, total)

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        job_id = list(self.jobs)[pick % len(self.jobs)]
        known = self.jobs[job_id]
        if self.do(self.both_ends.cancel(job_id)) == "cancelled" and known.text is None:
            known.text, known.ended_by = "", 0

    @precondition(lambda self: len(self.claims) >= 4)
    @rule()
    def lose_the_groups(self) -> None:
        self.do(self.both_ends.forget_readers())

    @precondition(lambda self: len(self.jobs) >= 8)
    @rule()
    def lose_everything(self) -> None:
        self.do(self.both_ends.flush())
        self.jobs.clear()

    # --- what must hold ---------------------------------------------------------

    @invariant()
    def every_outcome_stays(self) -> None:
        for job_id, known in self.jobs.items():
            result = self.do(self.both_ends.result(job_id))
            assert (result is None) == (known.text is None)
            if result is not None:
                assert result.text == known.text
                assert isinstance(result.outcome, Cancelled) == (known.ended_by == 0)

    @invariant()
    def nothing_is_left_of_ended_jobs(self) -> None:
        if self.queues:
            depths = self.do(self.queues["a"].depths())
            left = sum(depth.waiting + depth.pending for depth in depths)
            assert left == sum(known.text is None for known in self.jobs.values())

    def everything_ends(self) -> None:
        """Whatever happened, one healthy worker can bring every job that was accepted to an outcome."""
        queue = self.queues["a"]
        for worker in WORKERS:
            self.do(self.both_ends.lapse(worker))
        for _ in range(4 + len(self.jobs)):
            self.do(queue.reclaim())
            for claim in self.do(take(queue, 1000)) + (self.do(queue.isolate(0, empty=True)) or []):
                self.do(queue.settle(claim, completed(claim.job.id, attempt=claim.attempt)))
        for job_id in self.jobs:
            assert self.do(self.both_ends.result(job_id)) is not None, "a job was lost"


def live(install: Callable[[], Installation], examples: int) -> None:
    """Run that many lives of up to 40 steps."""
    machine: Any = partial(Life, install)  # hypothesis calls it as it would the class
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_jobs_in_memory() -> None:
    """The queue in memory keeps the rules."""
    live(MemoryInstallation, examples=200)


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_jobs_on_a_server(name: str, servers: Servers) -> None:
    """So does the one on Redis."""
    url = servers.get(name).url
    live(lambda: RedisInstallation(url, f"m-{uuid.uuid4().hex[:12]}"), examples=15)
