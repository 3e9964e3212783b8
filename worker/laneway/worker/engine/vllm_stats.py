"""vLLM's account of its steps, kept as the port wants it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from laneway.worker.ports import EngineStats, StepSums


class StatsKeeper:
    """Adds up what vLLM reports after each step; `record` costs some microseconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` times the steps, in seconds."""
        self._clock = clock
        self._since: float | None = None
        """When the step that runs began; None: none does, or it is not known."""
        self._timed = 0
        self._seconds = 0.0
        self._prefill = 0
        self._decodes = 0
        self._kv_sum = 0.0
        self._running = 0
        self._waiting = 0
        self._kv_usage = 0.0
        self._steps = 0
        self._generated = 0
        self._queries = 0
        self._hits = 0
        self._preemptions = 0

    def began(self, *, alone: bool) -> None:
        """A run goes in. `alone`: nothing else is in the engine, so a step begins now."""
        if alone:
            self._since = self._clock()

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Take in vLLM's `SchedulerStats` and `IterationStats`, each of which may be None."""
        if scheduler is not None:
            self._steps += 1
            self._running = scheduler.num_running_reqs
            self._waiting = scheduler.num_waiting_reqs + getattr(scheduler, "num_skipped_waiting_reqs", 0)
            self._kv_usage = scheduler.kv_cache_usage
            self._queries += scheduler.prefix_cache_stats.queries
            self._hits += scheduler.prefix_cache_stats.hits
        if iteration is not None:
            self._generated += iteration.num_generation_tokens
            self._preemptions += iteration.num_preempted_reqs
        if scheduler is not None:
            self._time(scheduler, iteration)

    def _time(self, scheduler: Any, iteration: Any) -> None:
        now, since = self._clock(), self._since
        self._since = now if self._running or self._waiting else None
        if since is None:
            return
        self._timed += 1
        self._seconds += now - since
        self._kv_sum += scheduler.kv_cache_usage
        if iteration is not None:
            firsts = len(iteration.time_to_first_tokens_iter)
            by_source = getattr(iteration, "prompt_token_stats", None)
            self._prefill += by_source.computed if by_source is not None else iteration.num_prompt_tokens
            self._decodes += max(0, iteration.num_generation_tokens - firsts)

    def stats(self) -> EngineStats:
        """The account so far."""
        return EngineStats(
            running=self._running,
            waiting=self._waiting,
            kv_usage=self._kv_usage,
            steps=self._steps,
            generated_tokens=self._generated,
            prefix_queries=self._queries,
            prefix_hits=self._hits,
            preemptions=self._preemptions,
            timed=StepSums(
                steps=self._timed,
                seconds=self._seconds,
                prefill=self._prefill,
                decodes=self._decodes,
                kv_usage=self._kv_sum,
            ),
        )
