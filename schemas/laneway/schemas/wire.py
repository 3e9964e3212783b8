"""Bytes <-> schemas: the only encoders and decoders. MessagePack maps, so fields can be added at any time.

Unknown fields are ignored on read (a newer producer may send them); `build.py` refuses them at submit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from laneway.schemas.cards import Control, ModelCard, WorkerCard
from laneway.schemas.errors import UnreadableEntry
from laneway.schemas.events import Event
from laneway.schemas.job import Job
from laneway.schemas.outcome import Result
from laneway.schemas.record import Kept

VERSION = 1
"""Format of a job on the wire. Raised only when an older worker could no longer understand a job."""

INLINE_BYTES = 64 * 1024
"""Jobs larger than this travel beside their lane, not in it: a stream entry is echoed by every read."""

_encoder = msgspec.msgpack.Encoder()
_T = TypeVar("_T")


class _Envelope(Struct, frozen=True, array_like=True):
    version: int
    job: msgspec.Raw


_envelope = msgspec.msgpack.Decoder(_Envelope)
_job = msgspec.msgpack.Decoder(Job)
_result = msgspec.msgpack.Decoder(Result)
_events = msgspec.msgpack.Decoder(tuple[Event, ...])
_kept = msgspec.msgpack.Decoder(Kept)
_model = msgspec.msgpack.Decoder(ModelCard)
_worker = msgspec.msgpack.Decoder(WorkerCard)
_control = msgspec.msgpack.Decoder(Control)


def encode_job(job: Job) -> bytes:
    """A job with its format version in front."""
    return _encoder.encode(_Envelope(VERSION, msgspec.Raw(_encoder.encode(job))))


def decode_job(data: bytes) -> Job:
    """The job in `data`.

    Raises:
        UnreadableEntry: not a job, or of a newer format.
    """
    envelope = _decode(_envelope, data, "job")
    if envelope.version > VERSION:
        raise UnreadableEntry(f"job of format {envelope.version}, this release reads up to {VERSION}")
    return _decode(_job, bytes(envelope.job), "job")


def encode(value: Result | ModelCard | WorkerCard | Control | Kept | Sequence[Event]) -> bytes:
    """Everything that is not a job: results, cards, control messages, token events that are kept, and the events of one
    engine step."""
    return _encoder.encode(value)


def decode_result(data: bytes) -> Result:
    """The result in `data`. Raises `UnreadableEntry`, as all decoders here do."""
    return _decode(_result, data, "result")


def decode_events(data: bytes) -> tuple[Event, ...]:
    """The events that one engine step had for one consumer."""
    return _decode(_events, data, "events")


def decode_kept(data: bytes) -> Kept:
    """A token event that was kept."""
    return _decode(_kept, data, "kept event")


def decode_model(data: bytes) -> ModelCard:
    """What is known of a served model."""
    return _decode(_model, data, "model card")


def decode_worker(data: bytes) -> WorkerCard:
    """What a worker says of itself."""
    return _decode(_worker, data, "worker card")


def decode_control(data: bytes) -> Control:
    """A cancel or an attachment."""
    return _decode(_control, data, "control message")


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes, what: str) -> _T:
    # RecursionError and UnicodeDecodeError are not MsgspecErrors, and a stream may hold any bytes.
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError, TypeError) as error:
        raise UnreadableEntry(f"not a {what}: {type(error).__name__}") from None
