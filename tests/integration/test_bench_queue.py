"""`laneway bench queue`: the race is fair, and a figure means that every job was done."""

import asyncio
import json
from argparse import ArgumentParser
from pathlib import Path

import pytest
import redis

from laneway.worker.bench.queue import command, race
from laneway.worker.bench.queue.race import BenchFailed, Figure, find_peers, run_once, some_server


def test_every_queue_does_the_same_jobs_and_stores_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each peer that is installed finishes each round; the figures name server and releases."""
    parser = ArgumentParser()
    command.configure(parser)
    words = ["--jobs", "96", "--rounds", "1", "--json", "--environments", str(tmp_path)]
    assert command.run(parser.parse_args(words)) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    done = {(row["peer"], row["batch"]): row["jobs"] for row in report["figures"]}
    assert done == {("laneway", 1): 24, ("arq", 1): 24, ("laneway", 32): 96, ("arq", 32): 96}
    assert all(row["median"] > 0 for row in report["figures"])
    assert report["about"][0].startswith("valkey ")
    assert "saq is left out" in err


def test_a_database_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """Rounds are separated by FLUSHDB, which must not meet anybody's data."""
    with some_server(None) as url, redis.Redis.from_url(url) as client:
        client.set("somebody", "else")
        with pytest.raises(BenchFailed, match="not empty"), some_server(url):
            pass
        assert client.get("somebody") == b"else"


def test_a_peer_that_ends_early_gives_no_figure(tmp_path: Path) -> None:
    """A crash is told; it is never a fast round."""
    (ours, *_), _ = find_peers(tmp_path)
    broken = race.Peer("broken", "no_such_peer", ours.python, ())
    with some_server(None) as url, pytest.raises(BenchFailed, match="broken worker ended"):
        asyncio.run(run_once(url, broken, 1, 1))


def test_the_table_compares_medians() -> None:
    """One slow round does not decide; the ratio is how many times ours is faster."""
    figures = [
        Figure("laneway", 32, 100, (10.0, 200.0, 220.0)),
        Figure("other", 32, 100, (90.0, 100.0, 400.0)),
    ]
    rows = [line.split() for line in command.render(figures).splitlines()[2:]]
    assert [(row[1], row[2], row[-1]) for row in rows] == [
        ("laneway", "200", "1.00"),
        ("other", "100", "2.00"),
    ]
