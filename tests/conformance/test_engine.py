"""What an engine is: every promise of the `Engine` port, kept by the fake engine and by vLLM alike."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.builders import make_job
from tests.support.engines import GREEDY, PROMPT, Bench, endless, greedy, spoil
from tests.support.wait import wait_until

from laneway.schemas.ids import AdapterId
from laneway.schemas.job import Chat, ChatMessage, Job, Prompt, TokenIds
from laneway.schemas.sampling import Sampling, StructuredOutput
from laneway.worker.errors import AttemptFailed, JobRefused
from laneway.worker.ports import Adapter

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.filterwarnings("default")]

# --- answers ------------------------------------------------------------------


async def test_pieces_join_to_the_answer(bench: Bench) -> None:
    """Each step brings its tokens once; the last piece of an answer, and no other, says how it ended."""
    answers = await bench.run(greedy())
    assert len(answers.tokens()) == 12
    assert answers.text().strip()
    assert [piece.finish_reason for piece in answers.pieces[:-1]] == [None] * (len(answers.pieces) - 1)
    assert answers.reason() == "length"
    assert answers.text() == await bench.canary()


async def test_several_answers_of_one_job_each_end(bench: Bench) -> None:
    """`n=3` brings three answers, told apart by their index."""
    answers = await bench.run(make_job(prompt=PROMPT, sampling={"n": 3, "max_tokens": 5, "seed": 1}))
    for index in range(3):
        assert answers.reason(index) == "length"
        assert len(answers.tokens(index)) == 5


async def test_a_stop_string_ends_the_answer_and_is_not_in_it(bench: Bench) -> None:
    """The text ends before the stop string, even when it had begun to stream."""
    word = (await bench.canary()).split()[3]
    answers = await bench.run(greedy(sampling={**GREEDY, "stop": [word]}))
    assert answers.reason() == "stop"
    assert answers.pieces[-1].stop_reason == word
    assert word not in answers.text()
    kept = await bench.run(greedy(sampling={**GREEDY, "stop": [word], "include_stop_str_in_output": True}))
    assert kept.text().endswith(word)


async def test_a_stop_token_ends_the_answer(bench: Bench) -> None:
    """A token of `stop_token_ids` is told as the reason."""
    tokens = (await bench.run(greedy())).tokens()
    answers = await bench.run(greedy(sampling={**GREEDY, "stop_token_ids": [tokens[4]]}))
    assert answers.reason() == "stop"
    assert answers.pieces[-1].stop_reason == tokens[4]
    assert answers.tokens() == tokens[: tokens.index(tokens[4]) + 1]


@pytest.mark.case("D54")
async def test_log_probabilities_are_finite(bench: Bench) -> None:
    """One per token, none infinite: minus infinity is -9999.0, also where only two tokens are allowed."""
    answers = await bench.run(greedy(sampling={**GREEDY, "logprobs": 5, "allowed_token_ids": [40, 41]}))
    logprobs = [it for piece in answers.pieces for it in piece.logprobs or ()]
    assert [it.token_id for it in logprobs] == list(answers.tokens())
    for it in logprobs:
        assert -9999.0 <= it.logprob <= 0.0
        assert all(math.isfinite(logprob) for _, _, logprob in it.top)
    assert set(answers.tokens()) <= {40, 41}


async def test_a_chat_is_answered(bench: Bench) -> None:
    """Messages go through the chat template; content may be a list of text parts."""
    chat = greedy(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "What is the sea?"}]},
        ]
    )
    assert (await bench.run(chat)).text().strip()


async def test_without_max_tokens_the_context_is_the_limit(bench: Bench) -> None:
    """`max_tokens` beyond the context is cut to what fits; the answer then ends with `length`."""
    room = bench.engine.info.context_tokens - 100
    prepared = await bench.engine.prepare(
        make_job(prompt_token_ids=[70] * 100, sampling={"max_tokens": 1_000_000})
    )
    assert prepared.max_tokens == room
    open_end = await bench.engine.prepare(make_job(prompt_token_ids=[70] * 100))
    assert 1 <= open_end.max_tokens <= room


async def test_a_seed_repeats_the_answer(bench: Bench) -> None:
    """Two runs with one seed draw the same tokens."""
    job = make_job(prompt=PROMPT, sampling={"max_tokens": 8, "seed": 7})
    assert (await bench.run(job)).tokens() == (await bench.run(job)).tokens()


# --- the batch ----------------------------------------------------------------


async def test_jobs_share_the_engine(bench: Bench) -> None:
    """Twice as many jobs as seats all end, and the steps are shared: far fewer than tokens."""
    before = bench.engine.stats()
    jobs = [make_job(prompt=f"{PROMPT} {i}", sampling=GREEDY) for i in range(2 * bench.engine.info.seats)]
    answers = await asyncio.gather(*map(bench.run, jobs))
    after = bench.engine.stats()
    assert all(it.reason() in ("length", "stop") for it in answers)
    tokens = sum(len(it.tokens()) for it in answers)
    assert after.generated_tokens - before.generated_tokens >= tokens
    assert after.steps - before.steps < tokens / 2


async def test_a_lower_priority_number_goes_first(bench: Bench) -> None:
    """When a seat comes free, a latency job that came last goes in before throughput jobs that came first."""
    fill = [asyncio.create_task(bench.run(endless(60), priority=1)) for _ in range(bench.engine.info.seats)]
    await wait_until(lambda: bench.engine.stats().running >= bench.engine.info.seats, timeout=60)
    order: list[str] = []

    async def note(name: str, priority: int) -> None:
        await bench.run(greedy(), priority=priority)
        order.append(name)

    late = [asyncio.create_task(note("throughput", 1)) for _ in range(3)]
    await asyncio.sleep(0)
    soon = asyncio.create_task(note("latency", 0))
    await asyncio.gather(soon, *late, *fill)
    assert order[0] == "latency"


@pytest.mark.case("B29")
async def test_abort_ends_a_run_and_frees_its_seat(bench: Bench) -> None:
    """An aborted answer ends with `abort`, which is no completion; whoever waited for the seat gets it."""
    seats = bench.engine.info.seats
    fill = [asyncio.create_task(bench.run(endless(700), name=f"fill-{i}")) for i in range(seats)]
    await wait_until(lambda: bench.engine.stats().running >= seats, timeout=60)
    waiting = asyncio.create_task(bench.run(greedy()))
    await bench.engine.abort("fill-3")
    assert (await fill[3]).reason() == "abort"
    assert (await waiting).reason() == "length"
    await asyncio.gather(*(bench.engine.abort(f"fill-{i}") for i in range(seats)))
    assert {(await task).reason() for task in fill} == {"abort"}
    await bench.empty()


@pytest.mark.case("B31")
async def test_abort_of_several_answers_ends_them_all(bench: Bench) -> None:
    """A job with `n=4` is one run: one abort ends it."""
    job = make_job(prompt=PROMPT, sampling={"n": 4, "max_tokens": 700, "ignore_eos": True})
    stream = bench.open(job, name="many")
    steps = [await anext(stream)]
    await bench.engine.abort("many")
    steps += [pieces async for pieces in stream]
    assert steps[-1][-1].finish_reason == "abort"
    await bench.empty()


async def test_closing_the_stream_aborts_the_run(bench: Bench) -> None:
    """Whoever stops listening leaves nothing behind in the engine."""
    streams = [bench.open(endless(700)) for _ in range(4)]
    for stream in streams:
        await anext(stream)
        await stream.aclose()
    await bench.empty()


async def test_cancelling_the_listener_aborts_the_run(bench: Bench) -> None:
    """A cancelled coroutine leaves nothing behind either, not even while it waits for the first piece."""
    tasks = [asyncio.create_task(bench.run(endless(700))) for _ in range(2 * bench.engine.info.seats)]
    await wait_until(lambda: bench.engine.stats().running > 0, timeout=60)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
    await bench.empty()


async def test_unknown_runs_can_be_aborted(bench: Bench) -> None:
    """Aborting what is not there, or has ended, is no error."""
    await bench.run(greedy(), name="ended")
    await bench.engine.abort("ended")
    await bench.engine.abort("never")


async def test_a_name_is_one_runs(bench: Bench) -> None:
    """A second run under the same name is refused as an attempt, and the first goes on."""
    stream = bench.open(endless(30), name="twin")
    await anext(stream)
    with pytest.raises(AttemptFailed):
        await bench.run(greedy(), name="twin")
    assert [pieces async for pieces in stream][-1][-1].finish_reason == "length"


# --- refusals -----------------------------------------------------------------


def raw(**fields: Any) -> Job:
    """A job as it might stand in a stream: not checked by anybody."""
    fields.setdefault("payload", Prompt(text=PROMPT))
    return Job(id=make_job().id, model="demo", **fields)


def bad_jobs(vocabulary: int, context: int) -> dict[str, Job]:
    """Jobs that only an engine, or nobody yet, has refused."""
    many = tuple(range(5000))
    return {
        "empty prompt": raw(payload=TokenIds(ids=())),
        "no text": raw(payload=Prompt(text="")),
        "longer than the context": raw(payload=TokenIds(ids=(70,) * (context + 1))),
        "as long as the context": raw(payload=TokenIds(ids=(70,) * context)),
        "megabytes": raw(payload=Prompt(text="word " * 1_000_000)),
        "token beyond the vocabulary": raw(payload=TokenIds(ids=(70, vocabulary))),
        "negative token": raw(payload=TokenIds(ids=(70, -1))),
        "huge token": raw(payload=TokenIds(ids=(2**63,))),
        "stop token beyond": raw(sampling=Sampling(stop_token_ids=(vocabulary,), min_tokens=4)),
        "bias beyond": raw(sampling=Sampling(logit_bias={vocabulary: 1.0})),
        "infinite bias": raw(sampling=Sampling(logit_bias={70: math.inf})),
        "allowed beyond": raw(sampling=Sampling(allowed_token_ids=(vocabulary + 5,))),
        "none allowed": raw(sampling=Sampling(allowed_token_ids=())),
        "many stop tokens": raw(sampling=Sampling(stop_token_ids=many)),
        "many biases": raw(sampling=Sampling(logit_bias=dict.fromkeys(many, 1.0))),
        "many allowed": raw(sampling=Sampling(allowed_token_ids=many)),
        "many stop strings": raw(sampling=Sampling(stop=("x",) * 5000)),
        "NaN temperature": raw(sampling=Sampling(temperature=math.nan)),
        "tiny temperature": raw(sampling=Sampling(temperature=1e-300)),
        "endless temperature": raw(sampling=Sampling(temperature=math.inf)),
        "huge seed": raw(sampling=Sampling(seed=2**63)),
        "huger seed": raw(sampling=Sampling(seed=2**64)),
        "millions of answers": raw(sampling=Sampling(n=5_000_000)),
        "many greedy answers": raw(sampling=Sampling(n=2, temperature=0.0)),
        "many logprobs": raw(sampling=Sampling(logprobs=10**9)),
        "negative top_p": raw(sampling=Sampling(top_p=-1.0)),
        "surrogate in stop": raw(sampling=Sampling(stop=("\ud800",))),
        "surrogate in prompt": raw(payload=Prompt(text="\ud800")),
        "min over max": raw(sampling=Sampling(min_tokens=9, max_tokens=3)),
        "an image": raw(payload=Chat(messages=(ChatMessage(role="user", content=({"type": "image_url"},)),))),
        "surrogate in a message": raw(payload=Chat(messages=(ChatMessage(role="user", content="\ud800"),))),
        "two constraints": raw(
            sampling=Sampling(structured_outputs=StructuredOutput(regex="a", choice=("a",)))
        ),
        "no constraint": raw(sampling=Sampling(structured_outputs=StructuredOutput(json_object=False))),
        "empty regex": raw(sampling=Sampling(structured_outputs=StructuredOutput(regex=""))),
    }


@pytest.mark.parametrize("name", bad_jobs(1, 1))
@pytest.mark.case("D45", "D46", "D47", "D49")
async def test_a_bad_job_is_refused_and_hurts_nobody(bench: Bench, name: str) -> None:
    """`JobRefused`, short and without the prompt; another job in the engine answers as ever."""
    job = bad_jobs(bench.engine.info.vocabulary, bench.engine.info.context_tokens)[name]
    neighbour = asyncio.create_task(bench.canary())
    with pytest.raises(JobRefused) as refused:
        await bench.run(job)
    assert len(str(refused.value)) < 400
    assert str(refused.value).isprintable()
    assert await neighbour


async def test_an_unknown_adapter_is_refused(bench: Bench) -> None:
    """A name that was never loaded is the job's own fault."""
    with pytest.raises(JobRefused) as refused:
        await bench.run(greedy(lora="nobody"))
    assert refused.value.code == "unknown_adapter"
    await bench.canary()


# --- adapters -----------------------------------------------------------------


async def test_adapters_change_the_answer(bench: Bench) -> None:
    """Base model and two adapters give three answers, each its own again when all run at once, in one slot."""
    jobs = {"": greedy(), "demo-a": greedy(lora="demo-a"), "demo-b": greedy(lora="demo-b")}
    for name in bench.adapters:
        await bench.load(name)
    alone = {name: (await bench.run(job)).text() for name, job in jobs.items()}
    assert len(set(alone.values())) == 3
    both = await asyncio.gather(*(bench.run(job) for job in jobs.values()))
    assert [it.text() for it in both] == list(alone.values())


async def test_more_adapters_than_slots_wait_for_each_other(bench: Bench) -> None:
    """Six distinct adapters in an engine with one slot: all their jobs end, in several rounds."""
    paths = list(bench.adapters.values())
    names = [f"copy-{i}" for i in range(6)]
    for i, name in enumerate(names):
        await bench.engine.load_adapter(
            Adapter(id=AdapterId(name), path=str(paths[i % 2]), digest=f"copy-{i % 2}")
        )
    jobs = [greedy(lora=name) for name in names for _ in range(3)]
    answers = await asyncio.gather(*map(bench.run, jobs))
    assert all(it.reason() in ("length", "stop") for it in answers)
    assert len({it.text() for it in answers}) == 2


async def test_a_run_that_waits_for_a_slot_can_be_aborted(bench: Bench) -> None:
    """Abort reaches it there, and it leaves nobody waiting."""
    for name in bench.adapters:
        await bench.load(name)
    first = bench.open(endless(300, lora="demo-a"), name="first")
    await anext(first)
    second = asyncio.create_task(bench.run(greedy(lora="demo-b"), name="second"))
    await bench.canary()
    await bench.engine.abort("second")
    assert (await second).reason() == "abort"
    await first.aclose()
    assert (await bench.run(greedy(lora="demo-b"))).reason() in ("length", "stop")


@pytest.mark.vllm
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "how", ["rank", "whole modules", "cut off", "no weights", "unreadable config", "no folder"]
)
async def test_a_bad_adapter_is_refused_before_the_engine_sees_it(
    vllm_bench: Bench, tmp_path: Path, how: str
) -> None:
    """Told from its files; the engine, and the adapters it holds, are unharmed."""
    path = tmp_path / "none"
    if how != "no folder":
        path = spoil(vllm_bench.adapters["demo-a"], tmp_path / "bad", how)
    with pytest.raises(JobRefused) as refused:
        await vllm_bench.engine.load_adapter(Adapter(id=AdapterId("bad"), path=str(path)))
    assert refused.value.code in ("bad_adapter", "adapter_missing")
    with pytest.raises(JobRefused):
        await vllm_bench.run(greedy(lora="bad"))
    await vllm_bench.canary()


@pytest.mark.vllm
@pytest.mark.timeout(400)
async def test_an_adapter_of_another_model_is_refused(vllm_bench: Bench, tmp_path: Path) -> None:
    """Its files are in order, so that only the engine can tell; the engine lives and the slot is free again."""
    from laneway.worker.engine.demo_model import write_adapter

    other = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    write_adapter(tmp_path / "other", other, 1)
    for _ in range(2):
        with pytest.raises(JobRefused):
            await vllm_bench.engine.load_adapter(Adapter(id=AdapterId("other"), path=str(tmp_path / "other")))
    await vllm_bench.load("demo-a")
    assert (await vllm_bench.run(greedy(lora="demo-a"))).text()


@pytest.mark.vllm
@pytest.mark.timeout(400)
async def test_an_adapter_whose_folder_vanished_fails_only_its_own_jobs(
    vllm_bench: Bench, tmp_path: Path
) -> None:
    """Pushed out by others and gone from disk: its next job is refused, the others never notice."""
    gone = spoil(vllm_bench.adapters["demo-a"], tmp_path / "gone", "nothing")
    await vllm_bench.engine.load_adapter(Adapter(id=AdapterId("gone"), path=str(gone), digest="gone"))
    await vllm_bench.run(greedy(lora="gone"))
    for file in gone.iterdir():
        file.unlink()
    gone.rmdir()
    for i in range(4):  # the engine holds two
        adapter = Adapter(id=AdapterId(f"push-{i}"), path=str(vllm_bench.adapters["demo-b"]), digest=str(i))
        await vllm_bench.engine.load_adapter(adapter)
    with pytest.raises(JobRefused):
        await vllm_bench.run(greedy(lora="gone"))
    assert (await vllm_bench.run(greedy(lora="push-3"))).text()


# --- vLLM itself --------------------------------------------------------------


@pytest.mark.vllm
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lora", [None, "demo-a", "demo-b"])
async def test_answers_are_those_of_vllm(vllm_bench: Bench, lora: str | None) -> None:
    """Greedy answers, base and adapters, equal those of a direct call of `AsyncLLM.generate`."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    engine: Any = vllm_bench.engine
    if lora:
        await vllm_bench.load(lora)
    answers = await vllm_bench.run(greedy(lora=lora))
    request = None
    if lora:
        # The very adapter that is loaded, under the number that it was given.
        request = next(it for it in engine._adapters._loaded.values() if it.lora_name == f"{lora}@{lora}")
        assert isinstance(request, LoRARequest)
    direct = None
    async for output in engine._llm.generate(
        PROMPT, SamplingParams(temperature=0, max_tokens=12), "direct", lora_request=request
    ):
        direct = output
    assert direct is not None
    assert answers.tokens() == tuple(direct.outputs[0].token_ids)
    assert answers.text() == direct.outputs[0].text


BAD_GRAMMARS = {
    "bad regex": StructuredOutput(regex="["),
    "bad schema": StructuredOutput(json={"type": "str"}),
    "schema that is no JSON": StructuredOutput(json="{"),
    "bad grammar": StructuredOutput(grammar='root ::= "a'),
    "undefined rule": StructuredOutput(grammar="root ::= nothing"),
}


@pytest.mark.vllm
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", BAD_GRAMMARS)
@pytest.mark.case("D50")
async def test_a_bad_constraint_is_refused_both_times(vllm_bench: Bench, name: str) -> None:
    """Never an unconstrained answer, never a dead engine, and no half-made state that a second try would meet."""
    for _ in range(2):
        with pytest.raises(JobRefused):
            await vllm_bench.run(raw(sampling=Sampling(structured_outputs=BAD_GRAMMARS[name], max_tokens=5)))
    await vllm_bench.canary()


@pytest.mark.vllm
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("constraint", "accepted"),
    [
        ({"choice": ["yes", "no"]}, ("yes", "no")),
        ({"regex": "[ab]{3}"}, ("aaa", "aab", "aba", "abb", "baa", "bab", "bba", "bbb")),
        ({"json": {"enum": [1, 2]}}, ("1", "2")),
    ],
)
async def test_constraints_hold(
    vllm_bench: Bench, constraint: dict[str, Any], accepted: tuple[str, ...]
) -> None:
    """The answer is one of those that the constraint admits."""
    sampling = {"max_tokens": 20, "structured_outputs": constraint, "seed": 3}
    assert (await vllm_bench.run(make_job(prompt=PROMPT, sampling=sampling))).text() in accepted


@pytest.mark.vllm
@pytest.mark.timeout(400)
async def test_templates_are_not_for_jobs_to_bring(vllm_bench: Bench) -> None:
    """A template is a program: `template_kwargs` cannot replace the model's."""
    chat = Chat(
        messages=(ChatMessage(role="user", content="Hi"),), template_kwargs={"chat_template": "{{ 1 }}"}
    )
    with pytest.raises(JobRefused) as refused:
        await vllm_bench.engine.prepare(raw(payload=chat))
    assert refused.value.code == "template_refused"


@pytest.mark.vllm
@pytest.mark.timeout(400)
async def test_cached_prompts_are_told(vllm_bench: Bench) -> None:
    """The second run of a long prompt finds whole blocks of it in the prefix cache."""
    job = make_job(prompt_token_ids=list(range(100, 500)), sampling=GREEDY)
    await vllm_bench.run(job)
    assert (await vllm_bench.run(job)).pieces[0].cached_tokens >= 128
    assert vllm_bench.engine.stats().prefix_hits > 0
