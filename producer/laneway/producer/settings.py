"""What can be set on a producer, and where it comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from laneway.producer.errors import InvalidSettings
from laneway.schemas.errors import nearest
from laneway.schemas.job import SloClass


class ProducerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a producer. Every wait is bounded by one of them."""

    redis_url: str = "redis://localhost:6379/0"
    """`redis://`, `rediss://`, `unix://`, or `redis+sentinel://host:port,host:port/service`. From the environment: `LANEWAY_REDIS_URL`."""
    namespace: str = "laneway"
    """First part of every key. From the environment: `LANEWAY_NAMESPACE`."""
    connections: int = 4
    """Connections for commands. One more reads the output stream, whatever the number of waiters."""
    connect_timeout_s: float = 2.0
    reply_timeout_s: float = 5.0
    outage_s: float = 30.0
    """How long `result` and `stream` go on while the server cannot be reached."""
    listen: bool = True
    """Hear at once when jobs end: the first submit makes this process' output stream, with one connection to read it.
    Without it that waits for the first `result` or `stream`, and results of jobs submitted before are polled for."""
    check_model: bool = True
    """Refuse jobs for models that have never been served, once any has been."""
    infeasible: Literal["accept", "refuse"] = "accept"
    """What becomes of a job with a deadline that its model cannot meet even when idle, as far as workers have measured:
    `refuse` raises `DeadlineInfeasible`, `accept` leaves it to the worker."""
    model_cache_s: float = 10.0
    """How long what is known of the served models is believed."""
    recheck_s: tuple[float, float] = (1.0, 5.0)
    """First and longest pause before a waiter looks for the result itself, whether or not it was woken."""
    full_wait_s: float = 0.0
    """How long a submit waits for room before it raises `QueueFull`."""
    wait_replicas: dict[str, int] = {}
    """By service class, how many replicas a submit waits for, such as `{"throughput": 1}`. `Submitted.replicas` says how many had the
    job in time; the job is accepted whatever they say."""
    wait_timeout_s: float = 1.0
    """How long it waits for them, holding one of the connections."""
    chunk: int = 256
    """Jobs of `submit_many` per round trip."""
    output_ttl_s: float = 30.0
    """How long the output stream outlives its reader."""
    lane_jobs: int = 100_000
    """Most jobs in one lane, waiting or running."""
    lane_tokens: int = 200_000_000
    """Most tokens of the jobs in one lane, prompts and longest answers together; 0: no bound. The default never stops
    a lane of 100,000 pages (512 tokens in, 256 out), but one of long documents before their text, at some 4 bytes a
    token, fills a gigabyte of the server."""
    record_ttl_s: float = 7 * 24 * 3600.0
    """How long a job and its record are kept while no worker touches them, beyond its deadline if it has one."""
    result_ttl_s: float = 24 * 3600.0
    """How long the result of a job is kept that is cancelled before any worker had it; workers set it for others."""
    idempotency_ttl_s: float = 24 * 3600.0
    """How long an idempotency key is remembered."""
    outbox: str | None = None
    """A file on a local disk that keeps each accepted job until its outcome has been seen, and from which a job is
    submitted again wherever the server has lost it. One producer at a time holds it. None: no outbox."""
    outbox_jobs: int = 100_000
    """Most jobs in the outbox."""
    outbox_bytes: int = 1 << 30
    """Most bytes of jobs in the outbox."""
    outbox_check_s: tuple[float, float] = (5.0, 60.0)
    """First and longest pause before the server is asked for a job in the outbox, whether or not its end was heard of.
    All are asked for at once when the server has been away or has lost a job or the output stream."""


_NUMBERS = {
    "connections": (1, 1024),
    "connect_timeout_s": (0.01, 3600),
    "reply_timeout_s": (0.01, 3600),
    "outage_s": (0, 7 * 24 * 3600),
    "model_cache_s": (0, 24 * 3600),
    "full_wait_s": (0, 24 * 3600),
    "wait_timeout_s": (0.001, 3600),
    "chunk": (1, 4096),
    "output_ttl_s": (3, 24 * 3600),
    "lane_jobs": (1, 1 << 31),
    "lane_tokens": (0, 1 << 52),
    "result_ttl_s": (1, 365 * 24 * 3600),
    "record_ttl_s": (60, 365 * 24 * 3600),
    "idempotency_ttl_s": (1, 365 * 24 * 3600),
    "outbox_jobs": (1, 1 << 31),
    "outbox_bytes": (1, 1 << 52),
}


_EXPECTED = {"infeasible": "accept or refuse", "wait_replicas": "classes with numbers of replicas"}


def producer_settings(
    given: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> ProducerSettings:
    """Settings from what was `given`, else from `LANEWAY_REDIS_URL` and `LANEWAY_NAMESPACE`, else the defaults.

    Raises:
        InvalidSettings: an unknown name, a wrong type or a value out of bounds.
    """
    values = {name: value for name, value in given.items() if value is not None}
    if isinstance(values.get("outbox"), os.PathLike):
        values["outbox"] = os.fspath(values["outbox"])
    for name in values:
        if name not in ProducerSettings.__struct_fields__:
            hint = nearest(name, ProducerSettings.__struct_fields__)
            raise InvalidSettings(name, f"a known setting{hint}", values[name])
    for name, variable in (("redis_url", "LANEWAY_REDIS_URL"), ("namespace", "LANEWAY_NAMESPACE")):
        if name not in values and environment.get(variable):
            values[name] = environment[variable]
    try:
        settings = msgspec.convert(values, ProducerSettings)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        name = path.strip("`").removeprefix("$.") or "settings"
        given_value = values.get(name.partition("[")[0])
        expected = (
            _EXPECTED.get(name) or reason.replace("`", "").removeprefix("Expected ").partition(", got ")[0]
        )
        raise InvalidSettings(name, expected, given_value) from None
    _check(settings)
    return settings


def _check(settings: ProducerSettings) -> None:
    for name, (low, high) in _NUMBERS.items():
        value = getattr(settings, name)
        if not low <= value <= high:  # NaN is in no range
            raise InvalidSettings(name, f"a number in [{low:g}, {high:g}]", value)
    classes = [slo.value for slo in SloClass]
    for slo, replicas in settings.wait_replicas.items():
        if slo not in classes:
            raise InvalidSettings("wait_replicas", f"the classes {' and '.join(classes)}", slo)
        if not 0 <= replicas <= 64:
            raise InvalidSettings(f"wait_replicas.{slo}", "a number in [0, 64]", replicas)
    for name in ("recheck_s", "outbox_check_s"):
        first, longest = getattr(settings, name)
        if not 0 < first <= longest <= 3600:
            raise InvalidSettings(name, "two rising numbers of seconds above 0", (first, longest))
    if settings.outbox == "":
        raise InvalidSettings("outbox", "the path of a file", settings.outbox)
    name = settings.namespace
    if not name or len(name) > 64 or not name.isascii() or not name.isprintable() or set(name) & set("{} "):
        raise InvalidSettings("namespace", "1 to 64 printable ASCII characters but braces and blanks", name)
