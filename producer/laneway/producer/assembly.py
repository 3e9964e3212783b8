"""Events of one job, put in order: from what arrives, with repetitions, gaps and more than one attempt, to what a
consumer may see. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from laneway.schemas.events import Ended, Event, Restarted, Started, Tokens
from laneway.schemas.ids import JobId
from laneway.schemas.outcome import Result
from laneway.schemas.record import Kept


class Assembler:
    """Lets events through so that the texts that came out always join to a beginning of one answer.

    Events of an attempt below the highest seen are dropped, as are repeated ones. A higher attempt that begins at
    token event 0 is announced by `Restarted`; one whose `Started` says that it goes on from where the text stands is
    not: it comes out once what was missed before that place is filled from what the server keeps of the answer, so
    that attempts never go down.
    """

    def __init__(self, job_id: JobId) -> None:
        self.job_id = job_id
        self.gap = False
        """Token events are missing: later ones are held off until the missing ones are fed, or `finish` is called."""
        self._highest = 0  # attempt
        self._source = 0  # attempt that the text comes from or is continued by; 0: no text yet
        self._origin = 0  # attempt that token event 0 of the text comes from
        self._next = 0  # sequence number of the next token event
        self._started = 0  # attempt of the last Started that arrived
        self._held: Started | None = None  # until the text stands where that attempt goes on
        self._texts: defaultdict[int, str] = defaultdict(str)

    def feed(self, event: Event) -> Iterator[Event]:
        """What a consumer may see now that `event` has arrived."""
        if event.attempt < self._highest:
            return
        self._highest = event.attempt
        match event:
            case Tokens():
                yield from self._tokens(event)
            case Restarted() if event.attempt > self._source:
                yield from self._restart(event.attempt)
            case Started() if event.attempt > self._started:
                self._started = event.attempt
                if event.resumes_at:
                    yield from self._resume(event)
                self._held = event
                if not self.gap:
                    yield from self._announce(event.attempt)
            case _:
                return  # a repetition, or Ended: that is for `finish`

    def catch_up(self, kept: Sequence[Kept]) -> Iterator[Event]:
        """What a consumer may see of `kept`, the answer's token events from the first on as the server keeps them."""
        if not kept or (kept[0].attempt, len(kept)) < (self._origin, self._next):
            return  # of a text that was given up since, or behind what is shown
        if kept[0].attempt != self._origin:
            yield from self._restart(kept[0].attempt)
        self._source = max(self._source, kept[-1].attempt)
        self.gap = False
        for seq in range(self._next, len(kept)):
            event = kept[seq]
            yield from self._announce(event.attempt)
            yield self._add(
                Tokens(
                    job_id=self.job_id,
                    attempt=event.attempt,
                    seq=seq,
                    text=event.text,
                    token_ids=event.token_ids,
                )
            )

    def finish(self, result: Result) -> Iterator[Event]:
        """The rest of the answer, taken from the stored result, and the end."""
        choices = result.outcome.choices
        pairs = [(self._texts[choice.index], choice.text) for choice in choices]
        stale = any(not text.startswith(shown) for shown, text in pairs)
        # A server that was emptied knows no attempts: a job that was submitted again counts them from 1 once more.
        other = any(not text.startswith(shown) and not shown.startswith(text) for shown, text in pairs)
        if (stale and result.attempt > self._source) or other:
            yield from self._restart(result.attempt)
        yield from self._announce(result.attempt)
        for choice in choices:
            shown = self._texts[choice.index]
            if choice.text.startswith(shown) and len(choice.text) > len(shown):
                yield self._add(
                    Tokens(
                        job_id=self.job_id,
                        attempt=result.attempt,
                        seq=self._next,
                        text=choice.text[len(shown) :],
                        token_ids=() if shown else choice.token_ids,
                        index=choice.index,
                    )
                )
        yield Ended(job_id=self.job_id, attempt=result.attempt, state=result.state.value)

    def _tokens(self, event: Tokens) -> Iterator[Event]:
        if event.attempt > self._source and event.seq == 0:
            yield from self._restart(event.attempt)
        if event.seq > self._next or event.attempt > self._source:
            self.gap = True
        elif event.seq == self._next:
            self.gap = False
            yield from self._announce(event.attempt)
            yield self._add(event)

    def _resume(self, event: Started) -> Iterator[Event]:
        if self._origin and (event.origin != self._origin or event.resumes_at < self._next):
            # It goes on from another text, or from an earlier place than is shown.
            yield from self._restart(event.attempt, event.origin)
        self._source, self._origin = event.attempt, event.origin
        self.gap = event.resumes_at != self._next

    def _announce(self, attempt: int) -> Iterator[Event]:
        """The `Started` that was held back, before the first event of its attempt or a later one."""
        if self._held is not None and attempt >= self._held.attempt:
            yield self._held
            self._held = None

    def _restart(self, attempt: int, origin: int = 0) -> Iterator[Event]:
        shown = self._next > 0
        self._source, self._origin, self._next, self.gap = attempt, origin or attempt, 0, False
        self._texts.clear()
        if self._held is not None and self._held.attempt < attempt:
            self._held = None
        if shown:
            yield Restarted(job_id=self.job_id, attempt=attempt)

    def _add(self, event: Tokens) -> Tokens:
        self._texts[event.index] += event.text
        self._next = event.seq + 1
        return event
