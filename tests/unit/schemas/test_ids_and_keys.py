"""Ids say where a job lives; keys are made in one file."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.schemas.strategies import SOME_ID, word

from laneway.schemas import InvalidJob, JobId, ProducerId, WorkerId
from laneway.schemas.ids import (
    choose_partition,
    new_job_id,
    new_producer_id,
    new_worker_id,
    parse_job_id,
    queue_tag,
)
from laneway.schemas.keys import Keys, lanes

ROOT = Path(__file__).parents[3]


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 4094))
def test_a_job_id_says_where_the_job_lives(model: str, partition: int) -> None:
    """Whoever has the id finds the job, with no other knowledge."""
    assert parse_job_id(new_job_id(model, partition)) == (queue_tag(model), partition)


def test_job_ids_are_unique_and_sort_by_time() -> None:
    """Ten thousand of one millisecond differ, and a later id never sorts before an earlier millisecond's."""
    ids = [new_job_id("demo", 0) for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    stamps = [job_id.split("-")[2][:12] for job_id in ids]
    assert stamps == sorted(stamps)


@pytest.mark.parametrize(
    "bad", ["", "x", SOME_ID + "\n", SOME_ID[:-1], SOME_ID.upper(), "../../etc", "\ud800", None, 5, b"bytes"]
)
def test_what_is_no_job_id_is_refused(bad: object) -> None:
    """A key is never made of something that submit did not return."""
    with pytest.raises(InvalidJob, match="job id: expected an id returned by submit"):
        Keys().of_job(bad)  # type: ignore[arg-type]


@pytest.mark.case("A10")
def test_processes_get_names_of_their_own() -> None:
    """Two lives of one pod have different names, so that none inherits the other's work."""
    assert new_worker_id("node-1") != new_worker_id("node-1")
    assert new_producer_id() != new_producer_id()


@given(word, st.integers(1, 64))
def test_a_key_always_lands_in_the_same_partition(key: str, partitions: int) -> None:
    """The partition of a LoRA id or idempotency key is a function of it."""
    partition = choose_partition(key, partitions)
    assert 0 <= partition < partitions
    assert choose_partition(key, partitions) == partition


def test_keys_spread_and_few_move_when_a_partition_is_added() -> None:
    """Rendezvous hashing: about one ninth of the keys moves from 8 partitions to 9, all of them to the new one."""
    keys = [f"adapter-{number}" for number in range(4000)]
    before = {key: choose_partition(key, 8) for key in keys}
    after = {key: choose_partition(key, 9) for key in keys}
    assert max(Counter(before.values()).values()) < 1.25 * 4000 / 8
    moved = [key for key in keys if before[key] != after[key]]
    assert {after[key] for key in moved} == {8}
    assert 0.08 < len(moved) / 4000 < 0.15


@pytest.mark.case("A21")
def test_keys_of_a_partition_share_one_slot() -> None:
    """Everything that one script touches has the same hash tag, which is all a cluster looks at."""
    keys = Keys("ns").of_model("demo", 7)
    names = [
        *(keys.lane(lane) for lane in lanes(7)), keys.job(SOME_ID), keys.body(SOME_ID), keys.result(SOME_ID),
        keys.cancel(SOME_ID), keys.kept(SOME_ID), keys.idempotency("a}b{c"), keys.bell, keys.control, keys.held, keys.dead,
        keys.written,
    ]  # fmt: skip
    tags = {name[name.index("{") : name.index("}") + 1] for name in names}
    assert tags == {f"{{ns:{queue_tag('demo')}:7}}"}
    assert len(set(names)) == len(names)


def test_every_key_starts_with_its_namespace() -> None:
    """Two installations on one server don't meet."""
    keys = Keys("blue")
    names = [keys.models, keys.output(ProducerId("p")), keys.worker(WorkerId("w")), keys.of_job(SOME_ID).bell]
    assert all(name.lstrip("{").startswith("blue:") for name in names)


def test_six_lanes_latency_and_short_first() -> None:
    """The order in which lanes are pulled is the order in which they are listed."""
    assert [lane.name for lane in lanes(0)] == [
        "latency:short", "latency:medium", "latency:long", "throughput:short", "throughput:medium", "throughput:long",
    ]  # fmt: skip


def test_keys_are_made_in_one_place() -> None:
    """No other module builds a Redis key: none has an f-string, or a joined text, with a key's colon in it."""
    found = []
    for package in ("schemas", "producer", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            if path.name != "keys.py":
                found += [f"{path.relative_to(ROOT)}:{line}" for line in _key_like(path)]
    assert found == []


_KEY_PARTS = (
    "lane",
    "job",
    "body",
    "result",
    "cancel",
    "idem",
    "bell",
    "control",
    "held",
    "dead",
    "out",
    "models",
    "worker",
)


def _key_like(path: Path) -> list[int]:
    tree = ast.parse(path.read_text("utf-8"))
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(f":{part}:" in node.value or node.value.endswith(f":{part}") for part in _KEY_PARTS)
    ]


def test_a_job_id_is_only_a_string_to_python() -> None:
    """Ids are types for the checker and plain text at run time: they cost nothing and print as they are."""
    assert JobId("x") == "x"
