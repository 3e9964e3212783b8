"""Who is to blame when an engine dies with many jobs in it: nobody, until it dies with one job alone.

A job that was in hand at a crash is a *suspect*. One crash proves nothing (nodes vanish, pods are killed), so the
job runs again among others. From the second crash on, suspects run in groups that have an engine to themselves and
shrink fourfold each time, down to one. Only a job that takes an engine down alone is dead-lettered: a bystander
leaves the quarantine by completing in a smaller group.
"""

from __future__ import annotations

SUSPECT = 2
"""Crashes with a job in hand that make it a suspect."""

GROUPS = (8, 2, 1)
"""Suspects that share an engine at the second, third, and every later crash. From batches of 32, three crashes
isolate a killer; halving instead (16, 8, 4, 2, 1) takes five, and every crash costs an engine start of 30 to 120 s."""

SILENT_ALONE = 3
"""Crashes alone that condemn a job when nobody saw the engine die: the worker itself vanished, which a node failure
or an operator's `kill -9` also explains. A death of the engine that the worker reports condemns at once."""


def group_size(losses: int) -> int | None:
    """How many jobs with that many losses may share an engine that runs nothing else; None: no restriction."""
    if losses < SUSPECT:
        return None
    return GROUPS[min(losses - SUSPECT, len(GROUPS) - 1)]


def is_guilty(alone: int, *, engine_death_seen: bool) -> bool:
    """Whether a job is to be dead-lettered. `alone`: crashes at which it had the engine to itself, the last included."""
    return alone >= (1 if engine_death_seen else SILENT_ALONE)
