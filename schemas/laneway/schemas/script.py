"""A Lua script of a package, known to a server by its hash. The scripts themselves lie with the side that runs them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any


class Script:
    """`lua/<name>.lua` of `package`."""

    def __init__(self, package: str, name: str) -> None:
        self.source = resources.files(package).joinpath(f"lua/{name}.lua").read_text("utf-8")
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def command(self, keys: Sequence[str], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The call of the script, as the words of one Redis command. Unknown to the server: error `NOSCRIPT`."""
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)
