"""Who is to blame when an engine dies with many jobs in it: nobody, until it dies with one job alone, again.

A job that was in hand at a crash is a *suspect*. One crash proves nothing (nodes vanish, pods are killed), so the
job runs again among others. From the second crash on, suspects run in groups that have an engine to themselves and
shrink fourfold each time, down to one. What happens to a job alone is evidence, and nothing else is: a bystander
leaves the quarantine by completing in a smaller group.
"""

from __future__ import annotations

SUSPECT = 2
"""Crashes with a job in hand that make it a suspect."""

UNBEGUN = 3
"""Leases that lapse before the attempt has begun, as far as anybody noted, and count as one crash: a reply was lost, or
the job took its worker down before the note got out. A suspect is noted before anything is done with it."""

GROUPS = (8, 2, 1)
"""Suspects that share an engine at the second, third, and every later crash. From batches of 32, three crashes
isolate a killer; halving instead (16, 8, 4, 2, 1) takes five, and every crash costs an engine start of 30 to 120 s."""

SEEN = 3
"""Weight of an engine that a worker saw die with the job alone in it. Chance can do that once: a host may kill any
process, and what an aborted job left behind may still run."""

SILENT = 1
"""Weight of a worker that fell silent with the job alone in hand: an operator's `kill -9`, the loss of a node or a
freeze past the lease look the same. It weighs nothing where the attempt had not begun, or had got further with its answer
than any before: who goes on is not what kills."""

PROOF = 6
"""Weight that condemns: two deaths seen, or six silent ones."""


def group_size(losses: int) -> int | None:
    """How many jobs with that many losses may share an engine that runs nothing else; None: no restriction."""
    if losses < SUSPECT:
        return None
    return GROUPS[min(losses - SUSPECT, len(GROUPS) - 1)]


def is_guilty(evidence: int) -> bool:
    """Whether a job is to be dead-lettered. `evidence`: the weights of what happened while it was alone, added up."""
    return evidence >= PROOF
