"""How an attempt ends: every way out is a verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from laneway.schemas.events import Event, Restarted, Started, Tokens
from laneway.schemas.ids import AdapterId, WorkerId, new_job_id
from laneway.schemas.job import AttemptPolicy, Job, Prompt
from laneway.schemas.keys import lanes
from laneway.schemas.outcome import Cancelled, Completed, Expired, Failed, Outcome
from laneway.schemas.record import Kept
from laneway.schemas.sampling import Sampling
from laneway.worker.adapters import AdapterShelf
from laneway.worker.admitter import Admitter
from laneway.worker.attempt import Attempt
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.errors import JobRefused
from laneway.worker.observer import Observer
from laneway.worker.policy.quarantine import PROOF, SEEN
from laneway.worker.ports import Adapter, Claim
from laneway.worker.settings import WorkerSettings
from laneway.worker.telemetry import Fact, Telemetry
from laneway.worker.verdicts import DeadLetter, Drop, HandBack, Lose, Retry, Settle, Stop, Verdict

SQL = AdapterId("sql")


def _raise(error: Exception) -> None:
    raise error


class Bench:
    """An engine, and what an attempt on it said."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.events: list[Event] = []
        self.facts: list[Fact] = []
        self.entered = 0
        self.said = asyncio.Event()
        self.shelf = AdapterShelf(
            {SQL: Adapter(id=SQL, path="/models/sql", digest="d1")}, lambda: 1, engine.load_adapter
        )

    def attempt(
        self, job: Job | None = None, *, keep: Callable[[int, Kept], None] | None = None, **claim: Any
    ) -> Attempt:
        job = job or make_job()
        claim = {"entry": "1-0", "attempt": 1, "submitted_ms": 1000, "claimed_ms": 1500, **claim}
        return Attempt(
            Claim(job=job, lane=lanes(0)[0], **claim),
            engine=self.engine,
            adapters=self.shelf,
            admitter=Admitter(
                self.engine, WorkerSettings(engine="fake"), Observer(), now_ms=lambda: 2000, broke=_raise
            ),
            worker=WorkerId("w"),
            now_ms=lambda: 2000,
            emit=self._hear,
            entered=self._count,
            telemetry=Telemetry(self.facts.append),
            keep=keep,
        )

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self.said.set()

    def _count(self) -> None:
        self.entered += 1

    async def in_engine(self, attempt: Attempt, tokens: int = 1) -> asyncio.Task[Verdict]:
        """A running attempt that has brought some tokens."""
        task = asyncio.create_task(attempt.run())
        while sum(isinstance(event, Tokens) for event in self.events) < tokens:
            self.said.clear()
            await self.said.wait()
        return task


def make_job(**fields: Any) -> Job:
    fields.setdefault("sampling", Sampling(max_tokens=4))
    given = {"id": new_job_id("m", 0), "payload": Prompt(text="one two three"), **fields}
    return Job(model="m", **given)


def outcome_of(verdict: Verdict) -> Outcome:
    assert isinstance(verdict, Settle | DeadLetter)
    return verdict.result.outcome


@pytest.fixture
async def bench() -> Any:
    engine = FakeEngine(FakeEngineSettings(context_tokens=64))
    await engine.start(lambda step, share: None)
    yield Bench(engine)
    await engine.stop()


LONG = Sampling(max_tokens=40, ignore_eos=True)


async def test_a_job_that_ends_by_itself_is_completed(bench: Bench) -> None:
    """The whole answer, its usage and its timeline are in the result."""
    attempt = bench.attempt(make_job(metadata={"custom_id": "7"}))
    verdict = await attempt.run()
    assert isinstance(verdict, Settle)
    result, outcome = verdict.result, verdict.result.outcome
    assert isinstance(outcome, Completed)
    assert outcome.choices[0].finish_reason == "length"
    assert (outcome.usage.prompt_tokens, outcome.usage.output_tokens) == (3, 4)
    assert (result.attempt, result.worker, result.metadata) == (1, "w", {"custom_id": "7"})
    times = result.timeline
    assert (times.submitted_ms, times.claimed_ms, times.started_ms, times.first_token_ms) == (
        1000,
        1500,
        2000,
        2000,
    )
    assert bench.entered == 1
    assert attempt.engine_since is None


async def test_tokens_are_numbered_without_gaps_and_spell_the_answer(bench: Bench) -> None:
    """Events of an attempt join to its answer."""
    verdict = await bench.attempt().run()
    started, *tokens = bench.events
    assert isinstance(started, Started)
    assert [event.seq for event in tokens if isinstance(event, Tokens)] == [0, 1, 2, 3]
    text = "".join(event.text for event in tokens if isinstance(event, Tokens))
    assert text == outcome_of(verdict).choices[0].text


async def test_a_later_attempt_says_that_it_starts_anew(bench: Bench) -> None:
    """A consumer forgets the tokens of earlier attempts."""
    await bench.attempt(attempt=2).run()
    assert isinstance(bench.events[0], Restarted)
    assert isinstance(bench.events[1], Started)
    assert all(event.attempt == 2 for event in bench.events)


async def test_all_n_answers_are_merged(bench: Bench) -> None:
    """One job, `n` choices, in order; usage counts them all."""
    job = make_job(sampling=Sampling(n=3, max_tokens=4, temperature=1.0))
    outcome = outcome_of(await bench.attempt(job).run())
    assert isinstance(outcome, Completed)
    assert [choice.index for choice in outcome.choices] == [0, 1, 2]
    assert outcome.usage.output_tokens == sum(len(choice.token_ids) for choice in outcome.choices) == 12


async def test_an_adapter_is_loaded_before_the_job_and_named_in_its_outcome(bench: Bench) -> None:
    """Completed means: from the requested adapter, of the version that is named."""
    outcome = outcome_of(await bench.attempt(make_job(lora=SQL)).run())
    assert isinstance(outcome, Completed)
    assert (outcome.lora, outcome.lora_digest) == (SQL, "d1")
    assert not bench.shelf.in_use


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"lora": AdapterId("sqk")}, "unknown_adapter"),
        ({"payload": Prompt(text="")}, "invalid_job"),
        ({"payload": Prompt(text="w " * 100)}, "prompt_too_long"),
        ({"sampling": Sampling(temperature=float("nan"))}, "invalid_job"),
        ({"metadata": {"fake": "refuse"}}, "refused"),
    ],
)
@pytest.mark.case("D55")
async def test_a_jobs_own_fault_fails_it_at_once(bench: Bench, fields: dict[str, Any], code: str) -> None:
    """No retry can help a job that is wrong itself. The error names the field, never its content."""
    outcome = outcome_of(await bench.attempt(make_job(**fields)).run())
    assert isinstance(outcome, Failed)
    assert outcome.error.code == code
    assert "w w" not in outcome.error.message


async def test_a_broken_attempt_is_retried_later_each_time(bench: Bench) -> None:
    """The engine's fault: again after a back-off that doubles."""
    for failures, delay_ms in ((0, 100), (1, 200)):
        bench.engine.fail_next()
        policy = AttemptPolicy(max_attempts=3, backoff_ms=100)
        verdict = await bench.attempt(make_job(attempts=policy), failures=failures).run()
        assert isinstance(verdict, Retry)
        assert verdict.delay_ms == delay_ms


async def test_after_the_last_attempt_the_job_is_dead_lettered(bench: Bench) -> None:
    """Attempts used up: the job fails, and is kept aside."""
    bench.engine.fail_next()
    verdict = await bench.attempt(failures=2).run()
    assert isinstance(verdict, DeadLetter)
    assert isinstance(verdict.result.outcome, Failed)


@pytest.mark.case("B29")
async def test_an_abort_is_never_a_completion(bench: Bench) -> None:
    """The engine ended the stream in good order, but not the job: it runs again."""
    attempt = bench.attempt(make_job(sampling=LONG))
    task = await bench.in_engine(attempt)
    await bench.engine.abort(f"{attempt.claim.job.id}.1")
    assert isinstance(await task, Retry)


@pytest.mark.parametrize(("why", "kind"), [(Stop.CANCEL, Cancelled), (Stop.DEADLINE, Expired)])
@pytest.mark.case("B29")
async def test_a_stopped_job_settles_with_what_was_generated(
    bench: Bench, why: Stop, kind: type[Outcome]
) -> None:
    """Cancel and deadline reach the engine, which forgets the job; what there is of the answer is kept."""
    attempt = bench.attempt(make_job(sampling=LONG))
    task = await bench.in_engine(attempt, tokens=5)
    attempt.stop(why)
    outcome = outcome_of(await task)
    assert isinstance(outcome, kind)
    assert outcome.usage is not None
    assert 5 <= outcome.usage.output_tokens < 40
    assert outcome.choices[0].finish_reason is None
    assert (bench.engine.stats().running, bench.engine.stats().waiting) == (0, 0)


@pytest.mark.parametrize(
    ("why", "kind"), [(Stop.LOST, Drop), (Stop.HAND_BACK, HandBack), (Stop.ENGINE_DIED, Lose)]
)
async def test_a_job_that_cannot_go_on_here_leaves_the_engine(
    bench: Bench, why: Stop, kind: type[Verdict]
) -> None:
    """Lost: dropped. Drained: handed back. Engine dead: counted as a failure."""
    attempt = bench.attempt(make_job(sampling=LONG))
    task = await bench.in_engine(attempt)
    attempt.stop(why)
    assert isinstance(await task, kind)
    assert bench.engine.stats().running == 0


async def test_jobs_outside_a_dead_engine_are_handed_back_unharmed(bench: Bench) -> None:
    """Only what was in the engine may have killed it."""
    attempt = bench.attempt()
    attempt.stop(Stop.ENGINE_DIED)
    assert isinstance(await attempt.run(), HandBack)


async def test_the_death_of_the_engine_is_noticed_by_its_jobs(bench: Bench) -> None:
    """The job is offered again as one that was in hand at a crash, and the attempt says that the engine is gone."""
    attempt = bench.attempt(make_job(sampling=LONG))
    task = await bench.in_engine(attempt)
    bench.engine.die()
    assert isinstance(await task, Lose)
    assert attempt.engine_died


@pytest.mark.parametrize(
    ("claim", "attempts", "kind"),
    [
        ({"losses": 5}, 3, Lose),
        ({"losses": 4, "isolated": True}, 3, Lose),
        ({"losses": 5, "isolated": True, "evidence": SEEN}, 3, DeadLetter),
        ({"losses": 9, "isolated": False, "evidence": PROOF - 1}, 3, Lose),
        ({}, 1, DeadLetter),
    ],
)
async def test_only_who_was_alone_is_to_blame_for_the_death_of_an_engine(
    bench: Bench, claim: dict[str, Any], attempts: int, kind: type[Verdict]
) -> None:
    """Crashes among others never use a job up, however many, and one alone does not: any process may be killed once.
    A job that may run only once is not repeated."""
    policy = AttemptPolicy(max_attempts=attempts)
    task = await bench.in_engine(bench.attempt(make_job(sampling=LONG, attempts=policy), **claim))
    bench.engine.die()
    assert isinstance(await task, kind)


async def test_a_job_that_vanished_alone_too_often_is_not_run_again(bench: Bench) -> None:
    """Nobody saw the engine die, but one worker after another fell silent with this job alone in hand."""
    verdict = await bench.attempt(losses=9, evidence=PROOF).run()
    assert isinstance(verdict, DeadLetter)
    assert bench.entered == 0


async def test_a_hung_engine_holds_nobody_up(bench: Bench) -> None:
    """A stop is answered although the engine never is."""
    attempt = bench.attempt(make_job(sampling=LONG))
    task = await bench.in_engine(attempt)
    bench.engine.hang()
    attempt.stop(Stop.CANCEL)
    async with asyncio.timeout(5):
        assert isinstance(outcome_of(await task), Cancelled)


@pytest.mark.parametrize(
    ("claim", "kind"), [({"cancelled": True}, Cancelled), ({"deadline": time.monotonic() - 1}, Expired)]
)
@pytest.mark.case("C34")
async def test_a_job_that_is_too_late_never_enters_the_engine(
    bench: Bench, claim: dict[str, Any], kind: type[Outcome]
) -> None:
    """Cancelled or expired before its claim: settled without a token."""
    assert isinstance(outcome_of(await bench.attempt(**claim).run()), kind)
    assert bench.entered == 0
    assert bench.engine.stats().steps == 0


async def test_a_stop_after_the_end_changes_nothing(bench: Bench) -> None:
    """Who completes first has completed."""
    attempt = bench.attempt()
    verdict = await attempt.run()
    attempt.stop(Stop.CANCEL)
    assert isinstance(outcome_of(verdict), Completed)


async def test_a_defect_of_the_worker_fails_the_attempt_without_telling_its_text(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of an unexpected exception may hold the prompt: only its type is kept."""

    async def broken(job: Job) -> Any:
        raise ValueError("secret prompt")

    monkeypatch.setattr(bench.engine, "prepare", broken)
    verdict = await bench.attempt().run()
    assert isinstance(verdict, Retry)
    assert (verdict.error.code, "secret" in verdict.error.message) == ("internal", False)


# --- adapters -----------------------------------------------------------------


async def test_no_more_adapters_are_used_at_once_than_the_engine_has_slots() -> None:
    """One more would kill the engine: attempts wait for a slot, and get it when one comes free."""
    loads: list[AdapterId] = []

    async def load(adapter: Adapter) -> None:
        loads.append(adapter.id)

    known = {AdapterId(name): Adapter(id=AdapterId(name), path=name) for name in "abc"}
    shelf = AdapterShelf(known, lambda: 2, load)
    most: list[int] = []

    async def use(name: str) -> None:
        async with shelf.lend(AdapterId(name)):
            most.append(len(shelf.in_use))
            await asyncio.sleep(0)

    await asyncio.gather(*(use(name) for name in "abcabcaab"))
    assert max(most) == 2
    assert set(loads) == set(known)
    assert not shelf.in_use


async def test_an_adapter_in_steady_demand_keeps_no_other_waiting_for_ever() -> None:
    """With one slot and jobs of `hot` that always overlap, a job of `cold` still gets its turn."""

    async def load(adapter: Adapter) -> None:
        return

    known = {AdapterId(name): Adapter(id=AdapterId(name), path=name) for name in ("hot", "cold")}
    shelf = AdapterShelf(known, lambda: 1, load)
    order: list[str] = []
    first_may_end = asyncio.Event()

    async def use(name: str, until: asyncio.Event | None = None) -> None:
        async with shelf.lend(AdapterId(name)):
            order.append(name)
            if until is not None:
                await until.wait()

    jobs = [asyncio.create_task(use("hot", first_may_end))]
    jobs += [asyncio.create_task(use(name)) for name in ("cold", *["hot"] * 20)]
    while len(order) < 1:  # noqa: ASYNC110 - one turn of the loop
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    first_may_end.set()
    await asyncio.gather(*jobs)
    assert order == ["hot", "cold", *["hot"] * 20]


async def test_an_adapter_that_does_not_load_blocks_nobody() -> None:
    """Each of its jobs is refused with the reason; the slot is free at once."""

    async def load(adapter: Adapter) -> None:
        if adapter.id == "bad":
            raise JobRefused("bad_adapter", "lora: rank 64 is above 16", "lora")

    known = {AdapterId(name): Adapter(id=AdapterId(name), path=name) for name in ("bad", "good")}
    shelf = AdapterShelf(known, lambda: 1, load)

    async def use(name: str) -> Sequence[AdapterId]:
        async with shelf.lend(AdapterId(name)):
            return shelf.in_use

    outcomes = await asyncio.gather(*(use(name) for name in ("bad", "bad", "good")), return_exceptions=True)
    assert [isinstance(outcome, JobRefused) for outcome in outcomes] == [True, True, False]
    assert outcomes[2] == ("good",)
