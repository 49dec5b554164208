"""A copy of an SQLite file, made while others write to it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from duetime.errors import InvalidInput, StorageError
from duetime.storage.sqlite.connection import check_path, connect, translate_errors


class Backup(msgspec.Struct, frozen=True):
    """A copy that has been checked."""

    file: str
    bytes: int


def back_up(source: str, target: str) -> Backup:
    """Copy the database at `source` into the new file `target`, and check the copy.

    The copy is one moment of the database: a transaction is in it whole, or not at all. Writers
    are not held up. Until the copy is complete and checked, `target` does not exist.
    """
    file = Path(check_path(target))
    if file.exists():
        raise InvalidInput(
            f"{target} already exists and will not be overwritten. Choose another file."
        )
    partial = file.with_name(f"{file.name}.partial")
    try:
        # For this user only, from its first byte on.
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        _copy(check_path(source), str(partial))
        partial.rename(file)
        _sync(file)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror}.") from error
    finally:
        for left in (partial, *(Path(f"{partial}{end}") for end in ("-wal", "-shm", "-journal"))):
            with suppress(OSError):
                left.unlink()
    return Backup(str(file), file.stat().st_size)


def _copy(source: str, target: str) -> None:
    with translate_errors(source), closing(connect(source)) as original:
        with (
            translate_errors(target),
            closing(sqlite3.connect(target, isolation_level=None)) as copy,
        ):
            # In one step, from one snapshot: smaller steps would start again after every write.
            original.backup(copy)
            # A single file, which needs no log beside it.
            copy.execute("pragma journal_mode = delete").fetchall()
            [[verdict], *_] = copy.execute("pragma integrity_check(1)").fetchall()
            if verdict != "ok":
                raise StorageError(
                    f"The copy of {source} is corrupted ({verdict}) and was removed. The database "
                    "itself may be corrupted: check it with `sqlite3 FILE 'pragma "
                    "integrity_check'`."
                )


def _sync(file: Path) -> None:
    """Make sure that the file and its name outlive a power failure."""
    for path, flags in ((file, os.O_RDWR), (file.parent, os.O_RDONLY)):
        opened = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
