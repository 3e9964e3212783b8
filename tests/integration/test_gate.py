"""Jobs that a worker holds but has not let into its engine: few, kept, within reach, and given back unharmed."""

from __future__ import annotations

import time

import pytest
from tests.support.builders import make_job
from tests.support.installations import Installation
from tests.support.serving import LONG, STEP_S, Running, result_of, serving
from tests.support.wait import wait_until

from laneway.schemas.events import Ended, Started, Tokens
from laneway.schemas.outcome import Cancelled, Completed, Expired
from laneway.schemas.state import JobState
from laneway.worker.engine.fake_engine import FakeEngineSettings
from laneway.worker.policy.admission import window_of

pytestmark = pytest.mark.unfinished

TWO_SEATS = FakeEngineSettings(seats=2, base_s=STEP_S)


async def _fill(ends: Installation, worker: Running) -> None:
    """The seat that throughput jobs may have is taken for long."""
    await ends.submit(make_job(slo="throughput", sampling=LONG))
    await worker.says("job.started")


async def test_no_more_is_held_than_the_seats_and_a_window(ends: Installation) -> None:
    """Whatever waits in the lanes stays there, for other workers and for better choices."""
    async with serving(ends, TWO_SEATS, drain_s=0.0) as worker:
        await _fill(ends, worker)
        await ends.submit(*(make_job(slo="throughput", sampling=LONG) for _ in range(20)))
        most = 1 + window_of(2, 0)
        await worker.says("job.claimed", most)
        await worker.service.intake.claim()
        assert len(worker.service.hands) == most


async def test_a_cancel_and_a_deadline_reach_a_job_at_the_gate(ends: Installation) -> None:
    """Within a second, as they do in the engine."""
    cancelled = make_job(slo="throughput")
    late = make_job(slo="throughput", deadline_ms=300)
    async with serving(ends, TWO_SEATS) as worker:
        await _fill(ends, worker)
        await ends.submit(cancelled, late)
        await worker.says("job.claimed", 3)
        asked = time.monotonic()
        await ends.cancel(cancelled.id)
        assert isinstance((await result_of(ends, cancelled)).outcome, Cancelled)
        assert time.monotonic() - asked < 1
        result = await result_of(ends, late)
        assert isinstance(result.outcome, Expired)
        assert 300 <= result.timeline.ended_ms - result.timeline.submitted_ms < 1300
        assert len(worker.told("job.started")) == 1


async def test_a_job_that_cannot_end_in_time_is_expired_unserved(ends: Installation) -> None:
    """Where the worker is set to: at once, by what its warm-up measured, and not only when the deadline has passed."""
    needs = {"min_tokens": 3000, "max_tokens": 3000}
    hopeless = make_job(deadline_ms=3000, sampling=needs)
    patient = make_job(deadline_ms=60_000, sampling={"max_tokens": 2})
    async with serving(ends, TWO_SEATS, infeasible="expire") as worker:
        await ends.submit(hopeless, patient)
        result = await result_of(ends, hopeless)
        assert result.outcome == Expired(usage=result.outcome.usage)
        assert result.timeline.ended_ms - result.timeline.submitted_ms < 3000
        assert isinstance((await result_of(ends, patient)).outcome, Completed)
        assert [fact.job_id for fact in worker.told("job.started")] == [patient.id]


async def test_a_job_that_cannot_end_in_time_is_served_where_nobody_else_waits(ends: Installation) -> None:
    """What there is of its answer when it expires is in the outcome."""
    hopeless = make_job(deadline_ms=700, sampling={"min_tokens": 3000, "max_tokens": 3000})
    async with serving(ends, TWO_SEATS) as worker:
        await ends.submit(hopeless)
        result = await result_of(ends, hopeless)
        assert isinstance(result.outcome, Expired)
        assert len(worker.told("job.started")) == 1
        assert result.timeline.ended_ms - result.timeline.submitted_ms >= 700


async def test_what_waits_at_the_gate_stays_this_workers(ends: Installation) -> None:
    """Its lease is renewed like any other, and it is not started meanwhile."""
    waiting = make_job(slo="throughput")
    async with serving(ends, TWO_SEATS) as worker:
        await _fill(ends, worker)
        await ends.submit(waiting)
        await worker.says("job.claimed", 2)
        await ends.lapse("a")
        await worker.service.lease.renew()
        assert await (await ends.queue("b")).reclaim() == 0
        record = await ends.record(waiting.id)
        assert record is not None
        assert (record.state, record.attempt) == (JobState.CLAIMED, 1)


async def test_a_drain_gives_back_at_once_what_has_not_begun(ends: Installation) -> None:
    """It runs elsewhere, as though nothing had been tried, while the draining worker ends what it had begun."""
    waiting = make_job(slo="throughput")
    async with serving(ends, TWO_SEATS, drain_s=60.0) as worker:
        await _fill(ends, worker)
        await ends.submit(waiting)
        await worker.says("job.claimed", 2)
        worker.service.drain()
        await worker.says("job.handed_back")
        assert not worker.task.done()
        async with serving(ends):
            result = await result_of(ends, waiting)
        assert isinstance(result.outcome, Completed)
        record = await ends.record(waiting.id)
        assert record is not None
        assert (record.failures, record.losses) == (0, 0)
        worker.service.drain()


async def test_what_waits_is_offered_to_others_but_not_for_ever_to_nobody(ends: Installation) -> None:
    """A worker that is alone gets its offer back, and makes the next one later; an idle one takes it."""
    waiting = make_job(slo="throughput")
    async with serving(ends, TWO_SEATS, drain_s=0.0) as worker:
        await _fill(ends, worker)
        await ends.submit(waiting)
        await worker.says("job.claimed", 2)
        offers = worker.service.intake._offers
        offers.patience_s = 0.001
        await worker.says("job.claimed", 3)
        assert offers.patience_s > 0.001
        async with serving(ends):
            assert isinstance((await result_of(ends, waiting)).outcome, Completed)


async def test_the_card_says_why_a_lane_waits(ends: Installation) -> None:
    """For each lane with a job at the gate, in a word or two."""
    async with serving(ends, TWO_SEATS) as worker:
        await _fill(ends, worker)
        assert worker.service.card().waits == {}
        await ends.submit(make_job(slo="throughput"))
        waits = await wait_until(lambda: worker.service.card().waits)
        assert waits == {"throughput.short": "kept for latency"}


async def test_a_batch_job_leaves_for_a_latency_job_and_goes_on_from_its_tokens(
    ends: Installation, output: str
) -> None:
    """Here for the adapter's slot that it holds. Whoever reads it sees one answer without a gap, of one attempt."""
    await ends.listen(output)
    batch = make_job(
        slo="throughput",
        lora="a",
        sampling={"max_tokens": 400, "ignore_eos": True},
        stream=True,
        reply_to=output,
    )
    urgent = make_job(slo="latency", lora="b")
    one_slot = FakeEngineSettings(seats=4, base_s=STEP_S, max_loras=1, answer_tokens=4)
    async with serving(ends, one_slot) as worker:
        state = worker.service.admitter.state
        state.computed.add(1e6, time.monotonic())  # so that some of it may be wasted
        await ends.submit(batch)
        await worker.says("job.first_token")
        await ends.submit(urgent)
        await result_of(ends, urgent)
        assert len(worker.told("job.preempted")) == 1
        assert await ends.result(batch.id) is None
        result = await result_of(ends, batch)
        assert isinstance(result.outcome, Completed)
        assert (result.attempt, result.outcome.usage.output_tokens) == (1, 400)
        assert len(worker.told("job.started")) == 2
        await wait_until(lambda: len(worker.service.hands) == 0)
        worker.assert_idle()
    events = await ends.heard(output)
    tokens = [event for event in events if isinstance(event, Tokens)]
    assert [event.seq for event in tokens] == list(range(len(tokens)))
    assert "".join(event.text for event in tokens) == result.text
    assert [type(event) for event in events if not isinstance(event, Tokens)] == [Started, Ended]
