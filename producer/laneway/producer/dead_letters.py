"""Dead letters: jobs that used up their attempts, and entries that nobody could read."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from laneway.producer.errors import LetterNotFound, LetterUnreadable
from laneway.producer.link import Link, checked
from laneway.producer.models import ModelCatalog
from laneway.producer.submitting import Place, Submitted, Submitter
from laneway.schemas.errors import InvalidJob, UnreadableEntry
from laneway.schemas.ids import new_job_id, parse_job_id, queue_tag
from laneway.schemas.job import Job
from laneway.schemas.keys import Keys
from laneway.schemas.wire import decode_job

_PAGE = 32  # letters per round trip: each may hold a prompt of megabytes
_PURGE = 256  # letters per command
_RAW = b"raw:"
_PLACE = re.compile(r"(?P<queue>[0-9a-f]{8})-(?P<partition>[0-9a-f]{3}):(?P<entry>\d{1,20}-\d{1,20})")


class DeadLetter(Struct, frozen=True, kw_only=True):
    """What is kept of a job that could not be done. It stays until it is replayed or purged."""

    id: str
    """The id of the job; of an entry that names none, the place where the letter lies."""
    error: str
    """Code of the last error, such as `engine_died`; `unreadable` where there was no job to run."""
    at_ms: int
    """When it was put aside, in milliseconds of Redis' clock since 1970."""
    lane: str
    """Name of the lane it came from, such as `latency:short`."""
    attempts: int = 0
    """Claims of the job; 0: it was never one."""
    job: Job | None = None
    """The whole job, prompt and all. None: unreadable."""
    reason: str = ""
    """Why it is unreadable."""
    size: int = 0
    """Bytes kept of the job, or of what stood in its place."""
    place: Place
    """Where it lies on the server."""


class DeadLetters:
    """Reads, replays and purges the dead letters under a namespace."""

    def __init__(self, link: Link, keys: Keys, models: ModelCatalog, submitter: Submitter) -> None:
        self._link = link
        self._keys = keys
        self._models = models
        self._submitter = submitter

    async def letters(
        self, model: str | None, *, error: str | None, older_s: float | None
    ) -> AsyncIterator[DeadLetter]:
        """See `Producer.dead_letters`."""
        cards = await self._models.all() if model is None else [await self._models.card(model)]
        for card in cards:
            for partition in range(card.partitions):
                async for letter in self._lying(queue_tag(card.name), partition, older_s):
                    if error is None or letter.error == error:
                        yield letter

    async def find(self, letter_id: str) -> DeadLetter:
        """See `Producer.dead_letter`."""
        place = _PLACE.fullmatch(letter_id)
        if place is not None:
            queue, partition = place["queue"], int(place["partition"], 16)
            at = ("XRANGE", self._keys.partition(queue, partition).dead, place["entry"], place["entry"])
            for entry, pairs in await self._link.ask(*at):
                return self._read(queue, partition, entry, pairs)
            raise LetterNotFound(letter_id)
        async for letter in self._lying(*parse_job_id(letter_id), None):
            if letter.id == letter_id:
                return letter
        raise LetterNotFound(letter_id)

    async def replay(self, letter: DeadLetter) -> Submitted:
        """See `Producer.replay`."""
        job = letter.job
        if job is None:
            raise LetterUnreadable(letter.id, letter.reason)
        again = replace(
            job,
            id=new_job_id(job.model, parse_job_id(job.id)[1]),
            idempotency_key=f"replay:{job.id}:{letter.place.entry}",
        )
        return await self._submitter.replay(again, letter.place)

    async def purge(self, letters: Iterable[DeadLetter]) -> int:
        """See `Producer.purge`."""
        entries: dict[str, list[str]] = {}
        for letter in letters:
            entries.setdefault(letter.place.stream, []).append(letter.place.entry)
        commands = [
            ("XDEL", stream, *lying[start : start + _PURGE])
            for stream, lying in entries.items()
            for start in range(0, len(lying), _PURGE)
        ]
        return sum(map(checked, await self._link.call(*commands))) if commands else 0

    async def _lying(self, queue: str, partition: int, older_s: float | None) -> AsyncIterator[DeadLetter]:
        """The letters of a partition, oldest first. What is put there meanwhile is not among them: a job that is
        replayed during the walk and fails again would never let it end.
        """
        stream = self._keys.partition(queue, partition).dead
        now, newest = map(
            checked, await self._link.call(("TIME",), ("XREVRANGE", stream, "+", "-", "COUNT", 1))
        )
        if not newest:
            return
        last = newest[0][0]
        if older_s is not None:
            last = str(max(0, int(now[0]) * 1000 + int(now[1]) // 1000 - round(older_s * 1000)))
        start = b"-"
        while True:
            page = await self._link.ask("XRANGE", stream, start, last, "COUNT", _PAGE)
            for entry, pairs in page:
                yield self._read(queue, partition, entry, pairs)
            if len(page) < _PAGE:
                return
            start = b"(" + page[-1][0]

    def _read(self, queue: str, partition: int, entry: bytes, pairs: list[bytes]) -> DeadLetter:
        fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
        position = entry.decode()
        named = _text(fields, b"j")
        job, reason = _job(fields, named)
        letter_id = named if _is_job_id(named, queue, partition) else f"{queue}-{partition:03x}:{position}"
        attempts = fields.get(b"attempt", b"")
        raw = (value for name, value in fields.items() if name == b"d" or name.startswith(_RAW))
        return DeadLetter(
            id=letter_id,
            error=_text(fields, b"error") or "unknown",
            at_ms=int(position.partition("-")[0]),
            lane=_text(fields, b"lane"),
            attempts=int(attempts) if attempts.isdigit() else 0,
            job=job,
            reason=reason,
            size=sum(map(len, raw)),
            place=Place(letter_id, self._keys.partition(queue, partition).dead, position),
        )


def _job(fields: Mapping[bytes, bytes], named: str) -> tuple[Job | None, str]:
    """The job in a letter, or why there is none."""
    data = fields.get(b"d")
    if data is None:
        return None, _text(fields, b"reason") or "it holds no job"
    try:
        job = decode_job(data)
    except UnreadableEntry as error:
        return None, str(error)
    return (job, "") if job.id == named else (None, "it names another job than it holds")


def _is_job_id(name: str, queue: str, partition: int) -> bool:
    try:
        return parse_job_id(name) == (queue, partition)
    except InvalidJob:
        return False


def _text(fields: Mapping[bytes, Any], name: bytes) -> str:
    """A field for people to read: printable, and not long."""
    text = fields.get(name, b"").decode(errors="replace")[:200]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
