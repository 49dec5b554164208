"""The only module that knows the concrete backends."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from duetime.domain.urls import show_url
from duetime.errors import InvalidDatabaseURL, InvalidInput, SettingsError
from duetime.settings import Settings

if TYPE_CHECKING:
    from duetime.domain.findings import Thresholds
    from duetime.storage.diagnosis import Diagnosis
    from duetime.storage.migrations import Migrator
    from duetime.storage.postgres.roles import PostgresRoles
    from duetime.storage.sqlite.backup import Backup
    from duetime.storage.store import Store


def make_store(settings: Settings) -> Store:
    """Return the store for the database URL; it is not opened yet."""
    if (file := file_of(settings.database)) is not None:
        from duetime.storage.sqlite.store import SqliteStore

        return SqliteStore(
            file,
            prefix=settings.prefix,
            call_seconds=settings.database_timeout.total_seconds(),
        )
    _need_psycopg()
    from duetime.storage.postgres.store import PostgresStore

    return PostgresStore(
        settings.database,
        listen_url=settings.listen_database,
        schema=settings.schema,
        notify=settings.notify,
        prepare=settings.prepare,
        pool_size=settings.pool_size,
        call_seconds=settings.database_timeout.total_seconds(),
    )


def make_migrator(settings: Settings) -> Migrator:
    """Return what changes the schema of the database."""
    if (file := file_of(settings.database)) is not None:
        from duetime.storage.sqlite.migrator import SqliteMigrator

        return SqliteMigrator(file, settings.prefix)
    _need_psycopg()
    from duetime.storage.postgres.migrator import PostgresMigrator

    return PostgresMigrator(settings.database, settings.schema)


def make_roles(settings: Settings, prefix: str) -> PostgresRoles:
    """Return what says which role may do what."""
    if file_of(settings.database) is not None:
        raise InvalidInput("SQLite has no roles: whoever can write to the file can do everything.")
    _need_psycopg()
    from duetime.storage.postgres.roles import PostgresRoles

    return PostgresRoles(settings.database, schema=settings.schema, prefix=prefix)


def make_diagnosis(settings: Settings, thresholds: Thresholds) -> Diagnosis:
    """Return the checks of `duetime doctor` that only this backend has."""
    if (file := file_of(settings.database)) is not None:
        from duetime.storage.sqlite.diagnosis import SqliteDiagnosis

        return SqliteDiagnosis(file, settings, thresholds)
    _need_psycopg()
    from duetime.storage.postgres.diagnosis import PostgresDiagnosis

    return PostgresDiagnosis(settings, thresholds)


def back_up(settings: Settings, target: str) -> Backup:
    """Copy the database into a new file, while workers run. SQLite only."""
    file = file_of(settings.database)
    if file is None:
        raise InvalidInput(
            "To back up PostgreSQL, use its own tools: pg_dump --format=custom "
            f"--file={shlex.quote(target)} DATABASE. See the manual, Backups."
        )
    from duetime.storage.sqlite.backup import back_up

    return back_up(file, target)


def check_urls(settings: Settings) -> None:
    """Raise an error if a URL cannot be used."""
    file = file_of(settings.database)
    replica = settings.replica_database
    if replica is not None and (file is not None or file_of(replica) is not None):
        raise SettingsError(
            "replica_database (DUETIME_REPLICA_DATABASE) is for PostgreSQL: SQLite has no replicas."
        )


def file_of(url: str) -> str | None:
    """Return the file that the database is (SQLite); None: it is on a server (PostgreSQL).

    `sqlite:///jobs.db` is relative, `sqlite:////var/jobs.db` absolute, as elsewhere.
    """
    if url.startswith(("postgresql://", "postgres://")):
        return None
    if not url.startswith("sqlite://"):
        raise InvalidDatabaseURL(
            "The database URL must begin with postgresql:// or sqlite:///, "
            + (f"got {show_url(url)}." if "://" in url else "and this one has no scheme.")
        )
    path = url.partition("://")[2]
    if not path.startswith("/") or len(path) < 2:
        raise InvalidDatabaseURL(
            "A SQLite URL must be sqlite:/// followed by a path, such as sqlite:///duetime.db, got "
            f"{show_url(url)}."
        )
    return path[1:]


def _need_psycopg() -> None:
    try:
        import psycopg  # noqa: F401
        import psycopg_pool  # noqa: F401
    except ImportError:
        raise InvalidDatabaseURL(
            "PostgreSQL requires a driver: pip install 'duetime[postgres]'."
        ) from None
