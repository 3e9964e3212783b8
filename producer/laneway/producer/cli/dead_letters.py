"""`laneway dlq list | show | replay | purge`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from laneway.producer.cli.options import add_connection, seconds
from laneway.producer.cli.session import print_facts, print_json, when, with_producer
from laneway.producer.client import Producer
from laneway.producer.dead_letters import DeadLetter
from laneway.producer.errors import JobNotFound, LetterNotFound
from laneway.schemas.command import Command
from laneway.schemas.errors import UsageError
from laneway.schemas.outcome import Failed

_BATCH = 32  # letters purged per round trip; each is in memory until then


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="one line for each: id, when, error, attempts, lane")
    showing = actions.add_parser("show", help="one whole job, and why it ended here")
    showing.add_argument("--payload", action="store_true", help="the prompt too")
    replaying = actions.add_parser("replay", help="submit the job again, under a new id; prints that")
    purging = actions.add_parser("purge", help="delete letters for good")
    purging.add_argument("--yes", action="store_true", help="do it; without this only count")
    for action, run in ((listing, _list), (showing, _show), (replaying, _replay), (purging, _purge)):
        if action is not listing:
            several = action is not showing
            action.add_argument("id", nargs="?" if several else None, help="what submit printed, or list")
        if action in (replaying, purging):
            action.add_argument("--all", action="store_true", help="all of those chosen by what follows")
        if action is not showing:
            action.add_argument("--model", metavar="NAME", help="of this model only")
            action.add_argument("--error", metavar="CODE", help="with this error code only")
            action.add_argument(
                "--older", type=seconds, metavar="AGE", help="put aside longer ago than, such as 7d"
            )
        add_connection(action)
        action.set_defaults(_action=run)


def _run(options: argparse.Namespace) -> int:
    async def run(producer: Producer) -> int:
        code: int = await options._action(producer, options)  # noqa: SLF001 - argparse has no other place for it
        return code

    return with_producer(options, run, listen=False)


# --- list, show ----------------------------------------------------------------
async def _list(producer: Producer, options: argparse.Namespace) -> int:
    async for letter in _chosen(producer, options):
        if options.json:
            print_json(_line(letter))
        else:
            print(
                f"{letter.id}  {when(letter.at_ms)}  {letter.error:20}  {letter.attempts:>2}  {letter.lane}"
            )
    return 0


def _line(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "at_ms": letter.at_ms,
        "error": letter.error,
        "attempts": letter.attempts,
        "lane": letter.lane,
        "readable": letter.job is not None,
    }


async def _show(producer: Producer, options: argparse.Namespace) -> int:
    letter = await producer.dead_letter(options.id)
    facts = {**_line(letter), "message": await _message(producer, letter), "bytes": letter.size}
    if letter.job is None:
        facts["reason"] = letter.reason
    else:
        facts["job"] = _job(letter, payload=options.payload)
    if options.json:
        print_json(facts)
    else:
        del facts["readable"]
        facts["at"] = when(facts.pop("at_ms"))
        print_facts(facts | {f"job.{name}": value for name, value in facts.pop("job", {}).items()})
    return 0


def _job(letter: DeadLetter, *, payload: bool) -> dict[str, Any]:
    """The job as plain data, its prompt being only counted unless it is asked for."""
    plain: dict[str, Any] = msgspec.to_builtins(letter.job)
    if not payload:
        plain["payload"] = {"type": plain["payload"]["type"], "hidden": "--payload shows it"}
    return plain


async def _message(producer: Producer, letter: DeadLetter) -> str:
    """The sentence that its consumer got, as long as the result is kept."""
    if ":" in letter.id:  # a place, not a job
        return ""
    try:
        result = (await producer.status(letter.id)).result
    except JobNotFound:
        return ""
    return result.outcome.error.message if result and isinstance(result.outcome, Failed) else ""


# --- replay, purge ---------------------------------------------------------------
async def _replay(producer: Producer, options: argparse.Namespace) -> int:
    unreadable = 0
    async for letter in _named(producer, options):
        if options.all and letter.job is None:
            unreadable += 1
            continue
        try:
            job = await producer.replay(letter)
        except LetterNotFound:
            if not options.all:
                raise
            continue  # somebody else was quicker
        if options.json:
            print_json({"letter": letter.id, "id": job.id, "duplicate": job.duplicate})
        else:
            print(f"{letter.id} -> {job.id}", flush=True)
    if unreadable:
        print(f"laneway: {unreadable} unreadable dead letters were left", file=sys.stderr)
    return 0


async def _purge(producer: Producer, options: argparse.Namespace) -> int:
    if not options.yes:
        count = len([letter.id async for letter in _named(producer, options)])
        raise UsageError(f"this deletes {count} dead letters for good: expected --yes, got nothing")
    purged = 0
    batch: list[DeadLetter] = []
    async for letter in _named(producer, options):
        batch.append(letter)
        if len(batch) == _BATCH:
            purged += await producer.purge(batch)
            batch.clear()
    purged += await producer.purge(batch)
    if options.json:
        print_json({"purged": purged})
    else:
        print(f"{purged} dead letters purged")
    return 0


def _chosen(producer: Producer, options: argparse.Namespace) -> AsyncIterator[DeadLetter]:
    return producer.dead_letters(options.model, error=options.error, older_s=options.older)


async def _named(producer: Producer, options: argparse.Namespace) -> AsyncIterator[DeadLetter]:
    """The letter of that id, or all that are chosen."""
    several = options.all or options.older is not None
    if (options.id is not None) == several:
        raise UsageError("dead letters: expected either an id, or --all (or --older), got both or neither")
    if options.id is not None:
        yield await producer.dead_letter(options.id)
        return
    async for letter in _chosen(producer, options):
        yield letter


DLQ = Command("dlq", "look at dead letters, submit them again, delete them", _configure, _run)
