"""One attempt at one job, from claim to verdict.

    cancelled or expired? -> check -> prepare -> turn -> adapter -> (go on) -> generate -> judge

Every way out is a verdict, a value that says what to do with the job; whoever asked for the attempt does it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from laneway.schemas.build import check_job
from laneway.schemas.errors import InvalidJob
from laneway.schemas.events import Event, Restarted, Started, Tokens
from laneway.schemas.ids import WorkerId
from laneway.schemas.job import SloClass
from laneway.schemas.outcome import (
    Cancelled,
    Choice,
    Completed,
    Expired,
    Failed,
    JobError,
    Outcome,
    Result,
    Timeline,
    Usage,
)
from laneway.schemas.record import Kept
from laneway.worker.adapters import AdapterShelf
from laneway.worker.admitter import Admitter, Turn
from laneway.worker.answer import NATURAL_ENDS, Answer, natural_end, to_keep
from laneway.worker.errors import AttemptFailed, DeadlineOutOfReach, EngineDied, JobRefused
from laneway.worker.policy.quarantine import SEEN, is_guilty
from laneway.worker.policy.retry import RetryAfter, after_failure
from laneway.worker.ports import Adapter, Claim, Engine, Piece, Prepared
from laneway.worker.telemetry import Telemetry
from laneway.worker.verdicts import DeadLetter, Drop, HandBack, Lose, Retry, Settle, Stop, Verdict

ABORT_S = 1.0
"""Patience with an engine that is to stop a run: a hung one never answers."""


class Attempt:
    """Runs a claimed job once. `run` may be called once; `stop` at any time."""

    def __init__(
        self,
        claim: Claim,
        *,
        engine: Engine,
        adapters: AdapterShelf,
        admitter: Admitter,
        worker: WorkerId,
        now_ms: Callable[[], int],
        emit: Callable[[Event], None],
        entered: Callable[[], None],
        left: Callable[[], None] = lambda: None,
        telemetry: Telemetry,
        keep: Callable[[int, Kept], None] | None = None,
    ) -> None:
        """`emit` gets the events for consumers; `entered` is called when the job goes into the engine, `left`
        when it has been taken out for one that could not wait, to go on later.

        `keep` gets each token event with its number, before `emit` does; None for a job that cannot go on from them.
        """
        self.claim = claim
        self.engine_since: float | None = None
        """Monotonic time at which the job went into the engine; None: nothing of it is in there."""
        self.engine_died = False
        """The engine turned out to be dead."""
        self._engine = engine
        self._adapters = adapters
        self._admitter = admitter
        self._turn: Turn
        self._worker = worker
        self._clock = now_ms
        self._last_ms = claim.claimed_ms
        self._emit = emit
        self._entered = entered
        self._left = left
        self._preempted = 0
        self._exposed = False  # something of it is in the engine, or was when that died
        self._keep = keep
        self._telemetry = telemetry
        self._run = f"{claim.job.id}.{claim.attempt}"
        self._answers: dict[int, Answer] = {}
        self._seq = 0
        self._usage = Usage()
        self._started_ms = 0
        self._first_token_ms = 0
        self._adapter: Adapter | None = None
        self._lora_digest = ""
        self._origin = claim.attempt  # where the answer begins
        self._spoke = False
        self._stop: Stop | None = None
        self._task: asyncio.Task[Verdict] | None = None
        if keep is not None and claim.kept:
            self._restore(claim.kept)

    def stop(self, why: Stop) -> None:
        """Break the attempt off, wherever it is. The first reason counts; after the end there is nothing to stop."""
        if self._stop is None:
            self._stop = why
            if self._task is not None:
                self._task.cancel()

    async def run(self) -> Verdict:
        """The whole attempt. Cancelling it from outside stops the engine's run too."""
        if self._stop is not None:
            return self._broken_off(self._stop)
        self._task = asyncio.create_task(self._pipeline())
        try:
            await asyncio.wait({self._task})
        finally:
            self._task.cancel()  # without effect unless `run` itself was cancelled
        return self._verdict(self._task)

    def _verdict(self, ended: asyncio.Task[Verdict]) -> Verdict:
        if ended.cancelled():
            return self._broken_off(self._stop or Stop.HAND_BACK)
        error = ended.exception()
        if isinstance(error, EngineDied):
            self.engine_died = True
            return self._broken_off(Stop.ENGINE_DIED)
        if error is not None:
            # A defect of ours. Its text may hold anything, so only its name is told.
            return self._failed(JobError(code="internal", message=f"{type(error).__name__} in the worker"))
        verdict = ended.result()
        completed = isinstance(verdict, Settle) and isinstance(verdict.result.outcome, Completed)
        # A stop shows in the pipeline as this or that failure; only a job that completed first outruns it.
        return verdict if completed or self._stop is None else self._broken_off(self._stop)

    # --- the pipeline -----------------------------------------------------------

    async def _pipeline(self) -> Verdict:
        try:
            if (outcome := self._too_late()) is not None:
                return Settle(self._result(outcome))
            if is_guilty(self.claim.evidence):
                return self._crashed(seen=False)
            check_job(self.claim.job)
            prepared = await self._prepare()
            self._adapters.check(self.claim.job.lora)
            while not await self._take_turn(prepared):
                self._preempted += 1
                self._left()
                self._tell("job.preempted", tokens=self._tokens())
            return self._judge()
        except InvalidJob as error:
            return self._refused("invalid_job", f"{error.field}: expected {error.expected}", error.field)
        except JobRefused as error:
            return self._refused(error.code, str(error), error.field)
        except AttemptFailed as error:
            return self._failed(JobError(code="attempt_failed", message=str(error)))
        except DeadlineOutOfReach:
            return self._broken_off(Stop.DEADLINE)

    def _too_late(self) -> Outcome | None:
        if self.claim.cancelled:
            return Cancelled(choices=self._choices(), usage=self._used_if_any())
        deadline = self.claim.deadline
        if deadline is not None and time.monotonic() >= deadline:
            return Expired(choices=self._choices(), usage=self._used_if_any())
        return None

    async def _prepare(self) -> Prepared:
        prepared = await self._engine.prepare(self.claim.job)
        self._usage = Usage(prompt_tokens=len(prepared.prompt_token_ids))
        return prepared

    async def _take_turn(self, prepared: Prepared) -> bool:
        """Whether the engine has done all it was asked for; else the job had to leave it for one that could not wait."""
        preempted = None if self._keep is None else self._preempted
        async with (
            self._admitter.turn(self.claim, prepared, self._tokens(), preempted) as self._turn,
            self._adapters.lend(self.claim.job.lora) as self._adapter,
        ):
            if (left := self._go_on(prepared)) is not None:
                try:
                    async with self._turn.scope:
                        await self._generate(left)
                except TimeoutError:
                    if not self._turn.scope.expired():
                        raise
                    self._exposed = False
        return not self._turn.scope.expired()

    def _go_on(self, prepared: Prepared) -> Prepared | None:
        """The job as it is to be run, after what earlier attempts generated. None: that is the whole answer."""
        digest = self._adapter.digest if self._adapter else ""
        answer = self._answers.get(0)
        if answer is None:
            self._lora_digest = digest
            return prepared
        if self._lora_digest != digest or max(answer.token_ids, default=0) >= self._engine.info.vocabulary:
            self._begin_anew(digest)
            return prepared
        if answer.last.finish_reason is None and len(answer.token_ids) >= prepared.max_tokens:
            answer.add(Piece(finish_reason="length"))
        return None if answer.last.finish_reason else self._engine.extend(prepared, answer.token_ids)

    async def _generate(self, prepared: Prepared) -> None:
        priority = 0 if self.claim.job.slo is SloClass.LATENCY else 1
        self._enter()
        stream = self._engine.generate(self._run, prepared, priority)
        ended = False
        try:
            async for pieces in stream:
                self._add(pieces)
            ended = True
        finally:
            if not ended:
                await self._abort(stream)
            self.engine_since = None

    def _judge(self) -> Verdict:
        reasons = [answer.last.finish_reason for answer in self._answers.values()]
        if len(reasons) != self.claim.job.sampling.n or not NATURAL_ENDS.issuperset(reasons):
            raise AttemptFailed("the engine ended the job before its natural end")
        lora = self._adapter
        return Settle(
            self._result(
                Completed(
                    choices=self._choices(),
                    usage=self._used(),
                    lora=lora.id if lora else None,
                    lora_digest=lora.digest or None if lora else None,
                )
            )
        )

    # --- inside the engine ------------------------------------------------------

    def _enter(self) -> None:
        job, attempt = self.claim.job, self.claim.attempt
        self.engine_since = time.monotonic()
        self._exposed = True
        if self._started_ms:  # an earlier turn: consumers need not know
            self._entered()
            return
        self._started_ms = self._now()
        if self._answers:
            self._emit(Started(job_id=job.id, attempt=attempt, resumes_at=self._seq, origin=self._origin))
        else:
            if attempt > 1:
                self._emit(Restarted(job_id=job.id, attempt=attempt))
            self._emit(Started(job_id=job.id, attempt=attempt))
        self._entered()
        if self._answers:
            self._tell("job.resumed", tokens=len(self._answers[0].token_ids))

    def _add(self, pieces: Sequence[Piece]) -> None:
        job, attempt = self.claim.job, self.claim.attempt
        for piece in pieces:
            self._answers.setdefault(piece.index, Answer()).add(piece)
            # An end by itself is an event where it must be kept: the answer is not to go on beyond it.
            is_end = self._spoke and self._keep is not None and natural_end(piece)
            if not (piece.token_ids or piece.text or is_end):
                continue
            self._turn.add(len(piece.token_ids))
            if not self._spoke:
                self._first_piece(piece)
            if self._keep is not None:
                self._keep(self._seq, self._kept(piece))
            self._emit(
                Tokens(
                    job_id=job.id,
                    attempt=attempt,
                    seq=self._seq,
                    text=piece.text,
                    token_ids=piece.token_ids,
                    index=piece.index,
                )
            )
            self._seq += 1

    def _first_piece(self, piece: Piece) -> None:
        self._spoke = True
        cached = min(piece.cached_tokens, self._usage.prompt_tokens)
        self._usage = replace(self._usage, cached_tokens=cached)
        if not self._first_token_ms:
            self._first_token_ms = self._now()
            self._tell("job.first_token", seconds=(self._first_token_ms - self.claim.submitted_ms) / 1000)

    # --- what is kept -----------------------------------------------------------

    def _kept(self, piece: Piece) -> Kept:
        if self._seq:
            return to_keep(piece, self.claim.attempt)
        return to_keep(piece, self.claim.attempt, self._first_token_ms, self._lora_digest)

    def _restore(self, kept: Sequence[Kept]) -> None:
        self._answers = {0: Answer.restored(kept)}
        self._seq = len(kept)
        self._origin = kept[0].attempt
        self._first_token_ms = kept[0].first_token_ms
        self._lora_digest = kept[0].lora_digest

    def _begin_anew(self, lora_digest: str) -> None:
        self._answers.clear()
        self._seq = self._first_token_ms = 0
        self._origin = self.claim.attempt
        self._lora_digest = lora_digest

    # --- the engine -------------------------------------------------------------

    async def _abort(self, stream: AsyncIterator[Sequence[Piece]]) -> None:
        # A dead or hung engine may refuse or never answer, and what it says no longer matters.
        with suppress(Exception):
            async with asyncio.timeout(ABORT_S):
                if isinstance(stream, AsyncGenerator):
                    await stream.aclose()
                await self._engine.abort(self._run)

    # --- ways out ---------------------------------------------------------------

    def _broken_off(self, why: Stop) -> Verdict:
        match why:
            case Stop.CANCEL:
                return Settle(self._result(Cancelled(choices=self._choices(), usage=self._used())))
            case Stop.DEADLINE:
                return Settle(self._result(Expired(choices=self._choices(), usage=self._used())))
            case Stop.LOST:
                return Drop()
            case Stop.HAND_BACK:
                return HandBack()
            case Stop.ENGINE_DIED:
                if not self._exposed:
                    return HandBack()
                return self._crashed(seen=True)

    def _crashed(self, *, seen: bool) -> Verdict:
        claim = self.claim
        error = JobError(code="engine_died", message="the engine died while it held the job")
        once = claim.job.attempts.max_attempts == 1
        guilty = is_guilty(claim.evidence + (SEEN if seen and claim.isolated else 0))
        return self._given_up(error) if once or guilty else Lose(error)

    def _refused(self, code: str, message: str, field: str | None) -> Verdict:
        return Settle(self._result(Failed(error=JobError(code=code, message=message, field=field))))

    def _failed(self, error: JobError) -> Verdict:
        decision = after_failure(self.claim.failures + 1, self.claim.job.attempts)
        return Retry(error, decision.delay_ms) if isinstance(decision, RetryAfter) else self._given_up(error)

    def _given_up(self, error: JobError) -> Verdict:
        return DeadLetter(self._result(Failed(error=error, choices=self._choices(), usage=self._used())))

    def _result(self, outcome: Outcome) -> Result:
        claim = self.claim
        return Result(
            job_id=claim.job.id,
            outcome=outcome,
            model=claim.job.model,
            attempt=claim.attempt,
            worker=self._worker,
            timeline=Timeline(
                submitted_ms=claim.submitted_ms,
                claimed_ms=claim.claimed_ms,
                started_ms=self._started_ms,
                first_token_ms=self._first_token_ms,
                ended_ms=self._now(),
            ),
            metadata=claim.job.metadata,
        )

    def _now(self) -> int:
        # The server's clock is read anew now and then: what follows must not seem to have come before.
        self._last_ms = max(self._last_ms, self._clock())
        return self._last_ms

    def _choices(self) -> tuple[Choice, ...]:
        return tuple(self._answers[index].choice() for index in sorted(self._answers))

    def _tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self._answers.values())

    def _used(self) -> Usage:
        return replace(self._usage, output_tokens=self._tokens())

    def _used_if_any(self) -> Usage | None:
        return self._used() if self._answers else None

    def _tell(self, event: str, seconds: float = 0.0, **numbers: int) -> None:
        job = self.claim.job
        self._telemetry.tell(
            event,
            job_id=job.id,
            slo=job.slo.value,
            bucket=job.bucket.value,
            lora=job.lora or "",
            seconds=seconds,
            **numbers,
        )
