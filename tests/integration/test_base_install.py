"""The base install is a producer, and nothing but a producer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "vllm",
    "torch",
    "transformers",
    "arq",
    "structlog",
    "prometheus_client",
    "uvloop",
    "rich",
    "hiredis",
    "numpy",
)

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(240)]

APPLICATION = """
import importlib.util, json, sys
from laneway.producer import SyncProducer

with SyncProducer(sys.argv[1], namespace=sys.argv[2]) as producer:
    job = producer.submit(model="demo", messages=[{"role": "user", "content": "Hi"}], slo="throughput")
    state = producer.status(job.id).state.value
    producer.cancel(job.id)
    heavy = sys.argv[3].split(",")
    print(json.dumps({
        "id": job.id, "state": state, "outcome": producer.result(job.id).state.value,
        "importable": [name for name in heavy if importlib.util.find_spec(name)],
        "imported": [name for name in heavy if name in sys.modules],
    }))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with `pip install .` and nothing else."""
    folder = tmp_path_factory.mktemp("base")
    run(sys.executable, "-m", "venv", str(folder))
    installed = folder / "bin" / "python"
    run(str(installed), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT))
    return installed


def run(*command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LANEWAY_", "PYTHON"))
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd="/")
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_it_submits_and_needs_no_more_than_msgspec_and_redis(
    python: Path, redis_url: str, namespace: str
) -> None:
    """An application server does not carry an engine: a job goes out, is seen, is cancelled and its result is read."""
    told: dict[str, Any] = json.loads(
        run(str(python), "-c", APPLICATION, redis_url, namespace, ",".join(HEAVY)).stdout
    )
    assert (told["state"], told["outcome"]) == ("queued", "cancelled")
    assert told["importable"] == []
    assert told["imported"] == []


def test_its_program_works_and_names_the_extra_that_a_command_needs(
    python: Path, redis_url: str, namespace: str
) -> None:
    """`laneway submit` works; `laneway worker` says in one line what to install."""
    laneway = str(python.parent / "laneway")
    where = ("--redis-url", redis_url, "--namespace", namespace)
    job_id = run(laneway, "submit", "Hello", *where).stdout.strip()
    assert json.loads(run(laneway, "status", job_id, "--json", *where).stdout)["state"] == "queued"
    refused = run(laneway, "worker", code=1)
    assert "pip install 'laneway[worker]'" in refused.stderr
    assert refused.stderr.count("\n") == 1
