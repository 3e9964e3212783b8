"""The language of the fake engine: what a prompt is to it, and what it answers.

Every token follows from all tokens before it, the adapter and the seed. A test can therefore tell an answer in
advance, and an answer that is continued from its own beginning ends as if it had never been cut.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence

_SPELLED = (
    "amber basin cedar delta ember fjord grove haven inlet jetty kayak larch maple north ocean perch "
    "quill ridge shore thyme umber vista water xenon yucca zebra acorn birch cloud dune eagle fern "
    "gull heath iris juniper kelp lagoon moss nest oak pine quartz reed sand tide urchin vale "
    "willow yarrow aspen brook cliff drift elm frost glade hill isle jade knoll lake marsh night"
)
WORDS = tuple(_SPELLED.split(" "))
"""Tokens 0 to 63: what answers are made of."""

_PIECE = re.compile(r"\s?[^\s]{1,5}|\s")
_MASK = (1 << 64) - 1


def tokenise(text: str, vocabulary: int) -> tuple[int, ...]:
    """About one token for four characters; none of them below 64, so prompts and answers differ."""
    room = vocabulary - len(WORDS)
    return tuple(len(WORDS) + zlib.crc32(piece.encode()) % room for piece in _PIECE.findall(text))


def fake_text(token_ids: Iterable[int]) -> str:
    """The text of an answer: each token is a blank and a word."""
    return "".join(f" {WORDS[token % len(WORDS)]}" for token in token_ids)


def fake_answer(
    prompt_token_ids: Sequence[int],
    max_tokens: int,
    *,
    adapter: str = "",
    seed: int | None = None,
    index: int = 0,
    allowed: Sequence[int] = (),
) -> tuple[int, ...]:
    """The `max_tokens` token ids that the fake engine answers with.

    Args:
        adapter: the adapter's digest, or its id where it has none; empty for the base model.
        index: which of the `n` answers.
        allowed: `allowed_token_ids` of the job; empty allows all.
    """
    chain = Chain(prompt_token_ids, adapter=adapter, seed=seed, index=index, allowed=allowed)
    return tuple(chain.next() for _ in range(max_tokens))


class Chain:
    """Draws the tokens of one answer, one by one."""

    def __init__(
        self, prompt: Iterable[int], *, adapter: str, seed: int | None, index: int, allowed: Sequence[int]
    ) -> None:
        self._allowed = tuple(allowed)
        self._salt = _mix(zlib.crc32(adapter.encode()), (seed or 0) * 64 + index)
        self._state = 0
        for token in prompt:
            self._state = _mix(self._state, token)

    def next(self) -> int:
        """The token that follows."""
        drawn = _mix(self._state, self._salt) >> 16
        token = self._allowed[drawn % len(self._allowed)] if self._allowed else drawn % len(WORDS)
        self._state = _mix(self._state, token)
        return token


def _mix(state: int, value: int) -> int:
    state = ((state ^ (value & _MASK)) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
    return state ^ (state >> 29)
