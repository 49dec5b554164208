"""Connections to an SQLite file: how they are opened, and how their errors are translated."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from duetime.errors import (
    DatabaseCorrupted,
    DatabaseUnreachable,
    DataRejected,
    InvalidDatabaseURL,
    SchemaMismatch,
    StorageError,
)

T = TypeVar("T")

DEFAULT_PREFIX = "duetime_"
OLDEST_SQLITE = (3, 37, 0)

LOCK_SECONDS = 30.0
"""How long a migration or a copy waits for a locked file."""
_TRY_SECONDS = 0.06
"""SQLite sleeps longer and longer between its tries, up to 100 ms; `persist` starts again from the
shortest."""

_ABOUT_VALUES = ("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG")

_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,39}")
_OURS = re.compile(r"\bduetime_")


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it can begin the names of tables."""
    if not _PREFIX.fullmatch(prefix) or prefix.startswith("sqlite_"):
        raise InvalidDatabaseURL(
            f"The table prefix {prefix[:60]!r} cannot be used: write 1 to 40 lower-case letters, "
            "digits and underscores, beginning with a letter and not with 'sqlite_'."
        )
    return prefix


def with_prefix(text: str, prefix: str) -> str:
    """Return SQL written for tables named `duetime_…`, for another prefix."""
    return text if prefix == DEFAULT_PREFIX else _OURS.sub(prefix, text)


def check_path(path: str) -> str:
    """Return the absolute path of the database file; the file itself need not be there."""
    if not path or "\x00" in path:
        raise InvalidDatabaseURL(
            "The path of the SQLite file is empty. Write sqlite:///path/to/file.db."
        )
    if path == ":memory:" or path.startswith("file:"):
        raise InvalidDatabaseURL(
            f"{path!r} cannot be used: jobs must outlive the process, so SQLite needs a file. "
            "Write sqlite:///path/to/file.db."
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidDatabaseURL(
            f"The path {path!r:.100} is not valid UTF-8. Rename the file."
        ) from None
    file = Path(path).resolve()
    if file.is_dir():
        raise InvalidDatabaseURL(
            f"{path!r} is a directory. Use a file in it, such as {path}/duetime.db."
        )
    if not file.parent.is_dir():
        raise InvalidDatabaseURL(f"There is no directory {str(file.parent)!r}. Create it first.")
    return str(file)


def check_version() -> None:
    """Raise `StorageError` if the SQLite library lacks what we use (STRICT tables)."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StorageError(
            f"SQLite {sqlite3.sqlite_version} is too old: Duetime needs "
            f"{'.'.join(map(str, OLDEST_SQLITE))} or later. Use a newer Python or system library."
        )


def connect(
    path: str, *, lock_seconds: float = LOCK_SECONDS, checkpoint_pages: int = 0
) -> sqlite3.Connection:
    """Open the file that is there. Only the store's own connection checkpoints.

    Waits up to `lock_seconds` for one that another connection has for itself.

    Versions before 3.51.3 may corrupt the file if two connections of a process write or
    checkpoint at once: hence one regular writer a process, and no memory-mapped reads.
    """
    check_version()
    if not Path(path).exists():
        raise SchemaMismatch(
            f"There is no database at {path!r} yet. Run `duetime db init`.", found=0, expected=0
        )
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rw",
        uri=True,
        timeout=_TRY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )

    def configure() -> None:
        # SQLite reads the file for these.
        connection.execute("pragma synchronous = full")
        connection.execute(f"pragma wal_autocheckpoint = {checkpoint_pages:d}")
        connection.execute("pragma mmap_size = 0")
        connection.execute("pragma cache_size = -32000")

    try:
        persist(configure, lock_seconds)
    except BaseException:
        connection.close()
        raise
    return connection


def persist(
    attempt: Callable[[], T], seconds: float, *, is_awaited: Callable[[], bool] = lambda: True
) -> T:
    """Return what `attempt` returns; while the database is locked and anyone waits for the answer,
    try again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_locked(error) or time.monotonic() > deadline or not is_awaited():
                raise


def is_locked(error: sqlite3.Error) -> bool:
    name = getattr(error, "sqlite_errorname", "") or ""
    return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Raise the driver's errors as ours; a transient one as `DatabaseUnreachable`."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate_error(error, path) from error


def translate_error(error: sqlite3.Error, path: str) -> StorageError:
    """Return the driver's error as ours, with what to do about it."""
    name = getattr(error, "sqlite_errorname", "") or ""
    text = str(error)
    if is_locked(error):
        return DatabaseUnreachable(
            f"{path}: another connection has held the write lock for too long ({text}). Commit its "
            "transaction, and keep transactions short."
        )
    if name.startswith("SQLITE_FULL"):
        return DatabaseUnreachable(f"{path}: the disk is full ({text}). Free some space.")
    if name.startswith("SQLITE_READONLY"):
        return StorageError(
            f"{path}: the file is read-only ({text}). Give this user write permission to it and "
            "its directory."
        )
    if name.startswith("SQLITE_CANTOPEN") or name == "SQLITE_PERM":
        return InvalidDatabaseURL(
            f"{path}: the file cannot be opened ({text}). Check the path, and that this user can "
            "read and write it and its directory."
        )
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_IOERR_SHORT_READ")):
        return DatabaseCorrupted(
            f"{path}: the file is corrupted, or is not an SQLite database ({text}). Check the "
            "path. If it is correct, stop all workers and restore a backup, or try `sqlite3 FILE "
            ".recover`."
        )
    if name.startswith("SQLITE_IOERR"):
        return DatabaseUnreachable(f"{path}: reading or writing failed ({text}). Check the disk.")
    if "no such table" in text or "no such column" in text:
        return SchemaMismatch(
            f"Duetime's tables are not in {path} as expected ({text}). Run `duetime db upgrade`.",
            found=0,
            expected=0,
        )
    refusal = DataRejected if name.startswith(_ABOUT_VALUES) else StorageError
    return refusal(f"SQLite refused: {text}")
