"""From vLLM's outputs to pieces. vLLM itself is not needed for it: only the attributes are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from laneway.schemas.outcome import TokenLogprob
from laneway.worker.ports import Piece

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
