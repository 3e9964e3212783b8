"""An adapter is judged by its files, since the engine may die of a bad one, or answer with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laneway.schemas.ids import AdapterId
from laneway.worker.engine.adapter_files import adapter_digest, adapter_rank, check_adapter_files
from laneway.worker.errors import JobRefused
from laneway.worker.ports import Adapter

pytest.importorskip("safetensors")

from laneway.worker.engine.demo_model import write_adapter

CONFIG = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
MODEL = {
    f"model.layers.{layer}.self_attn.{name}.weight": (size, 64)
    for layer in range(2)
    for name, size in (("q_proj", 64), ("v_proj", 32))
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good adapter."""
    write_adapter(tmp_path / "good", CONFIG, 1)
    return tmp_path / "good"


def check(folder: Path, model: Any = MODEL, max_rank: int = 16) -> None:
    check_adapter_files(Adapter(id=AdapterId("it"), path=str(folder)), max_rank, model)


def test_a_good_adapter_passes(folder: Path) -> None:
    """Also where the base model's tensors are not known."""
    check(folder)
    check(folder, model={})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"r": 64}, "rank is 64"),
        ({"r": 0}, "rank of 1"),
        ({"r": "8"}, "rank of 1"),
        ({"rank_pattern": {"q_proj": 99}}, "rank is 99"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"peft_type": "IA3"}, "LORA"),
        ({"target_modules": []}, "target_modules"),
        ({"modules_to_save": ["lm_head"]}, "whole modules"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "bias"),
    ],
)
def test_a_bad_configuration_is_named(folder: Path, change: dict[str, Any], says: str) -> None:
    """Each refusal tells what was found and what is the limit."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(JobRefused, match=says) as refused:
        check(folder)
    assert refused.value.code == "bad_adapter"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", "[" * 100_000])
def test_a_configuration_that_cannot_be_read(folder: Path, text: str) -> None:
    """Whatever stands in the file, it is a refusal."""
    (folder / "adapter_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(JobRefused):
        check(folder)


@pytest.mark.parametrize("cut", [0, 4, 8, 50, -1])
def test_weights_that_are_cut_off(folder: Path, cut: int) -> None:
    """Found without reading them."""
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(JobRefused, match="cut off"):
        check(folder)


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    """Its code tells it from a bad adapter: it may come back."""
    (folder / missing).unlink()
    with pytest.raises(JobRefused, match=missing) as refused:
        check(folder)
    assert refused.value.code == "adapter_missing"


def test_an_adapter_of_a_narrower_model_is_refused(folder: Path) -> None:
    """vLLM would load it into a corner of the wider matrices, and answer."""
    wider = {name: (size, 128) for name, (size, _) in MODEL.items()}
    with pytest.raises(JobRefused, match="not for this model"):
        check(folder, model=wider)


def test_an_adapter_of_a_deeper_model_is_refused(tmp_path: Path) -> None:
    """It names layers that the model does not have."""
    write_adapter(tmp_path / "deep", {**CONFIG, "num_hidden_layers": 3}, 1)
    with pytest.raises(JobRefused, match=r"layers\.2"):
        check(tmp_path / "deep")


def test_a_model_with_names_of_its_own_is_not_judged(folder: Path) -> None:
    """Where no name of the adapter's is found, the engine decides."""
    check(folder, model={"decoder.block.0.qkv.weight": (96, 64)})


def test_the_digest_follows_the_content(folder: Path, tmp_path: Path) -> None:
    """Two adapters of the same content share it; one changed byte changes it; no adapter has none."""
    write_adapter(tmp_path / "same", CONFIG, 1)
    write_adapter(tmp_path / "other", CONFIG, 2)
    assert adapter_digest(folder) == adapter_digest(tmp_path / "same") != adapter_digest(tmp_path / "other")
    assert adapter_digest(tmp_path / "nothing") == ""
    assert adapter_rank(folder) == 8
    assert adapter_rank(tmp_path / "nothing") == 0
