"""Engines for the conformance suite, each with what a test must know of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.builders import make_job

from laneway.schemas.ids import AdapterId
from laneway.schemas.job import Job
from laneway.worker.ports import Adapter, Engine, Piece

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0.0, "max_tokens": 12}


@dataclass
class Bench:
    """A running engine, two adapters that it can load, and the ways to use both."""

    engine: Engine
    adapters: dict[str, Path]
    kind: str
    _count: int = 0
    _canary: str = ""

    async def load(self, name: str) -> None:
        """Load one of the two adapters."""
        await self.engine.load_adapter(
            Adapter(id=AdapterId(name), path=str(self.adapters[name]), digest=name)
        )

    async def run(self, job: Job, *, priority: int = 0, name: str | None = None) -> Answers:
        """Run a job to its end."""
        stream = self.open(job, priority=priority, name=name)
        return Answers([pieces async for pieces in stream])

    def open(self, job: Job, *, priority: int = 0, name: str | None = None) -> Any:
        """The stream of a job's pieces."""
        self._count += 1
        name = name or f"run-{self._count}"

        async def stream() -> Any:
            prepared = await self.engine.prepare(job)
            inner: Any = self.engine.generate(name, prepared, priority)
            try:
                async for pieces in inner:
                    yield pieces
            finally:
                await inner.aclose()

        return stream()

    async def canary(self) -> str:
        """A greedy answer to a fixed prompt. It must be the same each time, whatever ran before or runs beside it."""
        text = (await self.run(greedy())).text()
        self._canary = self._canary or text
        assert text == self._canary
        return text

    async def empty(self) -> None:
        """Return when nothing runs in the engine, by its own account."""
        async with asyncio.timeout(60):
            while True:
                await self.canary()  # vLLM tells its state only with a step
                if self.engine.stats().running == 0 and self.engine.stats().waiting == 0:
                    return
                await asyncio.sleep(0.01)


class Answers:
    """All that a run brought."""

    def __init__(self, steps: Sequence[Sequence[Piece]]) -> None:
        self.steps = steps
        self.pieces = [piece for pieces in steps for piece in pieces]

    def of(self, index: int = 0) -> list[Piece]:
        """The pieces of one answer."""
        return [piece for piece in self.pieces if piece.index == index]

    def text(self, index: int = 0) -> str:
        """The text of one answer."""
        return "".join(piece.text for piece in self.of(index))

    def tokens(self, index: int = 0) -> tuple[int, ...]:
        """The token ids of one answer."""
        return tuple(token for piece in self.of(index) for token in piece.token_ids)

    def reason(self, index: int = 0) -> str | None:
        """How one answer ended."""
        return self.of(index)[-1].finish_reason


def greedy(**fields: Any) -> Job:
    """A greedy job: `PROMPT`, 12 tokens."""
    if not {"prompt_token_ids", "messages"} & fields.keys():
        fields.setdefault("prompt", PROMPT)
    return make_job(**{"sampling": GREEDY, **fields})


def endless(tokens: int = 400, **fields: Any) -> Job:
    """A job that keeps its seat for `tokens` steps."""
    return greedy(sampling={"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}, **fields)


def spoil(source: Path, target: Path, how: str) -> Path:
    """A copy of an adapter with one thing wrong."""
    target.mkdir(parents=True)
    config = json.loads((source / "adapter_config.json").read_text())
    weights = (source / "adapter_model.safetensors").read_bytes()
    if how == "rank":
        config["r"] = 4096
    if how == "whole modules":
        config["modules_to_save"] = ["lm_head"]
    if how == "cut off":
        weights = weights[: len(weights) // 2]
    if how != "no weights":
        (target / "adapter_model.safetensors").write_bytes(weights)
    text = "{" if how == "unreadable config" else json.dumps(config)
    (target / "adapter_config.json").write_text(text)
    return target
