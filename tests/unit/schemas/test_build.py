"""What an application may write, and the one sentence it gets for what it may not."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.schemas.strategies import SOME_ID, job_fields

from laneway.schemas import (
    AttemptPolicy,
    Bucket,
    ChatMessage,
    InvalidJob,
    Job,
    Prompt,
    Sampling,
    SloClass,
    StructuredOutput,
    TokenIds,
    build_job,
    check_job,
)
from laneway.schemas.build import FIELDS
from laneway.schemas.ids import new_job_id


def build(**fields: Any) -> Job:
    return build_job(id=SOME_ID, model="demo", **fields)


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidJob) as caught:
        build(**fields)
    text = str(caught.value)
    assert text.isascii()
    assert len(text) < 400
    return text


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


@given(job_fields())
def test_valid_fields_make_a_job_that_passes_every_check(fields: dict[str, Any]) -> None:
    """What is accepted at submit is accepted by the worker: both run the same checks."""
    check_job(build(**fields))


def test_a_field_that_is_none_counts_as_not_given() -> None:
    """Optional values can be passed through without a test for None."""
    assert build(prompt="x", lora=None, messages=None, sampling=None, metadata=None) == build(prompt="x")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": "x", "promt": "y"}, "promt: expected a known field (did you mean 'prompt'?)"),
        ({"prompt": "x", "temperature": 0}, "temperature: expected a known field (did you mean sampling={'temperature'"),
        ({"prompt": "x", "sampling": {"temprature": 0}}, "sampling.temprature: expected a known field (did you mean 'temp"),
        ({"prompt": "x", "sampling": {"structured_outputs": {"regx": "a"}}}, "sampling.structured_outputs.regx: expected a"),
        ({"prompt": "x", "attempts": {"max_attempt": 1}}, "attempts.max_attempt: expected a known field (did you mean 'max"),
        ({"messages": [{"role": "user", "contnt": "x"}]}, "messages[0].contnt: expected a known field (did you mean 'cont"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_named_with_the_nearest_known_one(fields: dict[str, Any], path: str) -> None:
    """A misspelt field is never ignored, at whatever depth it stands."""
    assert refusal(**fields).startswith(path)


@pytest.mark.parametrize(
    "given", [{}, {"prompt": "x", "prompt_token_ids": [1]}, {"prompt": "x", "messages": user("y")}]
)
def test_a_job_has_exactly_one_payload(given: dict[str, Any]) -> None:
    """None and two are both mistakes."""
    assert "exactly one of prompt, prompt_token_ids and messages" in refusal(**given)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ""}, {"prompt": 5}, {"prompt": ["x"]}, {"prompt": b"x"},
        {"prompt_token_ids": []}, {"prompt_token_ids": [[]]}, {"prompt_token_ids": [-1]}, {"prompt_token_ids": [2**31]},
        {"prompt_token_ids": [2**63]}, {"prompt_token_ids": [1.5]}, {"prompt_token_ids": [1.0]},
        {"prompt_token_ids": [True]}, {"prompt_token_ids": "123"}, {"prompt_token_ids": b"123"}, {"prompt_token_ids": {1: 2}},
        {"messages": []}, {"messages": "x"}, {"messages": ["x"]}, {"messages": user(None)}, {"messages": user("")},
        {"messages": user(5)}, {"messages": [{"content": "x"}]}, {"messages": [{"role": "", "content": "x"}]},
        {"messages": [{"role": 5, "content": "x"}]}, {"messages": user([{"type": "image_url", "image_url": "x"}])},
        {"messages": user([{"type": "text"}])}, {"messages": user([{"type": "text", "text": "x", "more": 1}])},
        {"messages": user("x"), "tools": [5, {"a": math.nan}]}, {"messages": user("x"), "template_kwargs": [1]},
        {"prompt": "x", "tools": []}, {"prompt": "x", "template_kwargs": {}},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.case("D43")
def test_a_payload_that_no_engine_should_see_is_refused(fields: dict[str, Any]) -> None:
    """Empty, wrongly typed, out of range: each with one sentence, before anything is sent."""
    refusal(**fields)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [math.nan, math.inf, -0.1, 101, 1e-300, 1e-6, True, "1", 10**400]),
        ("top_p", [0, -0.1, 1.01, math.nan]),
        ("min_p", [-0.1, 1.1, math.nan]),
        ("presence_penalty", [-2.1, 2.1, math.nan]),
        ("frequency_penalty", [-2.1, 2.1, math.inf]),
        ("repetition_penalty", [0, -1, 101, math.nan]),
        ("n", [0, 65, 5_000_000, True, 1.0, 2**63, None.__class__]),
        ("top_k", [-2, 2**31, 1.0, True]),
        ("seed", [2**63, 2**64, -(2**63) - 1, 10**5000, True, 1.0]),
        ("max_tokens", [0, -1, 2**20 + 1, True]),
        ("min_tokens", [-1, 2**20 + 1, True]),
        ("logprobs", [-1, 21, 10**9, True]),
        ("prompt_logprobs", [-1, 21]),
        ("stop", [[""], ["x" * 1025], ["x"] * 17, ["x"] * 5000, [5], 5, ["\ud800"], ["a\0"], {"a": 1}]),
        ("bad_words", [[""], ["x"] * 65, ["\ud800"]]),
        ("stop_token_ids", [[-1], [2**31], [1] * 129, [True], [1.0], "12"]),
        ("allowed_token_ids", [[], [-1], [1] * 1025]),
        ("logit_bias", [{"AI": -100}, {"1": "x"}, {"1": 1e309}, {"1": 101}, {-1: 1}, {2**31: 1}, [1],
                        dict.fromkeys(range(1025), 1.0)]),
        ("include_stop_str_in_output", [1, "yes"]),
        ("structured_outputs", [{}, {"regex": ""}, {"regex": " "}, {"json_object": False}, {"json": {}, "regex": "a"},
                                {"choice": []}, {"choice": ["x"] * 257}, {"json": 5}, {"grammar": "\0"},
                                {"json": {"a": math.nan}}, {"regex": "a" * 70_000}, "x"]),
    ],
)  # fmt: skip
@pytest.mark.case("D46", "D49", "D50")
def test_sampling_values_that_the_engine_would_die_of_are_refused(field: str, values: list[Any]) -> None:
    """The engine has no guard of its own in front of it: every bound is checked here."""
    for value in values:
        assert refusal(prompt="x", sampling={field: value}).startswith(f"sampling.{field}")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 0.0, 1e-5, 100]),
        ("top_p", [1e-9, 1]),
        ("min_p", [0, 1]),
        ("presence_penalty", [-2, 2]),
        ("repetition_penalty", [1e-9, 100]),
        ("top_k", [-1, 0, 2**31 - 1]),
        ("seed", [-(2**63), 2**63 - 1]),
        ("max_tokens", [1, 2**20]),
        ("logprobs", [0, 20]),
        ("stop", ["x", ["x" * 1024], ["x"] * 16, ()]),
        ("stop_token_ids", [[0], [2**31 - 1] * 128]),
        ("allowed_token_ids", [[1] * 1024]),
        ("logit_bias", [{"1": 100, 2: -100}, dict.fromkeys(range(1024), 1.0)]),
        ("structured_outputs", [{"json": {"type": "object"}}, {"json": "{}"}, {"json_object": True}, {"choice": ["a", "b"]}]),
    ],
)  # fmt: skip
def test_the_bounds_themselves_are_allowed(field: str, values: list[Any]) -> None:
    """A bound is the last good value, not the first bad one."""
    for value in values:
        build(prompt="x", sampling={field: value})


@pytest.mark.case("D49")
def test_sampling_values_that_contradict_each_other_are_refused() -> None:
    """Each alone is fine."""
    assert "at most max_tokens (3)" in refusal(prompt="x", sampling={"min_tokens": 4, "max_tokens": 3})
    assert "1 when temperature is 0" in refusal(prompt="x", sampling={"n": 2, "temperature": 0})


@pytest.mark.case("D51")
def test_a_schema_is_bounded_in_depth() -> None:
    """A grammar grows exponentially with nesting, and no time-out stops its compiler."""
    schema: dict[str, Any] = {}
    for _ in range(15):
        schema = {"oneOf": schema}
    build(prompt="x", sampling={"structured_outputs": {"json": schema}})
    assert "at most 16 levels" in refusal(
        prompt="x", sampling={"structured_outputs": {"json": {"a": {"oneOf": schema}}}}
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"slo": "latncy"}, {"slo": 5}, {"bucket": "tiny"}, {"stream": 1}, {"stream": "yes"},
        {"deadline_ms": 0}, {"deadline_ms": -5}, {"deadline_ms": True}, {"deadline_ms": 1.5}, {"deadline_ms": 2**40},
        {"ttft_ms": 0}, {"tpot_ms": 0}, {"prompt_tokens": 0}, {"prompt_tokens": True}, {"attempts": {"max_attempts": 0}},
        {"attempts": {"max_attempts": 101}}, {"attempts": {"backoff_ms": -1}}, {"attempts": 3},
        {"tenant": ""}, {"tenant": "a\nb"}, {"tenant": "x" * 129}, {"tenant": "\ud800"}, {"tenant": 5},
        {"idempotency_key": ""}, {"idempotency_key": "x" * 257}, {"idempotency_key": "a\0"}, {"reply_to": "two words"},
        {"metadata": {"a": None}}, {"metadata": {"a": 5}}, {"metadata": {5: "a"}}, {"metadata": "a=b"},
        {"metadata": {"a": "\ud800"}}, {"metadata": {"\ud800": "a"}}, {"metadata": {"a" * 65: "b"}},
        {"metadata": {"a": "b" * 513}}, {"metadata": {str(number): "" for number in range(17)}},
        {"traceparent": "00-abc"}, {"traceparent": 5},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.case("C34")
def test_options_out_of_bounds_are_refused(fields: dict[str, Any]) -> None:
    """The field is named, whatever is wrong with it."""
    assert refusal(prompt="x", **fields).startswith(next(iter(fields)))


@pytest.mark.parametrize(
    "name",
    [
        "../../etc",
        "/etc",
        "a/../../b",
        "a\0b",
        "",
        "x" * 201,
        "a//b",
        "a b",
        "é",
        "\ud800",
        ".hidden",
        "a/.b",
        5,
    ],
)
@pytest.mark.parametrize("field", ["lora", "model"])
def test_a_name_is_never_a_path(field: str, name: object) -> None:
    """Ids of adapters and models reach the file system: only plain names get there."""
    fields = {"model": "demo", "prompt": "x", field: name}
    with pytest.raises(InvalidJob, match=f"^{field}: expected a name of letters"):
        build_job(id=SOME_ID, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["demo", "org/name", "v1.2_x@3-y", "A"])
def test_ordinary_names_are_names(name: str) -> None:
    """Hugging Face ids pass."""
    assert build(prompt="x", lora=name).lora == name


@pytest.mark.parametrize("bad", ["\ud800", "a\udfffb", "\0", "a\0b"])
@pytest.mark.case("D53")
def test_text_that_cannot_travel_is_refused_everywhere(bad: str) -> None:
    """Half a surrogate pair has no encoding and NUL ends strings in too many places."""
    places: list[dict[str, Any]] = [
        {"prompt": bad}, {"messages": user(bad)}, {"messages": [{"role": bad, "content": "x"}]},
        {"messages": user([{"type": "text", "text": bad}])}, {"messages": [{"role": "user", "content": "x", "name": bad}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": bad}]}]}, {"messages": user("x"), "tools": [{bad: 1}]},
        {"messages": user("x"), "template_kwargs": {"a": [bad]}}, {"prompt": "x", "sampling": {"stop": bad}},
        {"prompt": "x", "sampling": {"structured_outputs": {"json": {"a": bad}}}},
        {"prompt": "x", "sampling": {"structured_outputs": {"choice": [bad]}}},
        {"prompt": "x", "metadata": {"a": bad}}, {"prompt": "x", "idempotency_key": bad}, {"prompt": "x", "lora": bad},
        {"prompt": "x", bad: 1},
    ]  # fmt: skip
    for fields in places:
        refusal(**fields)


SECRET = "c4n4ry"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [SECRET]}, {"prompt": f"{SECRET}\0"}, {"promt": SECRET}, {"prompt_token_ids": [SECRET]},
        {"messages": SECRET}, {"messages": [SECRET]}, {"messages": user({"a": SECRET})},
        {"messages": user([{"type": "text", "text": 5, "x": SECRET}])}, {"messages": [{"role": "user", "content": SECRET, "x": SECRET}]},
        {"messages": user("x"), "tools": SECRET}, {"messages": user("x"), "template_kwargs": {"a": {SECRET}}},
        {"prompt": "x", "sampling": {"stop": [SECRET, 5]}}, {"prompt": "x", "sampling": {"stop": [f"{SECRET}\0"]}},
        {"prompt": "x", "sampling": {"structured_outputs": {"regex": SECRET, "grammar": SECRET}}},
        {"prompt": "x", "sampling": {"structured_outputs": {"json": {"a": {SECRET}}}}},
        {"prompt": "x", "metadata": {"a": [SECRET]}}, {"prompt": "x", "metadata": [SECRET]},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.case("D57")
def test_an_error_never_repeats_what_a_user_wrote(fields: dict[str, Any]) -> None:
    """Errors end up in logs; prompts, stop strings, schemas and metadata must not."""
    assert SECRET not in refusal(**fields)


@pytest.mark.case("D57")
def test_an_error_stays_short_however_large_the_mistake() -> None:
    """Ten thousand wrong items, five megabytes of text, an endless iterable: one sentence each."""

    def endless() -> Iterator[int]:
        while True:
            yield 1

    refusal(messages=[{"role": 5}] * 4000)
    refusal(messages=[{"role": 5}] * 10_000)
    refusal(prompt="x" * 5_000_000)
    refusal(prompt="é" * 2_100_000)
    refusal(messages=user("x" * 2_100_000) * 2)
    refusal(prompt_token_ids=endless())
    refusal(prompt="x", **{"y" * 100_000: 1})
    refusal(prompt="x", sampling={"x" * 100_000: 1})


def test_deep_and_circular_data_is_refused() -> None:
    """Encoders recurse: what would exhaust their stack never reaches them."""
    deep: list[Any] = []
    for _ in range(sys.getrecursionlimit() * 2):
        deep = [deep]
    circle: dict[str, Any] = {}
    circle["again"] = circle
    for data in (deep, circle):
        assert "levels" in refusal(messages=user("x"), tools=[{"a": data}])
        assert "levels" in refusal(messages=user("x"), template_kwargs={"a": data})
        refusal(prompt="x", sampling={"structured_outputs": {"json": {"a": data}}})
    wide = {str(number): 0 for number in range(100_001)}
    assert "100000 values" in refusal(messages=user("x"), template_kwargs=wide)


def test_any_iterable_of_ints_is_a_prompt() -> None:
    """Generators and ranges need no conversion by the caller."""
    assert build(prompt_token_ids=(number for number in range(3))).payload == TokenIds(ids=(0, 1, 2))
    assert build(prompt_token_ids=range(3)).payload == TokenIds(ids=(0, 1, 2))


def test_numpy_values_are_made_plain() -> None:
    """Arrays and scalars of numpy are numbers like any other; its booleans are not integers either."""
    np = pytest.importorskip("numpy")
    job = build(
        prompt_token_ids=np.arange(3, dtype=np.int32),
        deadline_ms=np.int64(5),
        sampling={
            "temperature": np.float32(0.5),
            "seed": np.uint8(3),
            "logit_bias": {np.int64(7): np.float64(1)},
        },
    )
    assert job.payload == TokenIds(ids=(0, 1, 2))
    assert type(job.deadline_ms) is int
    assert job.sampling == Sampling(temperature=0.5, seed=3, logit_bias={7: 1.0})
    refusal(prompt_token_ids=np.array([1.0]))
    refusal(prompt="x", sampling={"n": np.bool_(True)})
    refusal(prompt="x", slo=np.array(["latency", "latency"]))


def test_structs_are_checked_like_mappings() -> None:
    """A struct's constructor checks nothing: the types in it are checked all the same."""
    assert build(prompt="x", sampling=Sampling(stop=("a",))).sampling.stop == ("a",)
    assert build(prompt="x", attempts=AttemptPolicy(max_attempts=1)).attempts.max_attempts == 1
    assert build(messages=[ChatMessage(role="user", content="x")]) == build(messages=user("x"))
    refusal(prompt="x", sampling=Sampling(stop=5))  # type: ignore[arg-type]
    refusal(prompt="x", sampling=Sampling(temperature="1"))  # type: ignore[arg-type]
    refusal(prompt="x", sampling=Sampling(structured_outputs=StructuredOutput(json=5)))  # type: ignore[arg-type]
    refusal(prompt="x", sampling=AttemptPolicy())
    refusal(messages=[ChatMessage(role="user", content=5)])  # type: ignore[arg-type]


def test_the_bucket_follows_from_the_count_else_from_an_estimate() -> None:
    """Ids and counts are exact; text is estimated at three bytes a token; an explicit bucket wins."""
    assert build(prompt_token_ids=[1] * 512).bucket is Bucket.SHORT
    assert build(prompt_token_ids=[1] * 513).bucket is Bucket.MEDIUM
    assert build(prompt="x", prompt_tokens=4097).bucket is Bucket.LONG
    estimated = build(prompt="x" * 3000)
    assert (estimated.prompt_tokens, estimated.prompt_counted, estimated.bucket) == (
        1000,
        False,
        Bucket.MEDIUM,
    )
    assert build(prompt="x", bucket="long").bucket is Bucket.LONG


@given(st.integers(1, 3_000))
def test_the_estimate_covers_every_part_of_a_conversation(length: int) -> None:
    """Long tools or parts cannot hide a long prompt in a short lane."""
    whole = build(messages=user("x" * length)).prompt_tokens
    assert build(messages=user([{"type": "text", "text": "x" * length}])).prompt_tokens == whole
    assert build(messages=user("y"), tools=[{"a": "x" * length}]).prompt_tokens >= whole


def test_defaults_are_those_that_are_documented() -> None:
    """Latency class, no deadline, three attempts."""
    job = build(prompt="x")
    assert (job.slo, job.payload, job.tenant, job.stream) == (
        SloClass.LATENCY,
        Prompt(text="x"),
        "default",
        False,
    )
    assert (job.deadline_ms, job.attempts.max_attempts) == (None, 3)


def test_a_job_must_carry_an_id_of_its_own_model() -> None:
    """A worker that finds a job of another model's queue refuses it: its keys would lead elsewhere."""
    with pytest.raises(InvalidJob, match="id: expected the id of a job for demo"):
        build_job(id=new_job_id("other", 0), model="demo", prompt="x")


def test_the_fields_of_a_job_are_all_offered() -> None:
    """Every field of `Job` can be given at submit, but for those that follow from others."""
    derived = {"id", "payload", "prompt_counted"}
    payloads = {"prompt", "prompt_token_ids", "messages", "tools", "template_kwargs"}
    assert set(FIELDS) == set(Job.__struct_fields__) - derived | payloads
