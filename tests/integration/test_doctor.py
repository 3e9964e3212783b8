"""`laneway doctor`: what is missing or dangerous, and what to do about it."""

import json
import shutil
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from laneway.worker.cli import checks, doctor
from laneway.worker.embedded import EmbeddedServer
from laneway.worker.queue.admin import ServerFacts
from laneway.worker.table import table


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A well configured server of this test's own."""
    with EmbeddedServer(tmp_path) as server:
        yield server


def report(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and findings by name."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("laneway")), "doctor", "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_a_sound_installation_passes(server: EmbeddedServer) -> None:
    """Everything is there: exit code 0, and each row says what was found."""
    code, found = report("--quick", "--redis-url", server.url)
    assert code == 0
    assert {check["status"] for check in found.values()} == {"OK"}
    assert "valkey" in found["server"]["found"]


def test_a_server_that_evicts_fails(server: EmbeddedServer) -> None:
    """An evicting server loses jobs in silence, so it is no warning but a failure, with the command that mends it."""
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
    code, found = report("--quick", "--redis-url", server.url)
    assert code == 1
    assert found["eviction"]["status"] == "FAIL"
    assert "noeviction" in found["eviction"]["advice"]
    assert found["durability"]["status"] == "WARN"


def test_an_absent_server_fails_and_no_password_is_shown() -> None:
    """The URL is repeated without its password."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, found = report("--quick", "--redis-url", f"redis://:hunter2@127.0.0.1:{port}/0")
    assert code == 1
    assert found["server"]["status"] == "FAIL"
    assert "hunter2" not in json.dumps(found)


def test_a_wrong_url_is_a_finding_not_a_traceback() -> None:
    """Settings that cannot be read are reported like everything else."""
    code, found = report("--quick", "--redis-url", "http://example.org")
    assert code == 1
    assert found["settings"]["status"] == "FAIL"


FACTS = ServerFacts(
    kind="redis",
    version=(7, 0, 15),
    redis_version=(7, 0, 15),
    eviction="noeviction",
    maxmemory=1 << 30,
    used_memory=1 << 20,
    aof=True,
    replica=False,
    cluster=False,
    round_trip_ms=0.2,
)


@pytest.mark.parametrize(
    ("kind", "version", "status"),
    [
        ("redis", (6, 2, 14), "FAIL"),
        ("redis", (7, 0, 0), "OK"),
        ("redis", (8, 2), "OK"),
        ("valkey", (7, 2, 5), "FAIL"),
        ("valkey", (8, 0, 1), "OK"),
        ("valkey", (9, 1, 2), "OK"),
    ],
)
def test_old_servers_are_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, version: tuple[int, ...], status: str
) -> None:
    """Redis 7.0 and Valkey 8.0 are the oldest that have every command."""
    facts = replace(FACTS, kind=kind, version=version)

    async def answer(url: str) -> ServerFacts:
        return facts

    monkeypatch.setattr(checks, "server_facts", answer)
    assert checks.check_server("redis://x", "redis://x")[0].status == status


def test_a_replica_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be written to a replica."""

    async def answer(url: str) -> ServerFacts:
        return replace(FACTS, replica=True)

    monkeypatch.setattr(checks, "server_facts", answer)
    assert [
        check.name for check in checks.check_server("redis://x", "redis://x") if check.status == "FAIL"
    ] == ["role"]


def test_a_broken_engine_is_told_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is installed but does not import is a failure; its reason is shown, and the known repair."""
    monkeypatch.setattr(checks, "find_spec", lambda name: object())
    monkeypatch.setattr(
        checks, "_ENGINE_PROBE", "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    (check,) = checks.check_engine()
    assert check.status == "FAIL"
    assert "torchvision::nms" in check.found
    assert "pip uninstall" in check.advice


def test_no_engine_is_only_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that submits jobs needs none."""
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert [check.status for check in checks.check_engine()] == ["WARN"]


def test_the_report_tells_people_what_to_do(
    capsys: pytest.CaptureFixture[str], server: EmbeddedServer
) -> None:
    """The table comes first, the advice after it."""
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 0)
    args = Namespace(quick=True, json=False, redis_url=server.url)
    assert doctor.run(args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["check", "found"]
    assert lines[-1].startswith("WARN eviction: set maxmemory")


def test_tables_line_up() -> None:
    """Numbers are flush right, words flush left."""
    assert table(("name", "n"), [("a", 1), ("bcdef", 100)], right=(1,)).splitlines() == [
        "name     n",
        "-----  ---",
        "a        1",
        "bcdef  100",
    ]


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server installed")
def test_redis_tells_as_much_as_valkey(tmp_path: Path) -> None:
    """The same facts come from Debian's Redis."""
    socket_path = tmp_path / "s"
    command = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        str(socket_path),
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "ready to accept" not in process.stdout.readline():
            pass
        code, found = report("--quick", "--redis-url", f"unix://{socket_path}")
        process.terminate()
    assert code == 0
    assert found["server"]["found"].startswith("redis ")
