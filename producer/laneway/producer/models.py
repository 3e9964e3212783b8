"""What is known of the served models, and what can be refused at submit because of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from laneway.producer.errors import DeadlineInfeasible, QueueUnavailable, UnknownModel
from laneway.producer.link import Link
from laneway.schemas.cards import ModelCard
from laneway.schemas.errors import InvalidJob, UnreadableEntry
from laneway.schemas.job import Job, TokenIds
from laneway.schemas.keys import Keys
from laneway.schemas.wire import decode_model

_FRESH_S = 1.0
"""A model that is missing from what is known is looked for again, at most this often."""


class ModelCatalog:
    """The cards of all models under a namespace, read again when they are older than `model_cache_s`."""

    def __init__(self, link: Link, keys: Keys, cache_s: float, check: bool, *, offline: bool = False) -> None:
        """`offline`: where the server cannot be asked, what was last known counts."""
        self._link = link
        self._key = keys.models
        self._cache_s = cache_s
        self._check = check
        self._offline = offline
        self._cards: Mapping[str, ModelCard] = {}
        self._read_at = -float("inf")
        self._lock = asyncio.Lock()

    async def card(self, model: str) -> ModelCard:
        """What is known of `model`; a card without any knowledge where it need not be known.

        Raises:
            UnknownModel: others are served here, it is not.
            QueueUnavailable: the server could not be asked.
        """
        cards = await self._read(self._cache_s)
        if model not in cards and cards:
            cards = await self._read(min(self._cache_s, _FRESH_S))
        if model in cards:
            return cards[model]
        if self._check and cards:
            raise UnknownModel(model, cards)
        return ModelCard(name=model)

    async def all(self) -> list[ModelCard]:
        """The cards of all models that were ever served here. Raises `QueueUnavailable`."""
        return list((await self._read(min(self._cache_s, _FRESH_S))).values())

    async def _read(self, oldest: float) -> Mapping[str, ModelCard]:
        async with self._lock:
            if time.monotonic() - self._read_at >= oldest:
                try:
                    self._cards = _cards(await self._link.ask("HVALS", self._key))
                except QueueUnavailable:
                    if not self._offline:
                        raise
                self._read_at = time.monotonic()
            return self._cards


def _cards(values: list[bytes]) -> Mapping[str, ModelCard]:
    cards: dict[str, ModelCard] = {}
    for value in values:
        try:
            card = decode_model(value)
        except UnreadableEntry:
            continue  # a newer release's card: its model is simply not known here
        cards[card.name] = card
    return cards


def check_against(card: ModelCard, job: Job) -> None:
    """Refuse what the model cannot hold, as far as its card says.

    Raises:
        InvalidJob: a token id outside the vocabulary, or a counted prompt that leaves no room for an answer.
    """
    context = card.context_tokens
    if context and job.prompt_counted and job.prompt_tokens >= context:
        raise InvalidJob("prompt", f"at most {context - 1} tokens for {card.name}", job.prompt_tokens)
    if not card.vocabulary:
        return
    sampling = job.sampling
    for field, ids in (
        ("prompt_token_ids", job.payload.ids if isinstance(job.payload, TokenIds) else ()),
        ("sampling.stop_token_ids", sampling.stop_token_ids),
        ("sampling.allowed_token_ids", sampling.allowed_token_ids or ()),
        ("sampling.logit_bias", sampling.logit_bias or ()),
    ):
        if ids and (worst := max(ids)) >= card.vocabulary:
            raise InvalidJob(
                field, f"token ids below {card.vocabulary}, the vocabulary of {card.name}", worst
            )


def check_deadline(card: ModelCard, job: Job) -> None:
    """Refuse a deadline that no worker can meet: the counted prompt and `min_tokens` are reckoned with, no guesses.

    Raises:
        DeadlineInfeasible.
    """
    if job.deadline_ms is None or card.floor is None:
        return
    prompt = job.prompt_tokens if job.prompt_counted else 0
    least_ms = round(1000 * card.floor.seconds(prompt, job.sampling.min_tokens))
    if job.deadline_ms < least_ms:
        raise DeadlineInfeasible(card.name, least_ms, job.deadline_ms)
