"""Settings of a producer: where they come from and what they may be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from laneway.producer import InvalidSettings, Producer
from laneway.producer.settings import ProducerSettings, producer_settings


def test_arguments_win_over_the_environment_and_that_over_defaults() -> None:
    """The usual order."""
    environment = {"LANEWAY_REDIS_URL": "redis://env", "LANEWAY_NAMESPACE": "blue"}
    assert producer_settings({}, {}) == ProducerSettings()
    assert producer_settings({"redis_url": None}, environment).redis_url == "redis://env"
    settings = producer_settings({"redis_url": "redis://given"}, environment)
    assert (settings.redis_url, settings.namespace) == ("redis://given", "blue")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"conections": 3}, "conections: expected a known setting (did you mean 'connections'?), got 3"),
        ({"connections": "3"}, "connections: expected int, got '3'"),
        ({"connections": 0}, "connections: expected a number in [1, 1024], got 0"),
        ({"reply_timeout_s": math.nan}, "reply_timeout_s: expected a number in [0.01, 3600], got nan"),
        ({"output_ttl_s": 1}, "output_ttl_s: expected a number in [3, 86400], got 1.0"),
        ({"recheck_s": (5, 1)}, "recheck_s: expected two rising numbers of seconds above 0, got (5.0, 1.0)"),
        ({"infeasible": "no"}, "infeasible: expected accept or refuse, got 'no'"),
        ({"wait_replicas": {"bulk": 1}}, "wait_replicas: expected the classes latency and throughput, got 'bulk'"),
        ({"wait_replicas": {"latency": -1}}, "wait_replicas.latency: expected a number in [0, 64], got -1"),
        ({"wait_replicas": 1}, "wait_replicas: expected classes with numbers of replicas, got 1"),
        ({"outbox": ""}, "outbox: expected the path of a file, got ''"),
        ({"outbox_jobs": 0}, "outbox_jobs: expected a number in [1, 2.14748e+09], got 0"),
        ({"outbox_check_s": (5, 1)}, "outbox_check_s: expected two rising numbers of seconds above 0, got (5.0, 1.0)"),
        ({"namespace": "a{b}"}, "namespace: expected 1 to 64 printable ASCII characters but braces and blanks, got 'a{b}'"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(given: dict[str, Any], message: str) -> None:
    """One sentence with the setting, what it must be and what it is."""
    with pytest.raises(InvalidSettings) as caught:
        producer_settings(given, {})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "url",
    [
        "http://x",
        "localhost:6379",
        "",
        "redis://host:port",
        "redis://u:s3cret@host:port",
        "redis+sentinel://:s3cret@host:1",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    """Before any connection is tried, and the error may be logged."""
    with pytest.raises(InvalidSettings, match="redis_url: expected redis://") as caught:
        Producer(url or "x")
    assert "s3cret" not in str(caught.value)


def test_constructing_a_producer_does_nothing() -> None:
    """No loop, no connection, no server needed: an application may make it at import time."""
    Producer("redis://localhost:1")
