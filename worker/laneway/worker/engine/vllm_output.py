"""From vLLM's outputs to pieces. vLLM itself is not needed for it: only the attributes are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from laneway.schemas.outcome import TokenLogprob
from laneway.worker.ports import Piece, Prepared

FLOOR = -9999.0
"""Stands for a log-probability of minus infinity, which JSON cannot hold."""


def pieces(output: Any) -> tuple[Piece, ...]:
    """What a `RequestOutput` in delta mode adds to the answers of its job."""
    cached = output.num_cached_tokens or 0
    return tuple(
        Piece(
            index=answer.index,
            text=answer.text,
            token_ids=tuple(answer.token_ids),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            logprobs=_logprobs(answer.token_ids, answer.logprobs),
            cached_tokens=cached,
        )
        for answer in output.outputs
    )


class Seam:
    """Gives an answer that goes on from tokens of its own the texts that it would have had without the cut.

    vLLM takes those tokens for prompt. Where they end within a character, its text after the cut would be wrong.
    """

    def __init__(self, detokenizer: Any, prepared: Prepared) -> None:
        """`detokenizer` is vLLM's own, made for the prompt without the answer's beginning."""
        self._detokenizer = detokenizer
        self._next(prepared.prompt_token_ids[-prepared.generated :])

    def mend(self, pieces: Iterable[Piece]) -> tuple[Piece, ...]:
        """The pieces of the one answer, with their texts."""
        return tuple(
            replace(piece, text=self._next(piece.token_ids, piece.finish_reason)) for piece in pieces
        )

    def _next(self, token_ids: Iterable[int], finish_reason: str | None = None) -> str:
        # Such a job has no stop strings: a stop is a token, whose text does not belong to the answer.
        self._detokenizer.update(list(token_ids), finish_reason == "stop")
        text: str = self._detokenizer.get_next_output_text(finish_reason is not None, True)
        return text


def _logprobs(
    token_ids: Iterable[int], table: list[Mapping[int, Any]] | None
) -> tuple[TokenLogprob, ...] | None:
    if table is None:
        return None
    return tuple(_logprob(token, at) for token, at in zip(token_ids, table, strict=False))


def _logprob(token: int, at: Mapping[int, Any]) -> TokenLogprob:
    own = at[token]
    ranked = sorted(at.items(), key=lambda item: item[1].rank or 0)
    return TokenLogprob(
        token_id=token,
        token=own.decoded_token or "",
        logprob=max(FLOOR, own.logprob),
        top=tuple((other, it.decoded_token or "", max(FLOOR, it.logprob)) for other, it in ranked),
    )
