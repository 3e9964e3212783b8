"""`laneway bench overhead` runs a whole worker beside direct calls of its engine."""

import json
from argparse import ArgumentParser

import pytest

from laneway.worker.bench import overhead


def test_both_ways_do_the_same_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """Every job completes both ways, and the server's part is measured, not guessed."""
    parser = ArgumentParser()
    overhead.configure(parser)
    words = ["--engine", "fake", "--model", "fake", "--trials", "3", "--rounds", "1", "--json"]
    assert overhead.run(parser.parse_args(words)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["worker_ttft_ms"] > told["direct_ttft_ms"] > 0
    assert told["hop_ms"] > 0
    assert told["trip_ms"] > 0
    assert len(told["direct_jobs_s"]) == len(told["worker_jobs_s"]) == 1


def test_no_trials_are_no_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    """A number below one is wrong usage."""
    parser = ArgumentParser()
    overhead.configure(parser)
    assert overhead.run(parser.parse_args(["--trials", "0"])) == 2
    assert "expected at least 1" in capsys.readouterr().err
