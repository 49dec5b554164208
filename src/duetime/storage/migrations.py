"""The schema: numbered migrations in order, then the SQL functions, one process at a time.

A migration changes tables and is never changed itself once released. The functions are files that
hold the current text only: an upgrade replaces them as a whole when their digest changed.
"""

from __future__ import annotations

import hashlib
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


class Functions(msgspec.Struct, frozen=True):
    """The SQL functions of a backend, as one script that may be run again at any time."""

    script: str
    digest: str


class Upgraded(msgspec.Struct, frozen=True):
    """What an upgrade did."""

    migrations: list[Migration]
    functions: bool


class SchemaStatus(msgspec.Struct, frozen=True):
    """What is in the database, and what this version of Duetime has."""

    version: int
    latest: int
    pending: tuple[str, ...]
    functions_current: bool

    @property
    def current(self) -> bool:
        return self.version == self.latest and self.functions_current


class Session(Protocol):
    """A locked transaction in which the schema may be changed."""

    def applied(self) -> int: ...

    def run(self, script: str) -> None: ...

    def record(self, migration: Migration) -> None: ...

    def forget(self, migration: Migration) -> None: ...

    def functions(self) -> str:
        """The digest of the functions that are installed."""

    def record_functions(self, digest: str) -> None: ...


class Migrator(Protocol):
    """A backend's way to its schema."""

    @property
    def migrations(self) -> Sequence[Migration]: ...

    @property
    def functions(self) -> Functions: ...

    def version(self) -> int:
        """The version in the database; 0 if there is nothing. Takes no lock, changes nothing."""

    def installed_functions(self) -> str:
        """The digest of the functions in the database; "" if there are none."""

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


def load_functions(package: str, rename: Callable[[str], str]) -> Functions:
    """Read a backend's `functions/` folder, in the order of the files' names."""
    folder = sorted(files(package).joinpath("functions").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in folder if file.name.endswith(".sql")]
    script = rename("\n".join(texts))
    return Functions(script, hashlib.sha256(script.encode()).hexdigest())


NO_FUNCTIONS = Functions("", "")
"""For a backend that has none."""


def read_status(migrator: Migrator) -> SchemaStatus:
    """Return which version the database is at."""
    version = migrator.version()
    pending = [m for m in migrator.migrations if m.version > version]
    return SchemaStatus(
        version,
        len(migrator.migrations),
        tuple(f"{m.version:04}_{m.name}" for m in pending),
        migrator.installed_functions() == migrator.functions.digest,
    )


def upgrade(migrator: Migrator, to: int | None = None) -> Upgraded:
    """Apply what is missing, up to `to`. Safe to call from many processes at once.

    The functions belong to the latest version: an upgrade that stops before it leaves them alone.
    """
    latest = len(migrator.migrations)
    target = _check_target(to, latest)
    digest = migrator.functions.digest
    if migrator.version() == target and (
        target < latest or migrator.installed_functions() == digest
    ):
        return Upgraded([], functions=False)
    with migrator.session() as session:
        todo = plan_upgrade(migrator.migrations, session.applied(), to)
        for migration in todo:
            session.run(migration.up)
            session.record(migration)
        replace = session.applied() == latest and session.functions() != digest
        if replace:
            session.run(migrator.functions.script)
            session.record_functions(digest)
    return Upgraded(todo, functions=replace)


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


def check_version(version: int, latest: int) -> None:
    """Raise `SchemaMismatch` unless the tables are those that we work with.

    Functions of another release are accepted: during a rolling deploy both releases run.
    """
    refuse_newer(version, latest)
    if version == 0:
        raise SchemaMismatch(
            "Duetime's tables are not in this database yet. Run `duetime db init`.",
            found=0,
            expected=latest,
        )
    if version < latest:
        raise SchemaMismatch(
            f"The database's schema is version {version}, and this Duetime works with "
            f"{latest}. Run `duetime db upgrade`.",
            found=version,
            expected=latest,
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
