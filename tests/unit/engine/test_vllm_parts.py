"""What stands between the port and vLLM, without vLLM."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from types import SimpleNamespace as Plain
from typing import Any

import pytest
from tests.support.builders import make_job

from laneway.schemas.job import Job
from laneway.worker.engine import vllm_engine
from laneway.worker.engine.model_folder import missing_files, resolve_model
from laneway.worker.engine.vllm_args import (
    VllmSettings,
    check_names,
    cpu_dtype,
    engine_args,
    lora_rank,
    vllm_settings,
)
from laneway.worker.engine.vllm_output import FLOOR, pieces
from laneway.worker.engine.vllm_prepare import Preparer, first_line
from laneway.worker.engine.vllm_stats import StatsKeeper
from laneway.worker.errors import EngineStartFailed, JobRefused, SettingsError
from laneway.worker.ports import EngineInfo, Prepared
from laneway.worker.settings import WorkerSettings

INFO = EngineInfo(
    model="m",
    version="v",
    context_tokens=64,
    vocabulary=300,
    seats=4,
    step_tokens=32,
    kv_tokens=1000,
    max_loras=1,
)


class Letters:
    """A tokenizer: one token per character."""

    chat_template: str | None = "yes"

    def __init__(self) -> None:
        self.rendered: list[Any] = []

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(1, 256)}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        self.rendered.append((messages, options))
        if messages[0]["role"] == "system":
            raise ValueError("System role\nnot supported " + "x" * 1000)
        return "".join(message["content"] for message in messages)


@pytest.fixture
def tokenizer() -> Letters:
    """A fresh one."""
    return Letters()


@pytest.fixture
def preparer(tokenizer: Letters) -> Preparer:
    """Prepares for an engine of 64 tokens of context."""
    return Preparer(tokenizer, INFO, lambda job, room: ("params", room))


# --- prepare ------------------------------------------------------------------


def test_a_prompt_gets_the_models_special_tokens(preparer: Preparer) -> None:
    """A rendered chat has them from its template; plain text from the tokenizer."""
    assert preparer.prepare(make_job(prompt="ab")).prompt_token_ids == (1, 97, 98)
    chat = make_job(messages=[{"role": "user", "content": "ab"}])
    assert preparer.prepare(chat).prompt_token_ids == (97, 98)


def test_the_answer_is_cut_to_the_context(preparer: Preparer) -> None:
    """`max_tokens` of None means all that fits."""
    assert preparer.prepare(make_job(prompt_token_ids=[5] * 60)).max_tokens == 4
    assert preparer.prepare(make_job(prompt_token_ids=[5] * 60, sampling={"max_tokens": 2})).max_tokens == 2


@pytest.mark.case("C42")
def test_a_hopeless_prompt_is_not_tokenised(
    preparer: Preparer, tokenizer: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes are refused by their length: tokenising them would hold everybody else up."""
    monkeypatch.setattr(tokenizer, "encode", pytest.fail)
    with pytest.raises(JobRefused) as refused:
        preparer.prepare(make_job(prompt="x" * 1_000_000))
    assert refused.value.code == "prompt_too_long"


def test_an_engine_without_a_tokenizer_takes_token_ids() -> None:
    """`skip_tokenizer_init`: text is refused by the name of its field, ids are as good as ever."""
    preparer = Preparer(None, INFO, lambda job, room: ("params", room))
    assert preparer.prepare(make_job(prompt_token_ids=[5, 6])).prompt_token_ids == (5, 6)
    text, chat = make_job(prompt="ab"), make_job(messages=[{"role": "user", "content": "ab"}])
    for field, job in (("prompt", text), ("messages", chat)):
        with pytest.raises(JobRefused, match=f"^{field}: .* takes prompt_token_ids only") as refused:
            preparer.prepare(job)
        assert refused.value.code == "no_tokenizer"


@pytest.mark.case("D55")
def test_a_templates_refusal_is_the_jobs_fault(preparer: Preparer) -> None:
    """Told in the template's words, on one line and short."""
    with pytest.raises(JobRefused, match="System role not supported") as refused:
        preparer.prepare(make_job(messages=[{"role": "system", "content": "a"}]))
    assert refused.value.code == "template_refused"
    assert len(str(refused.value)) < 300


@pytest.mark.case("D55")
def test_a_model_without_template_takes_no_chat(preparer: Preparer, tokenizer: Letters) -> None:
    """It says so, instead of guessing a format."""
    tokenizer.chat_template = None
    with pytest.raises(JobRefused) as refused:
        preparer.prepare(make_job(messages=[{"role": "user", "content": "a"}]))
    assert refused.value.code == "no_chat_template"


def test_messages_reach_the_template_as_it_expects_them(preparer: Preparer, tokenizer: Letters) -> None:
    """Text parts are joined, arguments of tool calls are objects, extra variables are passed on."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    preparer.prepare(
        make_job(
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ],
            template_kwargs={"enable_thinking": False},
        )
    )
    [(messages, options)] = tokenizer.rendered
    assert messages[0]["content"] == "a\nb"
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert options["enable_thinking"] is False
    assert options["add_generation_prompt"] is True


@pytest.mark.case("D45")
def test_tokens_that_the_model_has_no_row_for_are_refused(preparer: Preparer) -> None:
    """Also where the tokenizer made them: its vocabulary may be larger than the model's."""
    with pytest.raises(JobRefused) as refused:
        preparer.prepare(make_job(prompt=chr(5000)))
    assert refused.value.code == "token_out_of_range"


@pytest.mark.case("D51")
async def test_a_constraint_that_compiles_for_minutes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job is refused, and jobs without constraint never wait for it."""
    compiled = threading.Event()

    def prepare(job: Job) -> Prepared:
        if job.sampling.structured_outputs is not None:
            compiled.wait(30)
        return Prepared(job=job, prompt_token_ids=(1,), max_tokens=1)

    monkeypatch.setattr(vllm_engine, "GRAMMAR_S", 0.05)
    engine = vllm_engine.VllmEngine(VllmSettings(model="m"))
    monkeypatch.setattr(engine, "_preparer", Plain(prepare=prepare), raising=False)
    slow = make_job(sampling={"structured_outputs": {"regex": "(a|aa)+"}})
    try:
        with pytest.raises(JobRefused) as refused:
            await engine.prepare(slow)
        assert refused.value.code == "constraint_too_slow"
        assert (await engine.prepare(make_job())).max_tokens == 1
    finally:
        compiled.set()
        await engine.stop()


# --- outputs ------------------------------------------------------------------


@pytest.mark.case("D54")
def test_infinite_log_probabilities_get_a_floor() -> None:
    """JSON has no infinity, and a result must not fail after the work is done."""
    table = [
        {
            7: Plain(logprob=-math.inf, rank=2, decoded_token="a"),
            8: Plain(logprob=-0.5, rank=1, decoded_token=None),
        }
    ]
    answer = Plain(index=1, text="a", token_ids=[7], finish_reason="stop", stop_reason=7, logprobs=table)
    [piece] = pieces(Plain(outputs=[answer], num_cached_tokens=None))
    assert (piece.index, piece.finish_reason, piece.stop_reason, piece.cached_tokens) == (1, "stop", 7, 0)
    assert piece.logprobs is not None
    assert piece.logprobs[0].logprob == FLOOR
    assert piece.logprobs[0].top == ((8, "", -0.5), (7, "a", FLOOR))


def test_stats_add_up() -> None:
    """Steps count only what the scheduler reports."""
    keeper = StatsKeeper()
    cache = Plain(queries=10, hits=4)
    scheduler = Plain(num_running_reqs=2, num_waiting_reqs=1, kv_cache_usage=0.5, prefix_cache_stats=cache)
    keeper.record(scheduler, Plain(num_generation_tokens=2, num_preempted_reqs=0))
    keeper.record(None, Plain(num_generation_tokens=3, num_preempted_reqs=1))
    keeper.record(scheduler, None)
    stats = keeper.stats()
    assert (stats.steps, stats.generated_tokens, stats.prefix_hits, stats.preemptions) == (2, 5, 8, 1)
    assert (stats.running, stats.waiting, stats.kv_usage) == (2, 1, 0.5)


def test_an_errors_words_are_one_short_line() -> None:
    """Whatever a library says."""
    assert first_line(ValueError("a\n  b")) == "a b"
    assert first_line(KeyError()) == "KeyError"
    assert len(first_line(ValueError("x" * 10_000))) == 200


# --- settings -----------------------------------------------------------------


def test_scheduling_is_always_said_explicitly() -> None:
    """vLLM's own defaults depend on the platform and on who calls it."""
    for cpu in (True, False):
        args = engine_args(VllmSettings(model="m"), "m", cpu=cpu)
        assert args["enable_chunked_prefill"] is True
        assert args["enable_prefix_caching"] is True
        assert args["scheduling_policy"] == "priority"
        assert args["max_num_seqs"] > 1
        assert args["max_num_batched_tokens"] >= args["max_num_seqs"]
        assert "enable_lora" not in args


def test_given_arguments_win() -> None:
    """`--engine.max-num-seqs 4` is 4, whatever suits the platform."""
    settings = vllm_settings(WorkerSettings(engine_args={"max_num_seqs": 4, "seed": 1}))
    args = engine_args(settings, "m", cpu=True)
    assert args["max_num_seqs"] == 4
    assert args["seed"] == 1


def test_on_a_cpu_one_adapter_slot_stays_empty(tmp_path: Path) -> None:
    """vLLM's CPU kernels give base-model jobs to the last slot."""
    settings = VllmSettings(model="m", max_loras=2, adapters=(str(tmp_path),))
    assert engine_args(settings, "m", cpu=True)["max_loras"] == 3
    assert engine_args(settings, "m", cpu=False)["max_loras"] == 2


def test_a_misspelt_argument_is_refused_with_the_nearest_name() -> None:
    """And those that are options of the worker are told as such."""
    known = ["max_num_seqs", "seed", "model", "max_loras"]
    check_names(["seed"], known)
    with pytest.raises(SettingsError, match="max_num_seqs"):
        check_names(["max_num_seq"], known)
    for name in ("model", "max_loras"):
        with pytest.raises(SettingsError, match=f"option `{name}`"):
            check_names([name], known)


def test_the_rank_fits_all_adapters(tmp_path: Path) -> None:
    """Rounded up to what vLLM takes; unreadable adapters and absurd ranks do not count."""
    for rank in (4, 24, 9999):
        folder = tmp_path / str(rank)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(f'{{"r": {rank}}}')
    assert lora_rank([]) == 16
    assert lora_rank([str(tmp_path / "4")]) == 16
    assert lora_rank([str(tmp_path / "4")], least=8) == 8
    assert lora_rank([], least=8) == 16
    assert lora_rank([str(tmp_path / name) for name in ("4", "24", "9999", "none")]) == 32


def test_bfloat16_only_where_the_processor_has_it(tmp_path: Path) -> None:
    """Emulated it is twenty times slower than float32."""
    (tmp_path / "new").write_text("flags : avx2 avx512_bf16 fma")
    (tmp_path / "old").write_text("flags : avx2 fma")
    assert cpu_dtype(tmp_path / "new") == "auto"
    assert cpu_dtype(tmp_path / "old") == "float32"
    assert cpu_dtype(tmp_path / "none") == "auto"


# --- model folders ------------------------------------------------------------


def test_what_a_model_folder_lacks_is_named(tmp_path: Path) -> None:
    """Before vLLM is started, one file after the other."""
    seen = []
    for name, text in (
        ("config.json", "{}"),
        ("tokenizer.json", "{}"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'),
        ("one.safetensors", ""),
        ("two.safetensors", ""),
    ):
        with pytest.raises(EngineStartFailed) as failed:
            resolve_model(str(tmp_path))
        seen.append(str(failed.value).rpartition(" lacks ")[2])
        (tmp_path / name).write_text(text)
    assert seen[:3] == ["config.json", "tokenizer.json", "model.safetensors"]
    assert seen[3:] == ["one.safetensors and 1 more weight files", "two.safetensors"]
    assert missing_files(tmp_path) == ""
    assert resolve_model(str(tmp_path)) == str(tmp_path)


def test_what_the_engine_is_told_to_do_without_is_not_missed(tmp_path: Path) -> None:
    """A `config.json` alone is enough for made-up weights and prompts of token ids."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineStartFailed, match=r"lacks tokenizer\.json"):
        resolve_model(str(tmp_path), {"load_format": "dummy"})
    shape = resolve_model(str(tmp_path), {"load_format": "dummy", "skip_tokenizer_init": True})
    assert shape == str(tmp_path)


def test_ids_are_left_to_vllm() -> None:
    """What looks like no path is a Hugging Face id."""
    assert resolve_model("org/model-1b") == "org/model-1b"
    with pytest.raises(EngineStartFailed):
        resolve_model("./nowhere")
