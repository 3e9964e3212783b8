"""worker/README.md tells what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from laneway.worker import telemetry
from laneway.worker.app import EXIT_CODES
from laneway.worker.metrics import Metrics
from laneway.worker.settings import WorkerSettings, option_docs

README = (Path(__file__).parents[3] / "worker" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WorkerSettings.__struct_fields__)
def test_every_option_is_in_the_table(name: str) -> None:
    """With the words of its docstring."""
    assert option_docs()[name] in README


def test_every_series_is_in_the_table() -> None:
    """By the name under which it is scraped."""
    for family in Metrics(CollectorRegistry()).registry.collect():
        assert f"`{family.name}" in README, family.name


def test_every_event_is_in_the_table() -> None:
    """Row by row, as the module has them."""
    rows = [line for line in (telemetry.__doc__ or "").splitlines() if line.startswith("|")]
    assert len(rows) > 10
    for row in rows:
        assert row in README


def test_every_exit_code_is_in_the_table() -> None:
    """Scripts and people look them up."""
    for code, why in EXIT_CODES.items():
        assert f"| {code} | {why} |" in README
