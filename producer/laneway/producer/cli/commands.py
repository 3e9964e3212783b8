"""`laneway submit | result | status | cancel`, and the list of all commands of the producer."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from laneway.producer.board import JobStatus
from laneway.producer.cli.dead_letters import DLQ
from laneway.producer.cli.jobs import JOBS
from laneway.producer.cli.options import add_connection, read_json, read_text, seconds
from laneway.producer.cli.session import print_json, with_producer
from laneway.producer.client import Producer
from laneway.producer.errors import ResultTimeout
from laneway.producer.fields import JobFields
from laneway.schemas.command import Command
from laneway.schemas.errors import UsageError
from laneway.schemas.events import Restarted, Tokens
from laneway.schemas.outcome import Completed, Failed, Result
from laneway.schemas.state import JobState

_FOR_EVER = float("inf")


def _configure_submit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="text, @file, or - for standard input (default when piped)")
    parser.add_argument("--messages", metavar="JSON", help="a conversation instead of a prompt; also @file")
    parser.add_argument("--model", default="demo", help="default: demo")
    parser.add_argument(
        "--slo", choices=("latency", "throughput"), default="latency", help="default: latency"
    )
    parser.add_argument("--lora", metavar="ID", help="adapter that answers")
    parser.add_argument("--max-tokens", type=int, metavar="N")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument(
        "--deadline", type=seconds, metavar="DURATION", help="give up after, such as 90s or 5m"
    )
    parser.add_argument("--idempotency-key", metavar="KEY", help="submit once, however often this runs")
    parser.add_argument("--tenant", metavar="NAME")
    show = parser.add_mutually_exclusive_group()
    show.add_argument("--stream", action="store_true", help="print the answer as it comes")
    show.add_argument("--wait", action="store_true", help="print the answer when it is complete")
    add_connection(parser)


def _submit(options: argparse.Namespace) -> int:
    fields = _fields(options)

    async def run(producer: Producer) -> int:
        job = await producer.submit(**fields)
        if options.stream:
            return await _follow(producer, job.id, options.json)
        if options.wait:
            return await _await(producer, job.id, _FOR_EVER, options.json)
        if options.json:
            print_json({"id": job.id, "duplicate": job.duplicate})
        else:
            print(job.id)
        return 0

    return with_producer(options, run, listen=options.stream or options.wait)


def _fields(options: argparse.Namespace) -> JobFields:
    if options.messages is not None and options.prompt is not None:
        raise UsageError("messages: expected either a prompt or --messages, got both")
    fields = JobFields(model=options.model, slo=options.slo, lora=options.lora, tenant=options.tenant)
    if options.messages is not None:
        fields["messages"] = read_json(options.messages, "messages")
    else:
        fields["prompt"] = read_text(options.prompt, "prompt")
    sampling = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    fields["sampling"] = {name: value for name, value in sampling.items() if value is not None}
    if options.deadline is not None:
        fields["deadline_ms"] = round(options.deadline * 1000)
    fields["idempotency_key"] = options.idempotency_key
    fields["stream"] = options.stream
    return fields


def _configure_result(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="what submit printed")
    parser.add_argument(
        "--wait", nargs="?", type=seconds, const=_FOR_EVER, default=0.0, metavar="DURATION",
        help="wait for the end of the job, for ever or for such as 30s; default: do not wait",
    )  # fmt: skip
    add_connection(parser)


def _result(options: argparse.Namespace) -> int:
    return with_producer(options, lambda producer: _await(producer, options.id, options.wait, options.json))


def _configure_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="what submit printed")
    add_connection(parser)


def _status(options: argparse.Namespace) -> int:
    async def run(producer: Producer) -> int:
        status = await producer.status(options.id)
        if options.json:
            print_json(_plain_status(status))
        else:
            print("\n".join(f"{name:9} {value}" for name, value in _plain_status(status).items() if value))
        return 0

    return with_producer(options, run)


def _plain_status(status: JobStatus) -> dict[str, Any]:
    record = status.record
    plain: dict[str, Any] = {"id": status.job_id, "state": status.state.value}
    if record is not None:
        for name in (
            "lane",
            "attempt",
            "failures",
            "owner",
            "submitted",
            "claimed",
            "started",
            "ended",
            "error",
        ):
            plain[name] = getattr(record, name)
    return plain


def _cancel(options: argparse.Namespace) -> int:
    async def run(producer: Producer) -> int:
        state = await producer.cancel(options.id)
        if options.json:
            print_json({"id": options.id, "state": state.value})
        else:
            print(state.value)
        return 0

    return with_producer(options, run)


async def _await(producer: Producer, job_id: str, wait: float, as_json: bool) -> int:
    if wait == 0:
        status = await producer.status(job_id)
        if status.result is None:
            print(f"laneway: job {job_id} is {status.state.value}", file=sys.stderr)
            return 1
        result = status.result
    else:
        result = await _interruptible(producer, job_id, None if wait == _FOR_EVER else wait)
    if as_json:
        print_json(result)
    elif result.text or result.state is JobState.COMPLETED:
        print(result.text)
    return _exit_code(result)


async def _interruptible(producer: Producer, job_id: str, timeout: float | None) -> Result:
    try:
        return await producer.result(job_id, timeout)
    except (asyncio.CancelledError, ResultTimeout):
        print(f"laneway: the job goes on; `laneway cancel {job_id}` stops it", file=sys.stderr)
        raise


async def _follow(producer: Producer, job_id: str, as_json: bool) -> int:
    async for event in producer.stream(job_id):
        if as_json:
            print_json(event)
        elif isinstance(event, Tokens):
            print(event.text, end="", flush=True)
        elif isinstance(event, Restarted):
            print("\nlaneway: the worker was lost, the answer starts anew", file=sys.stderr)
    if not as_json:
        print()
    return _exit_code(await producer.result(job_id))


def _exit_code(result: Result) -> int:
    match result.outcome:
        case Completed():
            return 0
        case Failed(error=error):
            print(f"laneway: the job failed: {error.message} ({error.code})", file=sys.stderr)
        case _:
            print(f"laneway: the job was {result.state.value}", file=sys.stderr)
    return 1


COMMANDS = (
    Command("submit", "put one job into the queue", _configure_submit, _submit),
    Command("result", "print the answer of a job", _configure_result, _result),
    Command("status", "say where a job is", _configure_id, _status),
    Command("cancel", "stop a job, wherever it is", _configure_id, _cancel),
    JOBS,
    DLQ,
)
