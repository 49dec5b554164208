"""Numbered migrations: applied in order, each in a transaction, one process at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Protocol

import msgspec

from duetime.errors import InvalidInput, SchemaMismatch

_FILE = re.compile(r"(\d{4})_(\w+)\.(up|down)\.sql")


class Migration(msgspec.Struct, frozen=True):
    version: int
    name: str
    up: str
    down: str


class SchemaStatus(msgspec.Struct, frozen=True):
    """Which migrations are in the database, and which this version of Duetime has."""

    version: int
    latest: int
    pending: tuple[str, ...]

    @property
    def current(self) -> bool:
        return self.version == self.latest


class Session(Protocol):
    """A locked transaction in which the schema may be changed."""

    def applied(self) -> int: ...

    def run(self, script: str) -> None: ...

    def record(self, migration: Migration) -> None: ...

    def forget(self, migration: Migration) -> None: ...


class Migrator(Protocol):
    """A backend's way to its schema."""

    @property
    def migrations(self) -> Sequence[Migration]: ...

    def version(self) -> int:
        """The version in the database; 0 if there is nothing. Takes no lock, changes nothing."""

    def session(self) -> AbstractContextManager[Session]: ...


def load_migrations(package: str, rename: Callable[[str], str]) -> list[Migration]:
    """Read a backend's `migrations/` folder. Numbers run from 1, without gaps."""
    scripts: dict[int, dict[str, str]] = {}
    names: dict[int, str] = {}
    for file in files(package).joinpath("migrations").iterdir():
        if found := _FILE.fullmatch(file.name):
            version = int(found[1])
            names[version] = found[2]
            scripts.setdefault(version, {})[found[3]] = rename(file.read_text(encoding="utf-8"))
    if sorted(scripts) != list(range(1, len(scripts) + 1)):
        raise AssertionError(f"migrations of {package} are not numbered without gaps")
    return [
        Migration(version, names[version], scripts[version]["up"], scripts[version]["down"])
        for version in sorted(scripts)
    ]


def read_status(migrator: Migrator) -> SchemaStatus:
    """Return where the database stands."""
    version = migrator.version()
    pending = [m for m in migrator.migrations if m.version > version]
    return SchemaStatus(
        version, len(migrator.migrations), tuple(f"{m.version:04}_{m.name}" for m in pending)
    )


def upgrade(migrator: Migrator, to: int | None = None) -> list[Migration]:
    """Apply what is missing, up to `to`. Safe to call from many processes at once."""
    if migrator.version() == _check_target(to, len(migrator.migrations)):
        return []
    with migrator.session() as session:
        todo = plan_upgrade(migrator.migrations, session.applied(), to)
        for migration in todo:
            session.run(migration.up)
            session.record(migration)
    return todo


def downgrade(migrator: Migrator, to: int) -> list[Migration]:
    """Undo migrations down to `to`; 0 removes everything of ours."""
    if migrator.version() == _check_target(to, len(migrator.migrations)):
        return []
    with migrator.session() as session:
        todo = plan_downgrade(migrator.migrations, session.applied(), to)
        for migration in todo:
            session.run(migration.down)
            session.forget(migration)
    return todo


def plan_upgrade(
    migrations: Sequence[Migration], version: int, to: int | None = None
) -> list[Migration]:
    """Return what leads from `version` up to `to`, in order; by default to the latest."""
    target = _check_target(to, len(migrations))
    refuse_newer(version, len(migrations))
    return [m for m in migrations if version < m.version <= target]


def plan_downgrade(migrations: Sequence[Migration], version: int, to: int) -> list[Migration]:
    """Return what leads from `version` down to `to`, in order."""
    target = _check_target(to, len(migrations))
    refuse_newer(version, len(migrations))
    return [m for m in reversed(migrations) if target < m.version <= version]


def check_current(status: SchemaStatus) -> None:
    """Raise `SchemaMismatch` unless the schema is the one that we work with."""
    refuse_newer(status.version, status.latest)
    if status.version == 0:
        raise SchemaMismatch(
            "Duetime's tables are not in this database yet. Run `duetime db init`.",
            found=0,
            expected=status.latest,
        )
    if not status.current:
        raise SchemaMismatch(
            f"The database's schema is version {status.version}, and this Duetime works with "
            f"{status.latest}. Run `duetime db upgrade`.",
            found=status.version,
            expected=status.latest,
        )


def refuse_newer(version: int, latest: int) -> None:
    if version > latest:
        raise SchemaMismatch(
            f"The database's schema is version {version}, newer than this Duetime knows "
            f"({latest}). Upgrade the package `duetime`, or use another schema.",
            found=version,
            expected=latest,
        )


def _check_target(to: int | None, latest: int) -> int:
    if to is None:
        return latest
    if not 0 <= to <= latest:
        raise InvalidInput(f"There is no schema version {to}: this Duetime has 0 to {latest}.")
    return to
