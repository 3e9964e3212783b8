"""URLs that name sentinels instead of a server."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.schemas.sentinels import read_sentinels


@pytest.mark.parametrize(
    ("url", "addresses", "service", "login"),
    [
        ("redis+sentinel://a:1,b:2/main", (("a", 1), ("b", 2)), "main", {"db": 0}),
        ("redis+sentinel://a/main?db=3", (("a", 26379),), "main", {"db": 3}),
        ("redis+sentinel://[::1]:7/main", (("::1", 7),), "main", {"db": 0}),
        (
            "redis+sentinel://me:p%40ss@a:1/main",
            (("a", 1),),
            "main",
            {"db": 0, "username": "me", "password": "p@ss"},
        ),
        ("redis+sentinel://:pw@a:1,b:1/main", (("a", 1), ("b", 1)), "main", {"db": 0, "password": "pw"}),
    ],
)
def test_sentinels_service_and_login_are_read(
    url: str, addresses: tuple[tuple[str, int], ...], service: str, login: dict[str, Any]
) -> None:
    """One sentinel or several, with their usual port, and the login of the master."""
    read = read_sentinels(url)
    assert read is not None
    assert (read.addresses, read.service, read.login) == (addresses, service, login)
    assert "pw" not in read.place


@pytest.mark.parametrize("url", ["redis://a:1/0", "rediss://a", "unix:///run/s", "memory://"])
def test_other_urls_name_no_sentinels(url: str) -> None:
    """They name the server itself."""
    assert read_sentinels(url) is None


@pytest.mark.parametrize(
    ("url", "lacks"),
    [
        ("redis+sentinel://a:1", "service"),
        ("redis+sentinel://a:1/", "service"),
        ("redis+sentinel://a:1/x/y", "service"),
        ("redis+sentinel://:s3cret@/main", "host"),
        ("redis+sentinel://a:1,/main", "host"),
        ("redis+sentinel://a:1/main?db=x", "db"),
        ("redis+sentinel://a:port/main", "port"),
    ],
)
def test_what_is_missing_is_named(url: str, lacks: str) -> None:
    """And no secret of the URL repeated."""
    with pytest.raises(ValueError, match=f"(?i){lacks}") as refused:
        read_sentinels(url)
    assert "s3cret" not in str(refused.value)
