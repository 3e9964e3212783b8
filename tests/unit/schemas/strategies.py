"""Hypothesis strategies for everything that travels."""

from __future__ import annotations

from hypothesis import strategies as st

from laneway.schemas import (
    Cancelled,
    Choice,
    Completed,
    Ended,
    Expired,
    Failed,
    Job,
    JobError,
    JobId,
    JobState,
    Restarted,
    Result,
    Started,
    Timeline,
    Tokens,
    Usage,
    WorkerId,
    build_job,
)
from laneway.schemas.ids import new_job_id
from laneway.schemas.outcome import TokenLogprob
from laneway.schemas.record import Kept

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
some_text = text.filter(bool)
word = st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=8).map(tuple)
job_ids = st.builds(new_job_id, word, st.integers(0, 4094))

data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
mapping = st.dictionaries(text, data, max_size=3)

_contents = some_text | st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": some_text}), min_size=1, max_size=3
)
_messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": _contents},
        optional={"name": some_text, "tool_calls": st.lists(mapping, max_size=2)},
    ),
    min_size=1,
    max_size=4,
)
payloads = st.one_of(
    st.fixed_dictionaries({"prompt": some_text}),
    st.fixed_dictionaries({"prompt_token_ids": token_ids.filter(bool)}),
    st.fixed_dictionaries(
        {"messages": _messages}, optional={"tools": st.lists(mapping, max_size=2), "template_kwargs": mapping}
    ),
)
samplings = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.just(0) | st.floats(0.01, 2),
        "top_p": st.floats(0.01, 1),
        "top_k": st.integers(-1, 100),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "max_tokens": st.integers(100, 1000),
        "min_tokens": st.integers(0, 100),
        "stop": some_text | st.lists(some_text, max_size=4),
        "stop_token_ids": token_ids,
        "logprobs": st.integers(0, 20),
        "logit_bias": st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=4),
        "structured_outputs": st.fixed_dictionaries({"json": mapping})
        | st.fixed_dictionaries({"choice": st.lists(some_text, min_size=1, max_size=3)}),
    },
)
options = st.fixed_dictionaries(
    {},
    optional={
        "slo": st.sampled_from(["latency", "throughput"]),
        "bucket": st.sampled_from(["short", "medium", "long"]),
        "lora": word,
        "tenant": word,
        "stream": st.booleans(),
        "deadline_ms": st.integers(1, 10**9),
        "ttft_ms": st.integers(1, 10**6),
        "idempotency_key": word,
        "metadata": st.dictionaries(text.filter(lambda key: len(key.encode()) <= 64), text, max_size=3),
        "attempts": st.fixed_dictionaries({"max_attempts": st.integers(1, 100)}),
    },
)


@st.composite
def job_fields(draw: st.DrawFn) -> dict[str, object]:
    """What an application might write, all of it valid."""
    return {**draw(payloads), **draw(options), "sampling": draw(samplings)}


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Checked jobs."""
    model = draw(word)
    return build_job(id=new_job_id(model, draw(st.integers(0, 4094))), model=model, **draw(job_fields()))


usages = st.builds(Usage, prompt_tokens=st.integers(0, 10**6), output_tokens=st.integers(0, 10**6))
logprobs = st.builds(TokenLogprob, token_id=st.integers(0, 2**31), token=text, logprob=st.floats(-9999, 0))
choices = st.lists(
    st.builds(Choice, index=st.integers(0, 63), text=text, token_ids=token_ids, finish_reason=st.none() | st.just("stop"),
              stop_reason=st.none() | text | st.integers(0, 10**6), logprobs=st.none() | st.lists(logprobs, max_size=2).map(tuple)),
    max_size=3,
).map(tuple)  # fmt: skip
outcomes = st.one_of(
    st.builds(Completed, choices=choices, usage=usages),
    st.builds(Failed, error=st.builds(JobError, code=word, message=text), choices=choices),
    st.builds(Cancelled, choices=choices, usage=st.none() | usages),
    st.builds(Expired, choices=choices, usage=st.none() | usages),
)
results = st.builds(
    Result,
    job_id=job_ids,
    outcome=outcomes,
    model=word,
    attempt=st.integers(0, 100),
    worker=word.map(WorkerId),
    timeline=st.builds(Timeline, submitted_ms=st.integers(0, 2**42)),
    metadata=st.dictionaries(text, text, max_size=2),
    extra=mapping,
)
_attempts = st.integers(1, 9)
kept = st.builds(
    Kept,
    attempt=st.integers(1, 9),
    text=text,
    token_ids=token_ids,
    finish_reason=st.sampled_from([None, "stop", "length"]),
    stop_reason=st.none() | st.integers(0, 2**31 - 1),
    first_token_ms=st.integers(0, 2**50),
    lora_digest=text,
)
events = st.one_of(
    st.builds(Started, job_id=job_ids, attempt=_attempts),
    st.builds(
        Tokens, job_id=job_ids, attempt=_attempts, seq=st.integers(0, 999), text=text, token_ids=token_ids
    ),
    st.builds(Restarted, job_id=job_ids, attempt=_attempts),
    st.builds(Ended, job_id=job_ids, attempt=_attempts, state=st.sampled_from([s.value for s in JobState])),
)

SOME_ID: JobId = new_job_id("demo", 0)
