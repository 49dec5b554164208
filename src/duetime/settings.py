"""Settings: arguments win over the environment, the environment over a TOML file, over defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from duetime.domain.access.session import SESSION_IDLE, SESSION_LIFETIME
from duetime.domain.duration import Duration, format_duration, parse_duration, read_duration
from duetime.domain.jobs.job import (
    DEFAULT_MAX_ARGS_BYTES,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_QUEUE,
)
from duetime.domain.jobs.log_lines import DEFAULT_LOG_LINES
from duetime.domain.jobs.retry import MAX_ATTEMPTS
from duetime.domain.redaction import DEFAULT_REDACT_NAMES
from duetime.domain.urls import show_url
from duetime.errors import InvalidInput, SettingsError

DEFAULT_LEASE = timedelta(seconds=30)
DEFAULT_DATABASE = "sqlite:///duetime.db"
_MAX_POLL = timedelta(minutes=10)
_MAX_VALUES = {
    "concurrency": 10_000,
    "batch": 1000,
    "pool_size": 1000,
    "max_attempts": MAX_ATTEMPTS,
    "log_lines": 1000,
}
_GREATER_THAN_ZERO = (
    "lease", "heartbeat", "block_limit", "rescue_every", "prune_every", "database_timeout", "poll",
    "session_idle", "session_lifetime",
)  # fmt: skip
_MAX_LABEL_LENGTH = 200
_FOLLOWS_LEASE = {"heartbeat": timedelta(seconds=10), "rescue_every": timedelta(seconds=2)}
"""By default a third of the lease, and at most this."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")

DEFAULT_RETENTION = {
    "completed": timedelta(days=7),
    "cancelled": timedelta(days=7),
    "superseded": timedelta(days=7),
    "expired": timedelta(days=30),
    "dead": timedelta(days=90),
    "parked": timedelta(days=90),
    "tick": timedelta(days=90),
    "reminder": timedelta(days=90),
    "audit": timedelta(days=365),
}


class Retention(TypedDict, total=False):
    """How long finished jobs and other records are kept."""

    completed: Duration
    cancelled: Duration
    superseded: Duration
    expired: Duration
    dead: Duration
    parked: Duration
    tick: Duration
    reminder: Duration
    audit: Duration


class _WorkerSettings(TypedDict, total=False):
    queues: str | Iterable[str]
    concurrency: int
    batch: int
    lease: Duration
    heartbeat: Duration
    block_limit: Duration
    poll: Duration
    grace: Duration
    rescue_every: Duration
    prune_every: Duration
    retention: Retention | str
    schedule_fallback: bool
    service: str
    release: str
    log_lines: int


class WorkerArguments(_WorkerSettings, total=False):
    """The keyword arguments of `app.worker(…)`: the settings that a worker reads, and its name."""

    name: str | None


class SettingsArguments(_WorkerSettings, total=False):
    """The keyword arguments of `Duetime(…)`. See `Settings` for what they become."""

    listen_database: str | None
    replica_database: str | None
    schema: str
    prefix: str
    notify: bool
    prepare: bool
    pool_size: int
    database_timeout: Duration
    max_attempts: int
    retry_base: Duration
    max_args_bytes: int
    migrate: bool | None
    read_only: bool
    redact_names: str | Iterable[str]
    session_idle: Duration
    session_lifetime: Duration


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, with its default. `DUETIME_LEASE=1m` sets `lease`, and so on."""

    database: str = DEFAULT_DATABASE
    listen_database: str | None = None
    replica_database: str | None = None
    """Where the dashboard reads its pages."""
    schema: str = "duetime"
    prefix: str = "duetime_"
    notify: bool = True
    prepare: bool = True
    pool_size: int = 4
    database_timeout: timedelta = timedelta(seconds=30)
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    concurrency: int = 50
    batch: int = 1000
    lease: timedelta = DEFAULT_LEASE
    heartbeat: timedelta = timedelta(seconds=10)
    block_limit: timedelta = timedelta(seconds=10)
    poll: timedelta = timedelta(seconds=1)
    grace: timedelta = timedelta(seconds=30)
    rescue_every: timedelta = timedelta(seconds=2)
    prune_every: timedelta = timedelta(seconds=60)
    retention: dict[str, timedelta] = msgspec.field(default_factory=lambda: dict(DEFAULT_RETENTION))
    schedule_fallback: bool = False
    service: str = "default"
    """Which service declares the schedules: services that share a database need different names."""
    release: str = ""
    """The release of the service. Later releases must have greater version numbers."""
    log_lines: int = DEFAULT_LOG_LINES
    """How many lines that a handler logs are kept with its attempt, the last ones. 0: none."""
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retry_base: timedelta = timedelta(seconds=15)
    max_args_bytes: int = DEFAULT_MAX_ARGS_BYTES
    migrate: bool | None = None
    """Bring the schema up to date when the app starts. Default: on SQLite only."""
    read_only: bool = False
    """The HTTP API and the dashboard change nothing. Workers and the Python API still do."""
    redact_names: tuple[str, ...] = DEFAULT_REDACT_NAMES
    """What has one of these names is not shown to people."""
    session_idle: timedelta = SESSION_IDLE
    session_lifetime: timedelta = SESSION_LIFETIME

    def shown(self) -> dict[str, Any]:
        """Return all settings by name, as people may be shown them: without passwords."""
        values = msgspec.structs.asdict(self)
        for name in ("database", "listen_database", "replica_database"):
            if values[name] is not None:
                values[name] = show_url(values[name])
        return values

    def __repr__(self) -> str:
        """Without passwords, since whatever logs an object logs this."""
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"


_FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}


def load_settings(
    arguments: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    other_tables: Container[str] = (),
) -> Settings:
    """Read and check the settings; raise `SettingsError` naming the one that is wrong.

    `other_tables`: what the file may contain besides settings.
    """
    environment = os.environ if environment is None else environment
    path = file or environment.get("DUETIME_CONFIG")
    values: dict[str, tuple[Any, str]] = {}
    if path is not None:
        values |= _from_file(Path(path), other_tables)
    for name in _FIELDS:
        variable = f"DUETIME_{name.upper()}"
        if environment.get(variable):
            values[name] = (environment[variable], variable)
    for name, value in (arguments or {}).items():
        if name not in _FIELDS:
            raise SettingsError(
                f"Unknown setting {name!r}. The settings are: {', '.join(sorted(_FIELDS))}."
            )
        if value is not None:
            values[name] = (value, f"{name}=")
    given = {name: _convert(name, value, source) for name, (value, source) in values.items()}
    return _check(Settings(**_follow_lease(given)))


def change_settings(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with these changed; None changes nothing.

    With another lease, a heartbeat that had its default follows.
    """
    given = {
        name: _convert(name, value, f"{name}=")
        for name, value in changes.items()
        if value is not None
    }
    kept = msgspec.structs.asdict(settings)
    if "lease" in given:
        defaults = _follow_lease({"lease": settings.lease})
        for name in _FOLLOWS_LEASE:
            if kept[name] == defaults[name]:
                del kept[name]
    return _check(Settings(**_follow_lease(kept | given)))


def read_whole_number(text: str) -> int | None:
    """Return the number that is written in the digits 0 to 9; None if it is not a number.

    >>> read_whole_number("50"), read_whole_number("5_0"), read_whole_number("\u0665\u0660")
    (50, None, None)
    """
    return int(text) if _WHOLE.fullmatch(text.strip()) else None


def read_settings_file(path: Path) -> dict[str, Any]:
    """Return what a TOML file says: all of it, or its table `[tool.duetime]`."""
    import tomllib

    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from None
    section = content
    for table in ("tool", "duetime") if "tool" in content else ():
        section = section.get(table, {})
        if not isinstance(section, dict):
            raise SettingsError(f"{path}: settings must be in the table [tool.duetime].")
    return section


def _from_file(path: Path, other_tables: Container[str]) -> dict[str, tuple[Any, str]]:
    section = read_settings_file(path)
    for name in section:
        if name not in _FIELDS and name not in other_tables:
            raise SettingsError(
                f"{path}: unknown setting {name!r}. The settings are: {', '.join(sorted(_FIELDS))}."
            )
    return {name: (value, f"{path}: {name}") for name, value in section.items() if name in _FIELDS}


def _convert(name: str, value: Any, source: str) -> Any:
    kind = _FIELDS[name].type
    if name == "retention":
        return _retention(value, source)
    if name in ("queues", "redact_names"):
        return _names(value, source)
    if kind is timedelta:
        return _duration(value, source)
    if kind in (bool, bool | None):
        return _boolean(value, source)
    if kind is int:
        return _whole_number(value, source)
    return str(value).strip()


def _follow_lease(given: dict[str, Any]) -> dict[str, Any]:
    lease = given.get("lease", DEFAULT_LEASE)
    return {name: min(lease / 3, most) for name, most in _FOLLOWS_LEASE.items()} | given


def _duration(value: Any, source: str) -> timedelta:
    try:
        if isinstance(value, str):
            return read_duration(value.strip(), name=source)
        return parse_duration(value, name=source)
    except InvalidInput as error:
        raise SettingsError(str(error)) from None


def _whole_number(value: Any, source: str) -> int:
    number = read_whole_number(value) if isinstance(value, str) else value
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    raise SettingsError(f"{source} must be an integer such as 50, got {value!r:.60}.")


def _names(value: Any, source: str) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Iterable):
        raise SettingsError(
            f"{source} must be a list of names or a comma-separated string, got {value!r}."
        )
    return tuple(str(name).strip() for name in names if str(name).strip())


def _boolean(value: Any, source: str) -> bool:
    match value if isinstance(value, bool) else str(value).lower():
        case bool() as truth:
            return truth
        case "on" | "true" | "yes" | "1":
            return True
        case "off" | "false" | "no" | "0":
            return False
    raise SettingsError(f"{source} must be on or off, got {value!r}.")


def _retention(value: Any, source: str) -> dict[str, timedelta]:
    if isinstance(value, str):
        pairs = [item.partition("=") for item in value.split(",") if item.strip()]
        value = {name.strip(): age.strip() for name, _, age in pairs}
    if not isinstance(value, Mapping):
        raise SettingsError(
            f'{source} must map outcomes to durations, such as {{"completed": "7d"}}, got '
            f"{value!r}."
        )
    ages = dict(DEFAULT_RETENTION)
    for name, age in value.items():
        if name not in ages:
            raise SettingsError(f"{name!r} has no retention. Use one of: {', '.join(ages)}.")
        ages[name] = _duration(age, f"retention of {name}")
    return ages


def _check(settings: Settings) -> Settings:
    for name in ("concurrency", "batch", "pool_size", "max_attempts", "max_args_bytes"):
        if getattr(settings, name) < 1:
            raise SettingsError(f"{name} must be at least 1, got {getattr(settings, name)}.")
    if settings.log_lines < 0:
        raise SettingsError(f"log_lines must not be negative, got {settings.log_lines}.")
    for name in _GREATER_THAN_ZERO:
        if not getattr(settings, name):
            raise SettingsError(f"{name} must be greater than zero.")
    for name, most in _MAX_VALUES.items():
        if getattr(settings, name) > most:
            raise SettingsError(f"{name} must be at most {most}, got {getattr(settings, name)}.")
    for name in ("service", "release"):
        value = getattr(settings, name)
        if len(value) > _MAX_LABEL_LENGTH or not value.isprintable():
            raise SettingsError(f"{name} must be at most {_MAX_LABEL_LENGTH} printable characters.")
    if not settings.service:
        raise SettingsError("service must not be empty.")
    if not settings.queues:
        raise SettingsError("queues must contain at least one queue.")
    if settings.poll > _MAX_POLL:
        raise SettingsError(f"poll must be at most 10m, got {format_duration(settings.poll)}.")
    if settings.heartbeat * 2 > settings.lease:
        raise SettingsError(
            f"heartbeat ({format_duration(settings.heartbeat)}) must be at most half of the lease "
            f"({format_duration(settings.lease)}), so that one lost heartbeat costs nothing. Leave "
            "it out: then it follows from the lease."
        )
    return settings
