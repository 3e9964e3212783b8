"""What is written is what is read, and what was never written is refused in one way only."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.schemas.strategies import SOME_ID, events, jobs, kept, mapping, results

from laneway.schemas import Event, Job, Result, UnreadableEntry
from laneway.schemas.cards import AttachJob, CancelJob, Floor, ModelCard, WorkerCard
from laneway.schemas.ids import WorkerId
from laneway.schemas.record import Kept
from laneway.schemas.wire import (
    VERSION,
    decode_control,
    decode_events,
    decode_job,
    decode_kept,
    decode_model,
    decode_result,
    decode_worker,
    encode,
    encode_job,
)

DECODERS = [
    decode_job,
    decode_result,
    decode_events,
    decode_model,
    decode_worker,
    decode_control,
    decode_kept,
]


@given(jobs())
def test_a_job_survives_the_wire(job: Job) -> None:
    """Whatever an application may ask for arrives unchanged."""
    assert decode_job(encode_job(job)) == job


@given(kept)
def test_what_is_kept_survives_the_wire(event: Kept) -> None:
    """An attempt reads of an earlier one what that one had."""
    assert decode_kept(encode(event)) == event


@given(results)
def test_a_result_survives_the_wire(result: Result) -> None:
    """Every outcome, with every shape of answer, is read as it was stored."""
    assert decode_result(encode(result)) == result


@given(st.lists(events, max_size=5))
def test_events_survive_the_wire(step: list[Event]) -> None:
    """What one engine step had to say arrives in order and complete."""
    assert decode_events(encode(step)) == tuple(step)


def test_cards_and_controls_survive_the_wire() -> None:
    """The small structs between workers and producers are read as written."""
    model = ModelCard(name="demo", partitions=4, context_tokens=2048, vocabulary=49152, adapters=("a",))
    model = replace(model, floor=Floor(prompt_s=1e-5, token_s=4e-3))
    worker = WorkerCard(id=WorkerId("w"), model="demo", phase="ready", seats=8)
    assert decode_model(encode(model)) == model
    assert decode_worker(encode(worker)) == worker
    for control in (CancelJob(job_id=SOME_ID), AttachJob(job_id=SOME_ID, output="out")):
        assert decode_control(encode(control)) == control


@given(jobs(), mapping)
def test_a_field_of_a_newer_release_is_ignored(job: Job, extra: dict[str, object]) -> None:
    """Unknown fields are tolerated on read: a newer producer may talk to an older worker."""
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(job))
    fields["a_field_of_tomorrow"] = extra
    fields["payload"]["another"] = 1
    data = msgspec.msgpack.encode([VERSION, fields])
    assert decode_job(data) == job


def test_a_job_of_a_newer_format_is_unreadable() -> None:
    """A version this release can't understand is named, not guessed at."""
    with pytest.raises(UnreadableEntry, match="format 99, this release reads up to 1"):
        decode_job(msgspec.msgpack.encode([99, {}]))


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@given(data=st.binary(max_size=200))
@example(data=b"")
@example(data=b"\xff")
@example(data=b"\x91" * 100_000)  # nested beyond any stack
@example(data=b"\x92\x01\xdd\xff\xff\xff\xff")  # claims four thousand million items
@example(data=b"\x92\x01\x81\xa2id\xa1\xff")  # text that is not UTF-8
@example(data=b"\xc7\x0c\xff" + b"\xff" * 12)  # a timestamp out of range
@pytest.mark.case("D53")
def test_any_bytes_are_read_or_refused_in_one_way(decode: object, data: bytes) -> None:
    """Somebody may write anything into a stream: a reader meets `UnreadableEntry` and no other error."""
    assert callable(decode)
    with contextlib.suppress(UnreadableEntry):
        decode(data)


@given(jobs(), st.data())
def test_a_damaged_job_is_read_or_refused_in_one_way(job: Job, data: st.DataObject) -> None:
    """One flipped byte or a cut anywhere never raises anything but `UnreadableEntry`."""
    wire = bytearray(encode_job(job))
    at = data.draw(st.integers(0, len(wire) - 1))
    wire[at] = data.draw(st.integers(0, 255))
    for damaged in (bytes(wire), bytes(wire[:at])):
        with contextlib.suppress(UnreadableEntry):
            decode_job(damaged)
