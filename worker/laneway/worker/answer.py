"""One answer of a job while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from laneway.schemas.outcome import Choice, TokenLogprob
from laneway.schemas.record import Kept
from laneway.worker.ports import Piece

NATURAL_ENDS = frozenset({"stop", "length"})
"""Finish reasons of a completion. Whatever else an engine says, above all `abort`, is none."""


def natural_end(piece: Piece) -> str | None:
    """The finish reason of a piece, where it is one of a completion."""
    return piece.finish_reason if piece.finish_reason in NATURAL_ENDS else None


def to_keep(piece: Piece, attempt: int, first_token_ms: int = 0, lora_digest: str = "") -> Kept:
    """A piece as it is kept for later attempts; the two last are told with the first one of an answer."""
    return Kept(
        attempt=attempt,
        text=piece.text,
        token_ids=piece.token_ids,
        finish_reason=natural_end(piece),
        stop_reason=piece.stop_reason,
        first_token_ms=first_token_ms,
        lora_digest=lora_digest,
    )


class Answer:
    """One of the `n` answers of a job, growing piece by piece."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self.last: Piece = Piece()

    def add(self, piece: Piece) -> None:
        """Append what a step brought."""
        self._text.append(piece.text)
        self._token_ids += piece.token_ids
        self._logprobs += piece.logprobs or ()
        self.last = piece

    @classmethod
    def restored(cls, kept: Sequence[Kept]) -> Self:
        """As far as earlier attempts came."""
        answer = cls()
        for event in kept:
            answer.add(
                Piece(
                    text=event.text,
                    token_ids=event.token_ids,
                    finish_reason=event.finish_reason,
                    stop_reason=event.stop_reason,
                )
            )
        return answer

    @property
    def token_ids(self) -> Sequence[int]:
        """Tokens so far."""
        return self._token_ids

    def choice(self) -> Choice:
        """What there is of it, for an outcome."""
        return Choice(
            index=self.last.index,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            finish_reason=natural_end(self.last),
            stop_reason=self.last.stop_reason,
            logprobs=tuple(self._logprobs) or None,
        )
