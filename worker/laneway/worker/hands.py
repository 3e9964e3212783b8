"""The jobs in hand: each is one task that runs an attempt and does what its verdict says."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from laneway.schemas.events import Ended, Event
from laneway.schemas.ids import JobId, WorkerId
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.outcome import Result, Usage
from laneway.worker.adapters import AdapterShelf
from laneway.worker.admitter import Admitter
from laneway.worker.attempt import Attempt
from laneway.worker.errors import QueueUnavailable
from laneway.worker.keeping import AnswerKeeper
from laneway.worker.lease import LeaseKeeper
from laneway.worker.link import Link, Pause
from laneway.worker.policy.admission import Ledger
from laneway.worker.policy.quarantine import SUSPECT
from laneway.worker.policy.resume import why_not_resumable
from laneway.worker.ports import Claim, Engine, JobQueue, Settlement
from laneway.worker.publisher import Publisher
from laneway.worker.telemetry import Telemetry
from laneway.worker.verdicts import DeadLetter, Drop, HandBack, Lose, Retry, Settle, Stop, Verdict

T = TypeVar("T")

RECENT_S = 10.0
"""How long a cancel of a job not in hand is remembered: its claim may be on the way."""


class Hand:
    """One job in hand."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.readers = set(claim.outputs)
        """Output streams that want to know how it ends."""
        own = claim.job.reply_to
        self.token_readers = {output for output in claim.outputs if claim.job.stream or output != own}
        """Those that want every token: the submitter's where the job asked for it, and whoever attached."""
        self.seats = claim.job.sampling.n
        self.since = time.monotonic()
        self.waits = claim.job.slo is SloClass.THROUGHPUT
        """It is in the window: a throughput job that has not entered the engine yet."""
        self.begun = False
        self.notes: set[asyncio.Task[None]] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.settling = False
        self.attempt: Attempt
        self.task: asyncio.Task[None]


class Hands:
    """Takes claimed jobs, and holds each until its verdict is carried out."""

    def __init__(
        self,
        *,
        queue: JobQueue,
        engine: Engine,
        link: Link,
        publisher: Publisher,
        lease: LeaseKeeper,
        keeper: AnswerKeeper,
        adapters: AdapterShelf,
        admitter: Admitter,
        telemetry: Telemetry,
        worker: WorkerId,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called whenever a seat came free, or the last job went."""
        self._queue = queue
        self._engine = engine
        self._link = link
        self._publisher = publisher
        self._lease = lease
        self._keeper = keeper
        self._adapters = adapters
        self._admitter = admitter
        self._telemetry = telemetry
        self._worker = worker
        self._changed = changed
        self._hands: dict[JobId, Hand] = {}
        self._taken = {SloClass.LATENCY: 0, SloClass.THROUGHPUT: 0}
        self._waiting: Counter[Bucket] = Counter()
        self._cancelled: dict[JobId, float] = {}
        self.returned: list[Claim] = []
        """Jobs to be handed back: the worker's end does it, in one call for all."""
        self.broken = asyncio.Event()
        """A task of ours died of a defect, or the engine is gone."""
        self.engine_died = False
        self.defect: BaseException | None = None

    def __len__(self) -> int:
        return len(self._hands)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._hands

    def claims(self) -> list[Claim]:
        """The jobs in hand, and those to be handed back."""
        return [*self.returned, *(hand.claim for hand in self._hands.values())]

    def ledger(self) -> Ledger:
        """Seats of the engine and who has them."""
        return Ledger(
            seats=self._engine.info.seats,
            latency=self._taken[SloClass.LATENCY],
            throughput=self._taken[SloClass.THROUGHPUT],
            waiting=dict(self._waiting),
        )

    # --- in ---------------------------------------------------------------------

    def take(self, claim: Claim, sent_at: float) -> None:
        """Begin the attempt at a job whose claim was asked for at `sent_at`, monotonic."""
        job = claim.job
        self.lose(job.id, "taken")  # by this very worker, when it had lost the job without noticing
        hand = Hand(claim)
        hand.attempt = Attempt(
            claim,
            engine=self._engine,
            adapters=self._adapters,
            admitter=self._admitter,
            worker=self._worker,
            now_ms=self._queue.now_ms,
            emit=lambda event: self._emit(hand, event),
            entered=lambda: self._entered(hand),
            left=lambda: self._left(hand),
            telemetry=self._telemetry,
            keep=partial(self._keeper.add, claim) if why_not_resumable(job) is None else None,
        )
        self._hands[job.id] = hand
        if hand.waits:
            self._waiting[job.bucket] += 1
        else:
            self._taken[job.slo] += hand.seats
        self._lease.add(claim, lambda: hand.attempt.engine_since, sent_at)
        if claim.deadline is not None:
            left = max(0.0, claim.deadline - time.monotonic())
            hand.timer = asyncio.get_running_loop().call_later(left, hand.attempt.stop, Stop.DEADLINE)
        if self._cancelled.pop(job.id, None) is not None:
            hand.attempt.stop(Stop.CANCEL)
        self._tell(
            claim,
            "job.claimed",
            seconds=max(0, claim.claimed_ms - claim.submitted_ms) / 1000,
            attempt=claim.attempt,
            losses=claim.losses,
        )
        hand.task = asyncio.create_task(self._work(hand), name=f"job {job.id}")
        hand.task.add_done_callback(self._note_defect)

    # --- from outside -----------------------------------------------------------

    def cancel(self, job_id: JobId) -> None:
        """Somebody asked to cancel a job; it may be in hand, or about to be."""
        if (hand := self._hands.get(job_id)) is not None:
            hand.attempt.stop(Stop.CANCEL)
            return
        now = time.monotonic()
        self._cancelled = {known: at for known, at in self._cancelled.items() if now - at < RECENT_S}
        self._cancelled[job_id] = now

    def attach(self, job_id: JobId, output: str) -> None:
        """Somebody wants the events of a job on one more stream."""
        self._publisher.welcome(output)
        if (hand := self._hands.get(job_id)) is not None:
            hand.readers.add(output)
            hand.token_readers.add(output)

    def lose(self, job_id: JobId, why: str) -> None:
        """A job is not this worker's any more: stop it, and say nothing more about it."""
        if (hand := self._hands.get(job_id)) is not None:
            self._publisher.forget(job_id)
            self._keeper.forget(job_id)
            hand.readers.clear()
            hand.token_readers.clear()
            hand.attempt.stop(Stop.LOST)
            self._tell(hand.claim, "job.lost", reason=why)

    def stop_all(self, why: Stop) -> None:
        """Break every attempt off."""
        for hand in self._hands.values():
            hand.attempt.stop(why)

    async def return_window(self, waited_s: float = 0.0) -> frozenset[JobId]:
        """Hand back, and return, the throughput jobs that have waited so long for a seat. Raises `QueueUnavailable`."""
        before = time.monotonic() - waited_s
        late = [hand for hand in self._hands.values() if hand.waits and hand.since <= before]
        for hand in late:
            hand.attempt.stop(Stop.HAND_BACK)
        if late:
            await asyncio.wait([hand.task for hand in late])
        back, self.returned = self.returned, []
        if not back:
            return frozenset()
        try:
            await self._save(back)
            await self._link(self._queue.hand_back(back))
        except QueueUnavailable:
            self.returned += back
            raise
        for claim in back:
            self._tell(claim, "job.handed_back")
        return frozenset(claim.job.id for claim in back)

    async def wait_until_empty(self) -> None:
        """Return when no job is in hand."""
        while self._hands:
            await asyncio.wait([hand.task for hand in self._hands.values()])

    async def let_go(self, timeout: float) -> None:
        """Wait for the stopped attempts and hand back what is due, at most `timeout` seconds in all."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.wait_until_empty()
        await self._hand_back(timeout)

    async def _hand_back(self, timeout: float) -> None:
        late = tuple(self._hands.values())
        for hand in late:
            hand.task.cancel()
        if late:
            await asyncio.wait([hand.task for hand in late], timeout=timeout)
        back = [*self.returned, *(hand.claim for hand in late if not hand.settling)]
        self.returned = []
        if not back:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._save(back)
                await self._insist(lambda: self._queue.hand_back(back))
            for claim in back:
                self._tell(claim, "job.handed_back")

    # --- the work ---------------------------------------------------------------

    async def _work(self, hand: Hand) -> None:
        vacated = False
        try:
            if hand.claim.losses >= SUSPECT:
                await self._note_start(hand.claim)
            verdict = await hand.attempt.run()
            vacated = True
            self._vacate(hand)
            if hand.attempt.engine_died:
                self.engine_died = True
                self.broken.set()
            await self._carry_out(hand, verdict)
        finally:
            if not vacated:
                self._vacate(hand)
            self._release(hand)

    async def _carry_out(self, hand: Hand, verdict: Verdict) -> None:
        claim = hand.claim
        if isinstance(verdict, HandBack):
            self.returned.append(claim)
            return
        if isinstance(verdict, Drop) or self._hands.get(claim.job.id) is not hand:
            return
        if not self._lease.end(claim.job.id):
            self.lose(claim.job.id, "not_renewed")
            return
        hand.settling = True
        if hand.notes:
            await asyncio.wait(hand.notes)
        if isinstance(verdict, Lose | Retry):
            await self._save([claim])
        match verdict:
            case Settle(result):
                settlement = await self._insist(lambda: self._queue.settle(claim, result))
                self._settled(hand, result, settlement)
            case DeadLetter(result):
                settlement = await self._insist(lambda: self._queue.dead_letter(claim, result))
                self._settled(hand, result, settlement, dead=True)
            case Lose(error):
                kept = await self._insist(lambda: self._queue.lose(claim, error))
                self._given_up(claim, kept, code=error.code)
            case Retry(error, delay_ms):
                kept = await self._insist(lambda: self._queue.retry(claim, error, delay_ms))
                self._given_up(claim, kept, code=error.code, delay_ms=delay_ms)
        self._keeper.forget(claim.job.id)

    async def _save(self, claims: Sequence[Claim]) -> None:
        """Keep all that these jobs have generated, if the server is there: another attempt goes on from it."""
        with suppress(QueueUnavailable):
            await self._keeper.save([claim.job.id for claim in claims])

    def _settled(self, hand: Hand, result: Result, settlement: Settlement, dead: bool = False) -> None:
        claim = hand.claim
        outcome = result.state.value
        if settlement is Settlement.FENCED:
            self._given_up(claim, False, outcome=outcome)
            return
        self._publisher.post(hand.readers, Ended(job_id=claim.job.id, attempt=claim.attempt, state=outcome))
        if dead:
            self._tell(claim, "job.dead_lettered", outcome=outcome)
        self._tell(claim, "job.settled", outcome=outcome, **_figures(result))

    def _given_up(self, claim: Claim, kept: bool, **fields: Any) -> None:
        # What is not sent yet may not be kept either: whoever goes on from what is kept would contradict it.
        self._publisher.forget(claim.job.id)
        self._tell(claim, "job.retried" if kept else "job.fenced", **fields)

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer to `call`, however long the server is away: what is done is neither dropped nor acknowledged."""
        pause = Pause()
        while True:
            try:
                return await self._link(call())
            except QueueUnavailable:
                await asyncio.sleep(pause.next())

    def _entered(self, hand: Hand) -> None:
        job = hand.claim.job
        if hand.waits:
            hand.waits = False
            self._waiting[job.bucket] -= 1
            self._taken[job.slo] += hand.seats
            self._changed()
        if hand.begun:
            return
        hand.begun = True
        self._tell(hand.claim, "job.started")
        if hand.claim.losses >= SUSPECT:  # noted already
            return
        note = asyncio.create_task(self._note_start(hand.claim))
        hand.notes.add(note)
        note.add_done_callback(hand.notes.discard)

    def _left(self, hand: Hand) -> None:
        job = hand.claim.job
        hand.waits, hand.since = True, time.monotonic()
        self._waiting[job.bucket] += 1
        self._taken[job.slo] -= hand.seats
        self._changed()

    async def _note_start(self, claim: Claim) -> None:
        with suppress(QueueUnavailable):
            await self._link(self._queue.start(claim))

    def _emit(self, hand: Hand, event: Event) -> None:
        self._publisher.post(hand.token_readers, event)

    # --- out --------------------------------------------------------------------

    def _vacate(self, hand: Hand) -> None:
        job = hand.claim.job
        if hand.waits:
            self._waiting[job.bucket] -= 1
        else:
            self._taken[job.slo] -= hand.seats
        if hand.timer is not None:
            hand.timer.cancel()
        self._changed()

    def _release(self, hand: Hand) -> None:
        job_id = hand.claim.job.id
        if self._hands.get(job_id) is hand:
            del self._hands[job_id]
            self._lease.remove(job_id)
        self._changed()

    def _note_defect(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.give_up(error)

    def give_up(self, defect: BaseException) -> None:
        """The worker cannot go on, for a defect of ours."""
        self.defect = self.defect or defect
        self.broken.set()

    def _tell(self, claim: Claim, event: str, **fields: Any) -> None:
        job = claim.job
        labels = {"slo": job.slo.value, "bucket": job.bucket.value, "lora": job.lora or ""}
        self._telemetry.tell(event, job_id=job.id, **labels, **fields)


def _figures(result: Result) -> dict[str, Any]:
    """What a result says in numbers: its whole life in `seconds`, tokens, seconds per token after the first."""
    times = result.timeline
    used = result.outcome.usage or Usage()
    figures: dict[str, Any] = {
        "seconds": (times.ended_ms - times.submitted_ms) / 1000,
        "prompt_tokens": used.prompt_tokens,
        "cached_tokens": used.cached_tokens,
        "output_tokens": used.output_tokens,
    }
    if times.first_token_ms and used.output_tokens > 1:
        figures["tpot_s"] = (times.ended_ms - times.first_token_ms) / 1000 / (used.output_tokens - 1)
    return figures
