"""One answer of a job while it grows."""

from __future__ import annotations

from laneway.schemas.outcome import Choice, TokenLogprob
from laneway.worker.ports import Piece

NATURAL_ENDS = frozenset({"stop", "length"})
"""Finish reasons of a completion. Whatever else an engine says, above all `abort`, is none."""


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

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return len(self._token_ids)

    def choice(self) -> Choice:
        """What there is of it, for an outcome."""
        reason = self.last.finish_reason
        return Choice(
            index=self.last.index,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            finish_reason=reason if reason in NATURAL_ENDS else None,
            stop_reason=self.last.stop_reason,
            logprobs=tuple(self._logprobs) or None,
        )
