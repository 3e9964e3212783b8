"""The load, drawn whole from a seed: which latency jobs come when, how long every prompt and answer is."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec import Struct


class Shape(Struct, frozen=True, kw_only=True):
    """How much is asked, of what lengths. Tokens, jobs per second, milliseconds."""

    rate: float
    """Latency jobs per second: Poisson, whatever the engine does."""
    latency_prompts: tuple[int, ...]
    latency_answers: tuple[int, ...]
    prompts: tuple[int, ...]
    """Of throughput jobs. Each length is as likely as the others."""
    answers: tuple[int, ...]
    ttft_ms: int
    """Targets of latency jobs, which goodput counts."""
    tpot_ms: int


SHAPES = {
    # Chat-like turns beside a batch, for two cores: about 1.5 throughput jobs a second, and 0.1 s for a short prompt.
    "small": Shape(
        rate=1.0,
        latency_prompts=(24, 48, 96),
        latency_answers=(8, 16, 24),
        prompts=(64, 128, 256),
        answers=(32, 64, 96),
        ttft_ms=500,
        tpot_ms=200,
    ),
    # The flood and the probes that were measured on an H200 with a 7B, and the targets of the simulator.
    "large": Shape(
        rate=8.0,
        latency_prompts=(128,),
        latency_answers=(16,),
        prompts=(256, 512, 1024),
        answers=(64, 128, 256),
        ttft_ms=200,
        tpot_ms=50,
    ),
}


class Size(Struct, frozen=True):
    """Tokens of a prompt and of its answer."""

    prompt: int
    answer: int


class Arrival(Struct, frozen=True):
    """A latency job. `at`: seconds from the beginning of what is judged, negative while the engine fills up."""

    at: float
    size: Size


def arrivals(shape: Shape, seed: int, ramp_s: float, seconds: float) -> list[Arrival]:
    """The latency jobs of a run, from `-ramp_s` to `seconds`; every policy of a seed meets the same."""
    rng = Random(f"latency {seed}")
    found: list[Arrival] = []
    at = -ramp_s
    while shape.rate > 0 and (at := at + rng.expovariate(shape.rate)) < seconds:
        size = Size(rng.choice(shape.latency_prompts), rng.choice(shape.latency_answers))
        found.append(Arrival(at, size))
    return found


def backlog(shape: Shape, seed: int) -> Iterator[Size]:
    """Throughput jobs in their order, without end; every policy of a seed meets the same."""
    rng = Random(f"throughput {seed}")
    while True:
        yield Size(rng.choice(shape.prompts), rng.choice(shape.answers))


def prompt_ids(run: str, number: int, tokens: int, vocabulary: int) -> tuple[int, ...]:
    """A prompt that no other run and no other number has, so that no prefix cache serves it."""
    rng = Random(f"{run} {number}")
    return tuple(rng.randrange(vocabulary) for _ in range(tokens))
