"""A server that sentinels name: `redis+sentinel://[user:password@]host:port,host:port/service[?db=0]`."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

SCHEME = "redis+sentinel://"
PORT = 26379
"""Port of a sentinel that names none, as Redis has it."""


class Sentinels(Struct, frozen=True):
    """Whom to ask for the master, and how to log in there. Sentinels themselves are asked without a password."""

    addresses: tuple[tuple[str, int], ...]
    service: str
    login: dict[str, Any]
    """`db`, `username` and `password` of the master, where given."""

    @property
    def place(self) -> str:
        """Service and sentinels, for messages; no password."""
        return f"{self.service} of {','.join(f'{host}:{port}' for host, port in self.addresses)}"


def read_sentinels(url: str) -> Sentinels | None:
    """The sentinels of `url`; None for a URL of another kind.

    Raises:
        ValueError: it is one of sentinels, and not complete. The text repeats nothing of the URL.
    """
    if not url.startswith(SCHEME):
        return None
    parts = urlsplit(url)
    login, _, places = parts.netloc.rpartition("@")
    addresses = tuple(_address(place) for place in places.split(","))
    service = unquote(parts.path.strip("/"))
    if not service or "/" in service:
        raise ValueError("a service after the sentinels, such as /mymaster")
    db = parse_qs(parts.query).get("db", ["0"])[0]
    if not db.isdecimal():
        raise ValueError("a number as db")
    given: dict[str, Any] = {"db": int(db)}
    user, _, password = login.partition(":")
    if user:
        given["username"] = unquote(user)
    if password:
        given["password"] = unquote(password)
    return Sentinels(addresses, service, given)


def _address(place: str) -> tuple[str, int]:
    parts = urlsplit(f"//{place}")
    if not parts.hostname:
        raise ValueError("host:port of each sentinel")
    return parts.hostname, parts.port or PORT
