"""What a worker is told: made once, checked whole. Precedence: command line, environment, TOML file, default."""

from __future__ import annotations

import ast
import inspect
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from laneway.schemas.build import check_adapter, check_model
from laneway.schemas.errors import InvalidJob, nearest, shown
from laneway.schemas.ids import MAX_PARTITIONS
from laneway.worker.errors import SettingsError

PREFIX = "LANEWAY_"
TABLES = {"engine": "engine_args", "adapters": "adapters"}
"""Options that hold names of their own: `--engine.max-num-seqs 256`, `LANEWAY_ENGINE__MAX_NUM_SEQS=256`, `[engine]`."""
FOREIGN = re.compile(r"LANEWAY_(\w*SERVICE_(HOST|PORT)\w*|\w*PORT_\d+_\w+|(CACHE|DEMO|TEST|BENCH|CONFIG)\w*)")
"""Variables of other commands, and those that Kubernetes sets for services whose name begins with `laneway`."""
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
SECRET = re.compile(r"token$|password|secret|api_?key|credential", re.IGNORECASE)

Seconds = Annotated[float, Meta(ge=0, le=86_400)]


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """Every option of a worker."""

    redis_url: Annotated[str, Meta(pattern=r"^((rediss?|unix|redis\+sentinel)://.+|memory://)$")] = (
        "redis://127.0.0.1:6379/0"
    )
    """Server that holds the lanes: redis://, rediss:// or unix://; redis+sentinel://host:port,host:port/service asks sentinels for it. memory:// keeps jobs in the process, for trials."""
    namespace: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "laneway"
    """First part of every key: installations share a server by it."""
    model: Annotated[str, Meta(min_length=1)] = "demo"
    """What the engine loads: `demo`, a Hugging Face id, or a folder."""
    served_name: str = ""
    """Name by which jobs ask for the model. Empty: the model's own name; for a folder, the folder's."""
    partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)] = 1
    """Partitions of the model's queue. All its workers must agree."""

    engine: Literal["vllm", "fake"] = "vllm"
    """`vllm`, or `fake`: no model and no GPU, for trials of everything else."""
    engine_args: dict[str, Any] = {}
    """Passed to the engine as they are, such as `--engine.max-num-seqs 256`."""
    adapters: dict[str, str] = {}
    """LoRA adapters that jobs may name, id to folder, such as `--adapters.sql /models/sql`."""
    max_loras: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Distinct adapters in the engine at once. 0: as many as `adapters` names, at most 8."""

    scheduler: Literal["slo", "stock"] = "stock"
    """Order inside the engine's steps: `slo` puts latency jobs first in each, `stock` is vLLM's own."""
    latency_share: Annotated[float, Meta(ge=0, le=0.9)] = 0.125
    """Least share of the seats that throughput jobs leave free for latency jobs: at least one where there are two."""
    tpot_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    """Time between tokens that latency jobs get when they name none. 0: 50 ms, more where the engine is slower."""
    infeasible: Literal["relegate", "expire"] = "relegate"
    """A job in hand whose deadline is too near even for an idle engine: `relegate` serves it last, `expire` ends it at once, unserved."""
    window: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Jobs of each throughput lane claimed ahead, to choose from. 0: a sixteenth of the seats, 2 to 32."""
    claim_most: Annotated[int, Meta(ge=1, le=1024)] = 32
    """Most jobs of one claim, whatever is free."""
    lease_s: Annotated[float, Meta(ge=0.5, le=600)] = 15.0
    """Seconds of silence after which a worker's jobs are taken by others."""
    hang_s: Seconds = 30.0
    """Seconds without a step after which an engine that holds jobs is given up. 0: never."""
    drain_s: Seconds = 30.0
    """Seconds for jobs in hand to end after SIGTERM; what is left is handed back. 0: hand back at once."""
    start_timeout_s: Seconds = 60.0
    """Seconds to wait at start for a server that is not there. 0: one try."""
    engine_start_s: Seconds = 1800.0
    """Seconds that the engine's start may take, warm-up included. 0: no limit."""
    result_ttl_s: Annotated[int, Meta(ge=1, le=30 * 86_400)] = 3600
    """Seconds for which a result can be read."""
    job_ttl_s: Annotated[int, Meta(ge=60, le=90 * 86_400)] = 7 * 86_400
    """Seconds after which the record of a job that nobody finishes is dropped."""

    health_host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address of /healthz, /readyz and /metrics."""
    health_port: Annotated[int, Meta(ge=0, le=65_535)] | Literal["off"] = 9400
    """Port of the same. 0: any free one; `off`: none."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: console on a terminal, else JSON."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe line that is written."""

    @property
    def name(self) -> str:
        """The name by which jobs ask for the model."""
        is_folder = self.model.startswith(("/", ".", "~"))
        return self.served_name or (Path(self.model).name if is_folder else self.model)

    def masked(self) -> dict[str, Any]:
        """All options, for printing: passwords and tokens are replaced by `***`."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        plain["redis_url"] = mask_url(self.redis_url)
        plain["engine_args"] = {
            name: "***" if SECRET.search(name) else value for name, value in self.engine_args.items()
        }
        return plain


def mask_url(url: str) -> str:
    """`url` with its password, and a password among its parameters, replaced by `***`."""
    hidden = re.sub(
        r"://(?:([^:@/]*):)?.*@",
        lambda login: f"://{login[1]}:***@" if login[1] is not None else "://***@",
        url,
    )
    return re.sub(r"(?i)\b(password|token|secret)=[^&]*", r"\1=***", hidden)


def option_docs() -> dict[str, str]:
    """Each option's docstring, from the source of `WorkerSettings`: help texts and README are made of it."""
    body = ast.parse(inspect.getsource(WorkerSettings)).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - the source is this file
    docs: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = doc
            case _:
                continue
    return docs


class Given(Struct, frozen=True):
    """A value as somebody wrote it, and where."""

    value: Any
    source: str


def load_settings(argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> WorkerSettings:
    """The settings from the command line, the environment and the TOML file that either of them names.

    Args:
        argv: options such as `--lease-s 20`, `--lease-s=20`, `--engine.max-num-seqs 256` or `--config worker.toml`.
        environ: by default the process' own; `LANEWAY_CONFIG` names the file.

    Raises:
        SettingsError: an unknown name (with the nearest known one) or a wrong value; every problem is told.
    """
    environ = os.environ if environ is None else environ
    options = _from_argv(argv)
    config = options.pop("config", Given(environ.get("LANEWAY_CONFIG"), "LANEWAY_CONFIG"))
    given = {
        **(_from_toml(Path(config.value), config.source) if config.value else {}),
        **_from_environ(environ),
        **options,
    }
    values: dict[str, Any] = {"engine_args": {}, "adapters": {}}
    problems: list[str] = []
    for name, item in given.items():
        try:
            _put(values, name, item)
        except SettingsError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))
    settings = WorkerSettings(**values)
    _check_names(settings)
    return settings


def _from_argv(argv: Sequence[str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise SettingsError(f"expected an option such as --lease-s 20, got {shown(word)}")
        option, equals, value = word.partition("=")
        if not equals:
            # An option without a value is a switch of the engine: `--engine.enforce-eager`.
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        given[_option_name(option[2:])] = Given(value, option)
    return given


def _option_name(option: str) -> str:
    table, dot, rest = option.partition(".")
    if dot and table == "adapters":
        return option  # an adapter's name is kept as it is
    return table.replace("-", "_") + dot + rest.replace("-", "_")


def _from_environ(environ: Mapping[str, str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower().replace("__", ".", 1)
        if not (FOREIGN.fullmatch(variable) or _SERVICE_LINK.match(value)):
            given[name] = Given(value, variable)
    return given


def _from_toml(path: Path, source: str) -> dict[str, Given]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{source}: expected a readable file, got {path} ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{source}: expected a TOML file, got {path} ({error})") from None
    given: dict[str, Given] = {}
    for name, value in table.items():
        if name in TABLES and isinstance(value, dict):
            for inner, item in value.items():
                option = name if inner == "kind" else _option_name(f"{name}.{inner}")
                given[option] = Given(item, f"{path}: {name}.{inner}")
        else:
            given[_option_name(name)] = Given(value, f"{path}: {name}")
    return given


def _put(values: dict[str, Any], name: str, given: Given) -> None:
    table, dot, inner = name.partition(".")
    if dot:
        if table not in TABLES or not inner:
            raise SettingsError(
                f"{given.source}: expected a known option{nearest(table, TABLES)}, got {name!r}"
            )
        values[TABLES[table]][inner] = _plain(given.value)
    elif name == "adapters":
        values["adapters"].update(_pairs(given))
    elif name == "engine_args" or name not in WorkerSettings.__struct_fields__:
        hint = nearest(name, WorkerSettings.__struct_fields__)
        raise SettingsError(f"{given.source}: expected a known option{hint}, got {name!r}")
    else:
        values[name] = _convert(name, given)


def _convert(name: str, given: Given) -> Any:
    try:
        return msgspec.convert(given.value, _TYPES[name], strict=False)
    except msgspec.ValidationError as error:
        # A URL may hold a password: it is told without its value.
        value = "" if name == "redis_url" else f", got {shown(given.value)}"
        expected = _EXPECTED.get(name) or str(error).removeprefix("Expected ").partition(", got")[0]
        expected = expected.replace("`float`", "a number").replace("`int`", "an integer")
        raise SettingsError(f"{given.source}: expected {expected}{value}") from None


_TYPES = get_type_hints(WorkerSettings, include_extras=True)
_EXPECTED = {
    "redis_url": "a redis://, rediss://, unix:// or redis+sentinel:// URL, or memory://",
    "namespace": "1 to 64 letters, digits and _ . -",
    "health_port": "a port from 0 to 65535, or off",
    "engine": "vllm or fake",
    "scheduler": "slo or stock",
    "infeasible": "relegate or expire",
    "log_format": "auto, json or console",
    "log_level": "debug, info, warning or error",
}


def _plain(value: Any) -> Any:
    """What a word from the command line or the environment stands for: a number, true, a JSON value, or itself."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


def _pairs(given: Given) -> dict[str, str]:
    words: Iterable[str] = str(given.value).split(",") if given.value else ()
    pairs = dict(word.strip().partition("=")[::2] for word in words)
    if not all(name and path for name, path in pairs.items()):
        raise SettingsError(f"{given.source}: expected name=folder,name=folder, got {shown(given.value)}")
    return pairs


def _check_names(settings: WorkerSettings) -> None:
    try:
        check_model(settings.name)
        for adapter in settings.adapters:
            check_adapter(adapter)
    except InvalidJob as error:
        option = "served_name" if error.field == "model" else "adapters"
        raise SettingsError(f"{option}: expected {error.expected}, got {error.given}") from None
    for adapter, path in settings.adapters.items():
        if not isinstance(path, str) or not path:
            raise SettingsError(f"adapters.{adapter}: expected a folder, got {shown(path)}")
