"""vLLM's account of its steps, kept as the port wants it."""

from __future__ import annotations

from typing import Any

from laneway.worker.ports import EngineStats


class StatsKeeper:
    """Adds up what vLLM reports after each step; `record` costs some microseconds."""

    def __init__(self) -> None:
        self._running = 0
        self._waiting = 0
        self._kv_usage = 0.0
        self._steps = 0
        self._generated = 0
        self._queries = 0
        self._hits = 0
        self._preemptions = 0

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
        )
