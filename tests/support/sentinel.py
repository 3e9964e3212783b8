"""A real sentinel that watches a real server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import redis.asyncio
from tests.support.servers import Server, binaries, free_port
from tests.support.wait import wait_until

from laneway.worker.child import dying_with_us

SERVICE = "main"


class Sentinel:
    """Watches `master` alone (a quorum of one) and promotes a replica half a second after its death."""

    def __init__(self, master: Server, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis+sentinel://127.0.0.1:{self.port}/{SERVICE}"
        folder.mkdir()
        settings = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {folder}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 1",
            f"sentinel down-after-milliseconds {SERVICE} 500",
            f"sentinel failover-timeout {SERVICE} 2000",
        ]
        self._file = folder / "sentinel.conf"
        self._file.write_text("\n".join(settings) + "\n")
        self._command = [str(binaries()[master.name]), str(self._file), "--sentinel"]
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        """Returns when it knows a replica that could take over."""
        self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork is short
            dying_with_us(self._command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        async with redis.asyncio.Redis(port=self.port, protocol=2, retry=None) as client:
            await wait_until(lambda: _replicas(client), "a replica known to the sentinel", timeout=20)
        return self

    async def switch(self) -> None:
        """Let a replica take over from a master that lives, and is demoted."""
        async with redis.asyncio.Redis(port=self.port, protocol=2) as client:
            await client.execute_command("SENTINEL FAILOVER", SERVICE)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(10)


async def _replicas(client: redis.asyncio.Redis) -> bool:
    try:
        known = await client.sentinel_slaves(SERVICE)
    except redis.exceptions.RedisError:
        return False
    return any(replica["runid"] and replica["master-link-status"] == "ok" for replica in known)
