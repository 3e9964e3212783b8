"""`laneway jobs show`."""

from __future__ import annotations

import argparse
from typing import Any

from laneway.producer.board import JobStatus
from laneway.producer.cli.options import add_connection
from laneway.producer.cli.session import length, print_facts, print_json, when, with_producer
from laneway.producer.client import Producer
from laneway.producer.waiting import why
from laneway.schemas.command import Command
from laneway.schemas.outcome import Failed, Timeline
from laneway.schemas.record import JobRecord
from laneway.schemas.state import FINAL_STATES, JobState

_STEPS = ("submitted", "claimed", "started", "first_token", "ended")


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="all that is known of a job, but its prompt and its answer")
    show.add_argument("id", help="what submit printed")
    add_connection(show)


def _show(options: argparse.Namespace) -> int:
    async def run(producer: Producer) -> int:
        status = await producer.status(options.id)
        cards = await producer.workers() if status.state in (JobState.QUEUED, JobState.CLAIMED) else ()
        facts = job_facts(status) | {"why": why(status, cards)}
        if options.json:
            print_json(facts)
        else:
            print_facts(_readable(facts))
        return 0

    return with_producer(options, run, listen=False)


def job_facts(status: JobStatus) -> dict[str, Any]:
    """What is known of the job, but its prompt and its answer. Times are milliseconds of Redis' clock; 0: not yet."""
    record = status.record or JobRecord(job_id=status.job_id)
    result = status.result
    timeline = result.timeline if result is not None else Timeline()
    times = {name: getattr(timeline, f"{name}_ms") or getattr(record, name, 0) for name in _STEPS}
    facts: dict[str, Any] = {
        "id": status.job_id,
        "state": status.state.value,
        "lane": record.lane,
        "owner": record.owner or (result.worker if result is not None else ""),
        "attempts": record.attempt or (result.attempt if result is not None else 0),
        "failures": record.failures,
        "losses": record.losses,
        "outputs": len(record.outputs.split()),
        "error": record.error,
        "message": "",
        "waited_ms": _waited(status, times),
        **{f"{name}_ms": value for name, value in times.items()},
    }
    if result is not None and isinstance(result.outcome, Failed):
        facts |= {"error": result.outcome.error.code, "message": result.outcome.error.message}
    return facts


def _waited(status: JobStatus, times: dict[str, int]) -> int:
    """Milliseconds from acceptance to the latest claim, to the end of a job that nobody claimed, or until now."""
    living = status.state not in FINAL_STATES
    rests = living and status.state.value in ("queued", "retrying")
    until = (0 if rests else times["claimed"]) or (status.seen_ms if living else times["ended"])
    return max(0, until - times["submitted"]) if times["submitted"] and until else 0


def _readable(facts: dict[str, Any]) -> dict[str, Any]:
    submitted = facts["submitted_ms"]
    readable = {
        name: facts[name]
        for name in ("id", "state", "lane", "owner", "attempts", "failures", "losses", "outputs")
    }
    readable["error"] = f"{facts['error']}: {facts['message']}" if facts["message"] else facts["error"]
    readable["waited"] = length(facts["waited_ms"]) if submitted else ""
    readable["why it waits"] = facts["why"]
    for name in _STEPS:
        ms = facts[f"{name}_ms"]
        after = f"  (+ {length(ms - submitted)})" if submitted and name != "submitted" else ""
        readable[name.replace("_", " ")] = f"{when(ms)}{after}" if ms else ""
    return readable


JOBS = Command("jobs", "show what is known of a job: attempts, owner, times", _configure, _show)
