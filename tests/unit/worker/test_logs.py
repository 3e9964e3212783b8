"""What a log line holds, and what it never does."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from laneway.worker import logs
from laneway.worker.telemetry import Telemetry

CANARY = "canary-7f3a"


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_fact_is_one_line_of_json() -> None:
    """Its name, what it says and nothing that is empty."""
    stream = io.StringIO()
    telemetry = Telemetry(logs.listener(logs.configure("json", "info", stream), "w-1"))
    telemetry.tell(
        "job.settled", job_id="j", slo="latency", outcome="completed", seconds=1.25, output_tokens=3
    )
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "job.settled", "level": "info", "worker": "w-1", "job_id": "j", "slo": "latency",
        "outcome": "completed", "seconds": 1.25, "output_tokens": 3,
    }  # fmt: skip


def test_what_happens_to_every_job_is_for_debugging() -> None:
    """At the default level a job is one line: how it ended."""
    stream = io.StringIO()
    telemetry = Telemetry(logs.listener(logs.configure("json", "info", stream), "w"))
    for event in ("job.claimed", "job.started", "job.first_token", "job.settled"):
        telemetry.tell(event)
    assert [line["event"] for line in lines(stream)] == ["job.settled"]


def test_console_lines_are_for_people() -> None:
    """The same facts as text; no colours where nobody sees them."""
    stream = io.StringIO()
    logs.configure("console", "info", stream).info("worker.ready", seats=16)
    assert "worker.ready" in stream.getvalue()
    assert "seats=16" in stream.getvalue()
    assert "\x1b[" not in stream.getvalue()


def test_credentials_of_a_url_are_hidden_wherever_it_stands() -> None:
    """An error may quote the server's address: its password is cut out."""
    stream = io.StringIO()
    log = logs.configure("json", "info", stream)
    log.warning("queue.unavailable", reason=f"no answer from redis://me:{CANARY}@host:6379/0 in time")
    assert CANARY not in stream.getvalue()
    assert "host:6379" in stream.getvalue()


def test_an_unexpected_exception_is_told_without_its_text() -> None:
    """Its text may quote a prompt; its type and the lines it passed do not."""
    stream = io.StringIO()
    write = logs.exception_writer(logs.configure("json", "info", stream))
    with pytest.raises(ValueError, match=CANARY) as caught:
        int(CANARY)
    write(None, {"message": CANARY, "exception": caught.value})
    assert CANARY not in stream.getvalue()
    (line,) = lines(stream)
    assert line["error"] == "ValueError"
    assert "test_logs.py" in line["where"][0]
