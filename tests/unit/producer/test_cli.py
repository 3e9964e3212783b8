"""The `laneway` program: how commands are found, what people may write, and how it ends."""

from __future__ import annotations

import argparse
import io
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from laneway.producer import cli
from laneway.producer.cli.options import read_json, read_text, seconds
from laneway.schemas.command import Command
from laneway.schemas.errors import InvalidJob, LanewayError, UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [("90s", 90), ("250ms", 0.25), ("5m", 300), ("2h", 7200), ("1d", 86400), ("30", 30), ("1.5s", 1.5)],
)
def test_durations_are_written_as_people_write_them(text: str, value: float) -> None:
    """Units from milliseconds to days; a bare number is seconds."""
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5x", "-5s", "s", "1e9s", "nan", "inf", "5 s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """With an example of what would be one."""
    with pytest.raises(argparse.ArgumentTypeError, match="expected a duration such as 90s"):
        seconds(text)


class _Stdin(io.TextIOWrapper):
    def __init__(self, data: bytes, tty: bool = False) -> None:
        super().__init__(io.BytesIO(data))
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


def test_text_comes_from_the_argument_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`@@` is a plain `@`; the newline that `echo` adds is not part of a piped prompt."""
    (tmp_path / "prompt").write_text("from a file\n", "utf-8")
    assert read_text("plain", "prompt") == "plain"
    assert read_text("@@home", "prompt") == "@home"
    assert read_text(f"@{tmp_path}/prompt", "prompt") == "from a file\n"
    for given in (None, "-"):
        monkeypatch.setattr(sys, "stdin", _Stdin(b"piped\n"))
        assert read_text(given, "prompt") == "piped"


def test_missing_or_unreadable_text_is_a_usage_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence each; a terminal is never waited on."""
    (tmp_path / "bytes").write_bytes(b"\xff")
    monkeypatch.setattr(sys, "stdin", _Stdin(b"", tty=True))
    for given, message in (
        (None, "got nothing"),
        (f"@{tmp_path}/none", "No such file"),
        (f"@{tmp_path}/bytes", "UTF-8"),
    ):
        with pytest.raises(UsageError, match=message):
            read_text(given, "prompt")
    with pytest.raises(UsageError, match="messages: expected JSON"):
        read_json("[{", "messages")


def command(name: str, run: Any, takes_more: bool = False) -> Command:
    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--known")

    return Command(name, "a command", configure, run, takes_more)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install commands for one test, as if packages had brought them."""

    def install(**groups: Any) -> None:
        class Entry:
            def __init__(self, name: str, value: Any) -> None:
                self.name, self._value = name, value

            def load(self) -> Any:
                if isinstance(self._value, Exception):
                    raise self._value
                return self._value

        entries = [Entry(name, value) for name, value in groups.items()]
        monkeypatch.setattr(metadata, "entry_points", lambda group: entries)

    return install


def raising(error: BaseException) -> Any:
    def run(_: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "code", "said"),
    [
        (lambda _: 0, 0, ""),
        (lambda _: 1, 1, ""),
        (raising(LanewayError("it did not work")), 1, "laneway: it did not work\n"),
        (raising(UsageError("that cannot be")), 2, "laneway: that cannot be\n"),
        (raising(InvalidJob("prompt", "text", 5)), 2, "laneway: prompt: expected text, got 5\n"),
        (raising(KeyboardInterrupt()), 130, ""),
        (raising(ModuleNotFoundError("x", name="structlog")), 1, "`laneway go` needs structlog: pip install 'laneway[worker]'"),
        (raising(ModuleNotFoundError("x", name="vllm.engine")), 1, "`laneway go` needs vllm: pip install 'laneway[vllm]'"),
    ],
)  # fmt: skip
def test_exit_codes(offer: Any, capsys: pytest.CaptureFixture[str], run: Any, code: int, said: str) -> None:
    """0 done, 1 failed, 2 used wrongly, 130 interrupted; one line on standard error, never a traceback."""
    offer(group=(command("go", run),))
    assert cli.main(["go"]) == code
    output = capsys.readouterr()
    assert said in output.err
    assert (output.out, output.err.count("\n")) == ("", 1 if said else 0)


def test_a_reader_that_goes_away_is_no_error(offer: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """`laneway ... | head -1` ends quietly."""
    offer(group=(command("go", raising(BrokenPipeError())),))
    saved = sys.stdout.fileno()
    assert cli.main(["go"]) == 141
    assert sys.stdout.fileno() == saved
    assert capfd.readouterr().err == ""


def test_a_package_that_lacks_something_still_shows_its_command(
    offer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice is in the list of commands and in the error, one sentence each."""
    offer(worker=ModuleNotFoundError("no", name="structlog"), producer=(command("submit", lambda _: 0),))
    assert cli.main(["worker", "--engine.x", "1"]) == 1
    assert "`laneway worker` needs structlog: pip install 'laneway[worker]'" in capsys.readouterr().err
    assert cli.main(["submit"]) == 0
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "needs structlog" in " ".join(capsys.readouterr().out.split())


def test_unknown_arguments_are_refused_unless_a_command_takes_them(
    offer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`laneway worker --engine.max-num-seqs 256` is the engine's business; elsewhere it is a mistake."""
    seen: list[Any] = []

    def remember(options: argparse.Namespace) -> int:
        seen.append(options.more)
        return 0

    offer(
        group=(
            command("strict", lambda _: 0),
            command("open", remember, takes_more=True),
        )
    )
    assert cli.main(["open", "--known", "1", "--engine.max-num-seqs", "256"]) == 0
    assert seen == [["--engine.max-num-seqs", "256"]]
    with pytest.raises(SystemExit, match="2"):
        cli.main(["strict", "--nope"])
    assert "unknown arguments: --nope" in capsys.readouterr().err


def test_the_producers_own_commands_are_installed() -> None:
    """What the distribution's entry points promise is there."""
    names = {found.name for found in cli.find_commands()}
    assert {"submit", "result", "status", "cancel"} <= names
