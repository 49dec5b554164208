"""Connections to PostgreSQL: how they are opened, and how their errors are translated."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from duetime.domain.urls import HOW_TO_WRITE, check_postgres_url, describe_parse_error
from duetime.errors import (
    DatabaseUnreachable,
    DataRejected,
    InvalidDatabaseURL,
    InvalidInput,
    SchemaMismatch,
    StorageError,
    TransactionConflict,
    TransientError,
)
from duetime.storage.store import Row

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_OURS = re.compile(r"\bduetime\.")

_DEFAULTS = {
    # In a database of the encoding SQL_ASCII, the driver would return bytes for every text.
    "client_encoding": "utf8",
    # Half-open connections are noticed in seconds, not in the kernel's two hours.
    "connect_timeout": "5",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "duetime",
}


_RIGHTS = (
    "The owner of Duetime's tables grants rights: `duetime db roles` prints roles for workers, "
    "operators, producers, trackers and readers, and --apply makes them. See the manual, "
    "Deployment, Roles."
)
RIGHTS_TO_MIGRATE = (
    "To make Duetime's tables a role needs CREATE on the database, or a schema of its own; to "
    "change them it must be their owner. Migrate as such a role, and grant the others what they "
    "need: see the manual, Deployment, Roles."
)
_PROBES = 5
_PROBE_SECONDS = 3.0
_ABOUT_VALUES = frozenset({"21", "22", "23", "44", "54", "P0"})
"""Classes of SQLSTATE: the values do not fit, break a constraint, are too large, or a trigger
refuses them. All others are about the server, its state or our rights, and may change."""
_CHECK_URL = (
    "Check that the server runs, and the URL's host, port, user, password and database: "
    "postgresql://user:password@host:port/database."
)


_SEVERAL_HOSTS = {
    # A standby accepts connections, and no writes.
    "target_session_attrs": "read-write",
    # Each host that is gone costs this much before the next one is tried.
    "connect_timeout": "2",
}


def check_schema_name(schema: str) -> str:
    """Return `schema` if it can be written in SQL as it is."""
    if not _SCHEMA.fullmatch(schema):
        raise InvalidDatabaseURL(
            f"The schema name {schema[:60]!r} cannot be used: write 1 to 40 lower-case letters, "
            "digits and underscores, not beginning with a digit."
        )
    return schema


def in_schema(text: str, schema: str) -> str:
    """Return SQL written for the schema `duetime`, for another one."""
    return text if schema == "duetime" else _OURS.sub(f"{schema}.", text)


def make_dsn(url: str) -> str:
    """Return libpq's form of `url`, with keepalives unless it sets its own.

    With several hosts, it connects to the one that accepts writes, unless the URL says otherwise.
    """
    try:
        given = conninfo_to_dict(check_postgres_url(url))
    except psycopg.ProgrammingError as error:
        raise InvalidDatabaseURL(
            f"The database URL cannot be parsed: {describe_parse_error(error)}. {HOW_TO_WRITE}"
        ) from None
    hosts = str(given.get("host") or given.get("hostaddr") or "")
    defaults = _DEFAULTS | (_SEVERAL_HOSTS if "," in hosts else {})
    return make_conninfo(**defaults | {k: str(v) for k, v in given.items() if v is not None})


async def shares_sessions(dsn: str) -> bool:
    """Whether a pooler in transaction mode is in between: then one session of the server serves
    two clients that are connected at the same time."""

    async def ask(client: psycopg.AsyncConnection[Row]) -> int:
        cursor = await client.execute("select pg_backend_pid()")
        row = await cursor.fetchone()
        return int(row[0]) if row else 0

    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as one:
        if await ask(one) == one.info.backend_pid:
            # There is no pooler: one would report a process number of its own.
            return False
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(_PROBE_SECONDS),
                await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other,
            ):
                for _ in range(_PROBES):
                    if await ask(one) == await ask(other):
                        return True
    return False


@contextmanager
def translate_errors(*, rights: str = _RIGHTS) -> Iterator[None]:
    """Raise the driver's errors as ours; one that may pass as a `TransientError`.

    `rights`: which privileges this needs, to be added to the message.
    """
    try:
        yield
    except (PoolTimeout, PoolClosed, TooManyRequests, OSError, TimeoutError) as error:
        raise DatabaseUnreachable(f"PostgreSQL did not answer: {first_line(error)}") from error
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.UndefinedFunction,
        psycopg.errors.InvalidSchemaName,
    ) as error:
        raise SchemaMismatch(
            f"Duetime's tables are not in this database as expected ({first_line(error)}). "
            "Run `duetime db upgrade`.",
            found=0,
            expected=0,
        ) from error
    except psycopg.errors.InvalidParameterValue as error:
        raise InvalidInput(first_line(error)) from error
    except (
        psycopg.errors.DeadlockDetected,
        psycopg.errors.SerializationFailure,
        psycopg.errors.LockNotAvailable,
    ) as error:
        # The driver counts these among the failures of connections.
        raise TransactionConflict(
            f"The transaction conflicted with another one ({first_line(error)}) and was rolled "
            "back. Nothing was changed. Try again."
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise StorageError(f"PostgreSQL refused: {first_line(error)}. {rights}") from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise TransientError(
            f"The database is read-only at the moment ({first_line(error)}): it is a standby, or "
            "default_transaction_read_only is on. Nothing was changed. Try again after the "
            "failover, or check which server the URL names."
        ) from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        if _is_about_values(error):
            raise DataRejected(f"PostgreSQL refused: {first_line(error)}") from error
        # Only a connection that was never made comes with its error.
        hint = f". {_CHECK_URL}" if error.pgconn is not None else ""
        raise DatabaseUnreachable(
            f"PostgreSQL cannot be reached, or the connection was lost: {first_line(error)}{hint}"
        ) from error
    except psycopg.Error as error:
        refusal = DataRejected if _is_about_values(error) else StorageError
        if (error.sqlstate or "").startswith("25"):
            # Time-outs that end an idle session or a long transaction, and their like.
            refusal = TransientError
        raise refusal(f"PostgreSQL refused: {first_line(error)}") from error
    except (UnicodeDecodeError, OverflowError) as error:
        # The driver could not read what it was sent.
        raise StorageError(f"A row cannot be read: {first_line(error)}") from error


def is_demoted(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> bool:
    """Whether a refused write is due to the server, not to what the caller made of its transaction.

    Servers report both settings, but not before PostgreSQL 14 or through a pooler.
    """
    if connection.closed:
        return True
    reported = (
        connection.pgconn.parameter_status(name)
        for name in (b"in_hot_standby", b"default_transaction_read_only")
    )
    return any(value != b"off" for value in reported)


def _is_about_values(error: psycopg.Error) -> bool:
    return (error.sqlstate or "")[:2] in _ABOUT_VALUES


@asynccontextmanager
async def limited_to(seconds: float) -> AsyncIterator[None]:
    """Give up on the database after `seconds`."""
    with translate_errors():
        async with asyncio.timeout(seconds):
            yield


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


async def rows_of(cursor: psycopg.AsyncCursor[Row]) -> list[Row]:
    """Return its rows; none if it was no query. Asking for its `description` would make an object
    of each column: 0.3 ms for 40."""
    return [] if cursor.rownumber is None else await cursor.fetchall()


def array(values: Iterable[int]) -> str:
    """A PostgreSQL array of numbers, as text. Their JSON is the same text but for the brackets,
    and six times cheaper than `str` of each."""
    return "{" + msgspec.json.encode(list(values))[1:-1].decode() + "}"


def text_array(texts: Iterable[str]) -> str:
    """An array of texts, as PostgreSQL reads it."""
    quoted = (text.replace("\\", r"\\").replace('"', r"\"") for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"
