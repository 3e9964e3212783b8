"""Why a job waits, in one line, by what the workers of its model tell of themselves."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.producer.board import JobStatus
from laneway.producer.link import Link
from laneway.schemas.cards import WorkerCard
from laneway.schemas.errors import UnreadableEntry
from laneway.schemas.ids import WorkerId, parse_job_id, queue_tag
from laneway.schemas.keys import Keys
from laneway.schemas.state import JobState
from laneway.schemas.wire import decode_worker

_LOOK = 10_000
"""Keys of one step of the search for cards; the server is busy for about a millisecond."""


async def workers(link: Link, keys: Keys) -> list[WorkerCard]:
    """The cards of all living workers, by id. Looks at every key of the server. Raises `QueueUnavailable`."""
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, names = await link.ask(
            "SCAN", cursor, "MATCH", keys.worker(WorkerId("*")), "COUNT", _LOOK, "TYPE", "string"
        )
        found.update(names)
        if int(cursor) == 0:
            break
    cards = []
    for value in await link.ask("MGET", *sorted(found)) if found else ():
        try:
            if value is not None:
                cards.append(decode_worker(value))
        except UnreadableEntry:
            continue  # a newer release's
    return sorted(cards, key=lambda card: card.id)


def why(status: JobStatus, cards: Sequence[WorkerCard]) -> str:
    """One line; empty for a job that does not wait."""
    record = status.record
    if record is None:
        return ""
    lane = record.lane.replace(":", ".")
    match status.state:
        case JobState.RETRYING:
            return "its back-off after a failed attempt is not over"
        case JobState.CLAIMED:
            reason = next((card.waits.get(lane) for card in cards if card.id == record.owner), None)
            return f"at the gate of {record.owner}: {reason or 'about to go in'}"
        case JobState.QUEUED:
            tag, _ = parse_job_id(status.job_id)
            return _in_lane(lane, [card for card in cards if queue_tag(card.model) == tag])
        case _:
            return ""


def _in_lane(lane: str, crew: Sequence[WorkerCard]) -> str:
    ready = [card for card in crew if card.phase == "ready"]
    if not crew:
        return "no worker of its model is alive"
    if not ready:
        return f"no worker of its model is ready: {', '.join(sorted({card.phase for card in crew}))}"
    full = sum(card.seats_free == 0 for card in ready)
    reasons = sorted({card.waits[lane] for card in ready if lane in card.waits})
    told = f"; the first of its lane wait there for: {', '.join(reasons)}" if reasons else ""
    return f"in its lane; {full} of {len(ready)} workers have no free seat{told}"
