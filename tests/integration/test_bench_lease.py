"""`laneway bench lease`: small, but with a real server and real kills."""

from __future__ import annotations

import pytest
from tests.support.servers import binaries

from laneway.worker.bench.lease import measure, render

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]


async def test_every_figure_is_measured() -> None:
    """A killed worker's job runs elsewhere after a while that is no shorter than what is left of its lease."""
    found = binaries()
    if not found:
        pytest.skip("no server: neither laneway[embedded] nor /usr/bin/redis-server is installed")
    figures = await measure(next(iter(found.values())), lease_s=1.0, trials=1)
    assert figures.renewal_ms > 0
    assert [seconds > 0.5 for seconds in figures.kill_s] == [True]
    assert [seconds > 0 for seconds in figures.cancel_s] == [True]
    assert "renewal of 256 jobs" in render(figures)
