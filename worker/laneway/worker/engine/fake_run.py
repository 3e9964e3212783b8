"""One run in the fake engine: its place in the batch and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from laneway.schemas.outcome import TokenLogprob
from laneway.schemas.sampling import Sampling
from laneway.worker.engine.fake_text import Chain, fake_text
from laneway.worker.ports import Piece, Prepared


class FakeRun:
    """A job in the engine: first its prompt is worked through, then each of its answers grows by a token a step."""

    def __init__(self, prepared: Prepared, adapter: str, priority: int, order: int) -> None:
        self.adapter = adapter
        self.rank = (priority, order)
        self.fault = prepared.job.metadata.get("fake", "")
        self.admitted = False
        self.over = False
        self.out: asyncio.Queue[Sequence[Piece] | Exception] = asyncio.Queue()
        self.seats = prepared.job.sampling.n
        self.kv_tokens = len(prepared.prompt_token_ids) + self.seats * prepared.max_tokens
        self._prompt_left = len(prepared.prompt_token_ids)
        self._answers = [FakeAnswer(prepared, adapter, index) for index in range(self.seats)]

    @property
    def in_prompt(self) -> bool:
        """Whether the prompt is still being worked through."""
        return self._prompt_left > 0

    @property
    def wants(self) -> int:
        """Tokens that it could use in the next step."""
        return self._prompt_left or sum(not answer.ended for answer in self._answers)

    def step(self, tokens: int) -> int:
        """Take a share of a step; the number of new tokens. The prompt's last chunk brings the first token."""
        room = tokens
        if self._prompt_left:
            self._prompt_left -= tokens
            if self._prompt_left:
                return 0
            room = len(self._answers)
        growing = [answer for answer in self._answers if not answer.ended][:room]
        pieces = [answer.grow() for answer in growing]
        self.over = all(answer.ended for answer in self._answers)
        self.out.put_nowait(pieces)
        return len(pieces)

    def abort(self) -> None:
        """End every answer that has not ended."""
        pieces = [answer.abort() for answer in self._answers if not answer.ended]
        self.over = True
        self.out.put_nowait(pieces)

    def fail(self, error: Exception) -> None:
        """End the run with an error."""
        self.over = True
        self.out.put_nowait(error)


class FakeAnswer:
    """One answer, with the stop rules of a real engine: text that may be the beginning of a stop string is held back."""

    def __init__(self, prepared: Prepared, adapter: str, index: int) -> None:
        sampling = prepared.job.sampling
        self.ended = False
        self._index = index
        self._sampling = sampling
        self._max_tokens = prepared.max_tokens
        self._chain = Chain(
            prepared.prompt_token_ids,
            adapter=adapter,
            seed=sampling.seed,
            index=index,
            allowed=sampling.allowed_token_ids or (),
        )
        self._count = 0
        self._text = ""
        self._sent = 0
        self._hold = 0 if sampling.include_stop_str_in_output else max(map(len, sampling.stop), default=1) - 1

    def grow(self) -> Piece:
        """One more token."""
        token = self._chain.next()
        self._count += 1
        before = len(self._text)
        self._text += fake_text([token])
        reason, stop = self._judge(token, before)
        self.ended = reason is not None
        return Piece(
            index=self._index,
            text=self._release(),
            token_ids=(token,),
            finish_reason=reason,
            stop_reason=stop,
            logprobs=_logprobs(token, self._sampling),
        )

    def abort(self) -> Piece:
        """The last piece of an answer that was broken off."""
        self.ended = True
        return Piece(index=self._index, finish_reason="abort")

    def _judge(self, token: int, before: int) -> tuple[str | None, str | int | None]:
        sampling = self._sampling
        if self._count > sampling.min_tokens:
            if token in sampling.stop_token_ids:
                if not sampling.include_stop_str_in_output:
                    self._text = self._text[:before]
                return "stop", token
            for stop in sampling.stop:
                if (at := self._text.find(stop, max(0, before - len(stop) + 1))) >= 0:
                    kept = at + len(stop) if sampling.include_stop_str_in_output else at
                    self._text = self._text[:kept]
                    return "stop", stop
        if self._count >= self._max_tokens:
            return ("length" if sampling.max_tokens is not None else "stop"), None
        return None, None

    def _release(self) -> str:
        end = len(self._text) if self.ended else max(self._sent, len(self._text) - self._hold)
        text = self._text[self._sent : end]
        self._sent = end
        return text


def _logprobs(token: int, sampling: Sampling) -> tuple[TokenLogprob, ...] | None:
    if sampling.logprobs is None:
        return None
    word = fake_text([token])
    top = ((token, word, -0.5),) if sampling.logprobs else ()
    return (TokenLogprob(token_id=token, token=word, logprob=-0.5, top=top),)
