"""What a worker accepts as settings, and what it says to what it does not accept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from laneway.worker.errors import SettingsError
from laneway.worker.settings import WorkerSettings, load_settings, mask_url, option_docs


def test_the_command_line_outranks_the_environment_and_that_the_file(tmp_path: Path) -> None:
    """Precedence: command line, environment, TOML file, default."""
    config = tmp_path / "worker.toml"
    config.write_text("lease_s = 20\ndrain_s = 20\nhang_s = 20\n")
    settings = load_settings(
        ["--config", str(config), "--lease-s", "40"], {"LANEWAY_LEASE_S": "30", "LANEWAY_DRAIN_S": "30"}
    )
    assert (settings.lease_s, settings.drain_s, settings.hang_s) == (40, 30, 20)
    assert settings.claim_most == WorkerSettings().claim_most


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    """`LANEWAY_CONFIG` is `--config`."""
    config = tmp_path / "worker.toml"
    config.write_text('model = "org/model"\n')
    assert load_settings([], {"LANEWAY_CONFIG": str(config)}).name == "org/model"


def test_engine_arguments_pass_through_from_everywhere(tmp_path: Path) -> None:
    """Engine options keep their types, whichever way they come; dashes and underscores are the same."""
    config = tmp_path / "worker.toml"
    config.write_text('[engine]\nkind = "fake"\nmax-num-seqs = 8\n[adapters]\nsql = "/models/sql"\n')
    settings = load_settings(
        ["--config", str(config), "--engine.enforce-eager", "--engine.ratio=0.5", '--engine.plan={"a": [1]}'],
        {"LANEWAY_ENGINE__SEED": "3", "LANEWAY_ADAPTERS": "chat=/models/chat"},
    )
    assert settings.engine == "fake"
    assert settings.engine_args == {
        "max_num_seqs": 8,
        "seed": 3,
        "enforce_eager": True,
        "ratio": 0.5,
        "plan": {"a": [1]},
    }
    assert settings.adapters == {"sql": "/models/sql", "chat": "/models/chat"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--leese-s", "3"],
            r"--leese-s: expected a known option \(did you mean 'lease_s'\?\), got 'leese_s'",
        ),
        (["--engnie.seed", "3"], r"--engnie\.seed: expected a known option \(did you mean 'engine'\?\)"),
        (["--lease-s", "0"], r"--lease-s: expected a number >= 0\.5, got '0'"),
        (["--lease-s", "nan"], r"--lease-s: expected a number >= 0\.5, got 'nan'"),
        (["--partitions", "two"], r"--partitions: expected an integer.*, got 'two'"),
        (["--health-port", "70000"], r"--health-port: expected a port from 0 to 65535, or off, got '70000'"),
        (["--engine", "tgi"], r"--engine: expected vllm or fake, got 'tgi'"),
        (["--adapters", "sql"], r"--adapters: expected name=folder,name=folder, got 'sql'"),
        (["--adapters.../etc", "/x"], r"adapters: expected a name of letters"),
        (["--served-name", "a b"], r"served_name: expected a name of letters"),
        (["serve"], r"expected an option such as --lease-s 20, got 'serve'"),
        (["--config", "/nowhere.toml"], r"--config: expected a readable file, got /nowhere.toml"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_expected_and_given(argv: list[str], message: str) -> None:
    """Every refusal tells the option, the expectation and the value in one sentence."""
    with pytest.raises(SettingsError, match=message):
        load_settings(argv, {})


def test_every_problem_is_told_at_once() -> None:
    """Settings are checked whole: two mistakes need one start to be found, not two."""
    with pytest.raises(SettingsError) as caught:
        load_settings(["--lease-s", "x"], {"LANEWAY_CLAIM_MOST": "0", "LANEWAY_LEESE_S": "1"})
    assert len(str(caught.value).splitlines()) == 3


def test_variables_of_kubernetes_and_of_other_commands_are_left_alone() -> None:
    """A Service whose name begins with `laneway` sets variables in every pod; they are not options."""
    load_settings(
        [],
        {
            "LANEWAY_REDIS_SERVICE_HOST": "10.0.0.1",
            "LANEWAY_REDIS_SERVICE_PORT_TCP": "6379",
            "LANEWAY_REDIS_PORT": "tcp://10.0.0.1:6379",
            "LANEWAY_REDIS_PORT_6379_TCP_ADDR": "10.0.0.1",
            "LANEWAY_CACHE": "/tmp/cache",
            "PATH": "/bin",
        },
    )


def test_a_refused_url_is_told_without_its_password() -> None:
    """A URL may hold a password, so errors never repeat it."""
    with pytest.raises(SettingsError) as caught:
        load_settings(["--redis-url", "http://user:hunter2@host"], {})
    assert "hunter2" not in str(caught.value)


def test_printed_settings_hide_passwords_and_tokens() -> None:
    """`masked` is what goes to logs."""
    settings = load_settings(
        [
            "--redis-url",
            "redis://me:hunter2@host:6379/0",
            "--engine.hf-token",
            "hunter2",
            "--engine.max-tokens",
            "5",
        ],
        {},
    )
    assert "hunter2" not in str(settings.masked())
    assert settings.masked()["redis_url"] == "redis://me:***@host:6379/0"
    assert settings.masked()["engine_args"]["max_tokens"] == 5


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://host/0", "redis://host/0"),
        ("redis://:pw@host/0", "redis://:***@host/0"),
        ("redis://token@host/0", "redis://***@host/0"),
        ("unix:///run/redis.sock?db=1&password=pw", "unix:///run/redis.sock?db=1&password=***"),
        ("redis+sentinel://:pw@a:1,b:2/main", "redis+sentinel://:***@a:1,b:2/main"),
        ("memory://", "memory://"),
    ],
)
def test_mask_url(url: str, masked: str) -> None:
    """Wherever a URL keeps its secret, it is hidden; the rest can still be read."""
    assert mask_url(url) == masked


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ([], "demo"),
        (["--model", "org/model"], "org/model"),
        (["--model", "/models/llama"], "llama"),
        (["--model", "/models/llama", "--served-name", "prod"], "prod"),
    ],
)
def test_jobs_ask_for_the_served_name(argv: list[str], name: str) -> None:
    """The served name, by default the model's own, for a folder that of the folder."""
    assert load_settings(argv, {}).name == name


def test_every_option_is_documented() -> None:
    """Help texts are the fields' docstrings; none is missing."""
    docs = option_docs()
    assert set(docs) == set(WorkerSettings.__struct_fields__)
    assert all(re.search(r"\S", text) for text in docs.values())
