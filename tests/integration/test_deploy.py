"""The files in deploy/ say what the code does."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from laneway.worker.cli import checks
from laneway.worker.embedded import server_binary
from laneway.worker.service import ENDING_S
from laneway.worker.settings import WorkerSettings, load_settings

DEPLOY = Path(__file__).parents[2] / "deploy"


def manifests() -> list[dict[str, Any]]:
    """Every Kubernetes object."""
    return [
        document
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    """The worker's pod."""
    (deployment,) = [document for document in manifests() if document["kind"] == "Deployment"]
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def environment(variables: list[dict[str, Any]]) -> dict[str, str]:
    """Variables with a plain value."""
    return {variable["name"]: variable["value"] for variable in variables if "value" in variable}


def test_a_pod_has_time_to_drain(pod: dict[str, Any]) -> None:
    """The kill comes after the drain and the end, not in them."""
    (container,) = pod["containers"]
    settings = load_settings(environ=environment(container["env"]))
    assert pod["terminationGracePeriodSeconds"] >= settings.drain_s + ENDING_S


def test_a_pod_is_probed_where_the_worker_answers(pod: dict[str, Any]) -> None:
    """Start-up and readiness ask /readyz; liveness asks /healthz, which a slow start or a lost server leaves alone."""
    (container,) = pod["containers"]
    probes = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")
    }
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    assert container["ports"][0]["containerPort"] == WorkerSettings().health_port


def test_a_start_is_given_as_long_as_the_worker_gives_it(pod: dict[str, Any]) -> None:
    """The start-up probe waits for the whole of `engine_start_s`."""
    probe = pod["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= WorkerSettings().engine_start_s


def test_compose_gives_the_worker_settings_that_it_knows() -> None:
    """Names in the compose file are the worker's own; the grace period covers the drain."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    worker = services["worker"]
    plain = {name: value for name, value in worker["environment"].items() if not value.startswith("$")}
    settings = load_settings(environ=plain)
    assert settings.redis_url == "redis://server:6379/0"
    assert float(worker["stop_grace_period"].removesuffix("s")) >= settings.drain_s + ENDING_S


def test_the_image_sets_only_variables_that_the_worker_knows() -> None:
    """A misspelt LANEWAY_ variable in the image would keep every worker from starting."""
    words = (DEPLOY / "Dockerfile").read_text().replace("\\", " ").split()
    given = dict(word.split("=", 1) for word in words if word.startswith("LANEWAY_"))
    assert load_settings(environ=given).health_host == "0.0.0.0"


def test_the_server_takes_its_configuration_and_passes_the_doctor(tmp_path: Path) -> None:
    """`redis.conf` is valid, and what it sets is what `laneway doctor` asks for."""
    path = tmp_path / "server.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--dir", str(tmp_path), "--logfile", ""]
    command = [str(server_binary()), str(DEPLOY / "redis.conf"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "eady to accept" not in (line := process.stdout.readline()):
            assert line, "the server refused its configuration"
        found = checks.check_server(f"unix://{path}", "")
        process.terminate()
    assert {check.name: check.status for check in found} == {
        "server": "OK",
        "eviction": "OK",
        "durability": "OK",
    }
