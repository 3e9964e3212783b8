"""The embedded server: a real one, in a folder, gone with whoever started it."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from laneway.worker.embedded import EmbeddedServer
from laneway.worker.errors import EmbeddedServerFailed

LANEWAY = str(Path(sys.executable).with_name("laneway"))


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return when `condition` holds."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "the condition never held"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_it_is_configured_so_that_no_job_is_lost(tmp_path: Path) -> None:
    """Every write goes to an append-only file, and full memory refuses instead of evicting."""
    with EmbeddedServer(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        config = client.config_get("append*")
        assert (config["appendonly"], config["appendfsync"]) == ("yes", "everysec")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert int(client.config_get("maxmemory")["maxmemory"]) > 0


def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    """Stopping is orderly: the folder holds everything."""
    with EmbeddedServer(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
    with EmbeddedServer(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"yes"


def test_stop_leaves_no_process_and_may_be_repeated(tmp_path: Path) -> None:
    """After `stop` the server is gone, its pid file too."""
    server = EmbeddedServer(tmp_path).start()
    pid = server.pid
    assert pid is not None
    assert alive(pid)
    server.stop()
    server.stop()
    assert not alive(pid)
    assert not (tmp_path / "server.pid").exists()


def test_a_folder_serves_one_server_at_a_time(tmp_path: Path) -> None:
    """Two servers on one append-only file would destroy it."""
    with EmbeddedServer(tmp_path), pytest.raises(EmbeddedServerFailed, match="another server"):
        EmbeddedServer(tmp_path).start()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """The message says which port and what to do."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EmbeddedServerFailed, match=f"port {port} is taken"):
            EmbeddedServer(tmp_path, port=port).start()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the folder should be is refused in one sentence."""
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerFailed, match="cannot write to"):
        EmbeddedServer(tmp_path / "file" / "data").start()


def test_a_server_that_refuses_its_options_says_why(tmp_path: Path) -> None:
    """The reason is the server's own."""
    with pytest.raises(EmbeddedServerFailed, match="did not start"):
        EmbeddedServer(tmp_path, maxmemory="plenty").start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_the_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Even a SIGKILL of its parent leaves no server behind."""
    code = (
        "import sys, time; from pathlib import Path; from laneway.worker.embedded import EmbeddedServer\n"
        "print(EmbeddedServer(Path(sys.argv[1])).start().pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    until(lambda: not alive(pid))


def test_laneway_redis_prints_its_url_and_ends_on_sigterm(tmp_path: Path) -> None:
    """The command serves in the foreground until it is told to end."""
    command = [LANEWAY, "redis", "--port", "0", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("LANEWAY_REDIS_URL=redis://127.0.0.1:")
        with redis.Redis.from_url(line.strip().partition("=")[2]) as client:
            assert client.ping()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
