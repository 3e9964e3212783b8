"""Who is to blame for a crash."""

from __future__ import annotations

import pytest

from laneway.worker.policy.quarantine import GROUPS, PROOF, SEEN, SILENT, SUSPECT, group_size, is_guilty


def test_groups_shrink_until_a_job_is_alone() -> None:
    """Below two crashes a job runs among any others; then among fewer each time, and never in company again."""
    assert [group_size(losses) for losses in range(SUSPECT)] == [None] * SUSPECT
    sizes = [group_size(SUSPECT + more) or 0 for more in range(len(GROUPS) + 20)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[len(GROUPS) - 1 :] == [1] * 21


@pytest.mark.parametrize(
    ("seen", "silent", "guilty"),
    [
        (0, 0, False),
        (1, 0, False),
        (2, 0, True),
        (1, 2, False),
        (1, 3, True),
        (0, 5, False),
        (0, 6, True),
    ],
)
def test_chance_condemns_nobody(seen: int, silent: int, guilty: bool) -> None:
    """One engine that died with the job alone in it may have been killed by its host, and a silent worker by anybody."""
    assert is_guilty(SEEN * seen + SILENT * silent) is guilty
    assert is_guilty(PROOF)
