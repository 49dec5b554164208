"""What can be said of an SQLite file: the library, the journal, locks, the file system."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from duetime.domain.findings import Finding, Thresholds
from duetime.errors import DatabaseUnreachable, StorageError
from duetime.settings import Settings
from duetime.storage.diagnosis import Check
from duetime.storage.sqlite.connection import (
    check_path,
    check_prefix,
    connect,
    persist,
    translate_errors,
    with_prefix,
)
from duetime.storage.sqlite.dialect import from_us
from duetime.storage.statements import load_statements

_WITHOUT_WAL_RESET_BUG = (3, 51, 3)
_MEGABYTE = 1_000_000
_NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|afs|ncpfs|9p|ceph|glusterfs|lustre|fuse\..*|virtiofs")
_TEMPORARY = ("tmpfs", "ramfs", "overlay", "aufs")
_MOUNTS = Path("/proc/self/mountinfo")


class SqliteDiagnosis:
    """Each check opens a connection of its own, and changes nothing."""

    def __init__(self, path: str, settings: Settings, thresholds: Thresholds) -> None:
        self.path = check_path(path)
        self._thresholds = thresholds
        self._lock_seconds = thresholds.write_lock.total_seconds()
        prefix = check_prefix(settings.prefix)
        self._sql = load_statements(
            "duetime.storage.sqlite", lambda text: with_prefix(text, prefix)
        )

    def checks(self) -> Sequence[Check]:
        return [
            Check("writable", self._check_writable, needs_tables=False),
            Check("clock", self._check_clock),
            Check("sqlite", self._check_library, needs_tables=False),
            Check("journal", self._check_journal, needs_tables=False),
            Check("file_system", self._check_file_system, needs_tables=False),
            Check("transactions", self._check_transactions, needs_tables=False),
        ]

    def is_refusal(self, error: StorageError) -> bool:
        return False

    async def version(self) -> str:
        await self._ask("select count(*) from sqlite_schema")
        return f"SQLite {sqlite3.sqlite_version}"

    async def _check_writable(self) -> Sequence[Finding]:
        try:
            await asyncio.to_thread(self._take_write_lock)
        except DatabaseUnreachable:
            pass  # It is locked: see the check `transactions`.
        except StorageError as error:
            if not _is_read_only(error):
                raise
            text = "this user cannot write to the file"
            return [Finding.of("writable", "read_only", text=text)]
        return [Finding.of("writable", "writable_ok")]

    async def _check_clock(self) -> Sequence[Finding]:
        rows = await self._ask(self._sql["examine_clock"])
        if rows:
            shown, real = from_us(rows[0][0]), datetime.now(UTC)
            return [Finding.of("clock", "clock_driven", shown=shown, real=real)]
        return [Finding.of("clock", "clock_of_machine")]

    async def _check_library(self) -> Sequence[Finding]:
        has_bug = sqlite3.sqlite_version_info < _WITHOUT_WAL_RESET_BUG
        code = "sqlite_wal_reset" if has_bug else "sqlite_ok"
        return [Finding.of("sqlite", code, version=sqlite3.sqlite_version)]

    async def _check_journal(self) -> Sequence[Finding]:
        [(mode,)] = await self._ask("pragma journal_mode")
        if mode == "wal":
            return [Finding.of("journal", "journal_ok")]
        return [Finding.of("journal", "journal_not_wal", mode=mode)]

    async def _check_file_system(self) -> Sequence[Finding]:
        kind = await asyncio.to_thread(_file_system_of, self.path)
        return [Finding.of("file_system", judge_file_system(kind), kind=kind)]

    async def _check_transactions(self) -> Sequence[Finding]:
        found = []
        try:
            await asyncio.to_thread(self._take_write_lock)
        except DatabaseUnreachable:
            waited = self._thresholds.write_lock
            found.append(Finding.of("transactions", "write_lock_held", waited=waited))
        except StorageError as error:
            if not _is_read_only(error):
                raise
        megabytes = await asyncio.to_thread(_size_of_log, self.path) // _MEGABYTE
        if megabytes >= self._thresholds.log_megabytes:
            found.append(Finding.of("transactions", "log_large", megabytes=megabytes))
        return found or [Finding.of("transactions", "transactions_ok")]

    def _take_write_lock(self) -> None:
        with self._connection() as connection:
            persist(lambda: connection.execute("begin immediate"), self._lock_seconds)
            connection.execute("rollback")

    async def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        def ask() -> list[tuple[Any, ...]]:
            with self._connection() as connection:
                return persist(lambda: connection.execute(statement).fetchall(), self._lock_seconds)

        return await asyncio.to_thread(ask)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with translate_errors(self.path):
            with closing(connect(self.path, lock_seconds=self._lock_seconds)) as connection:
                yield connection


def judge_file_system(kind: str) -> str:
    """Return the code of a finding for a file on this kind of file system.

    >>> judge_file_system("ext4"), judge_file_system("nfs4"), judge_file_system("tmpfs")
    ('file_system_ok', 'file_system_network', 'file_system_temporary')
    """
    if _NETWORK.fullmatch(kind):
        return "file_system_network"
    return "file_system_temporary" if kind in _TEMPORARY else "file_system_ok"


def find_file_system(path: str, mounts: str) -> str:
    r"""Return the kind of file system that holds `path`, from the text of `mountinfo`.

    >>> root = "22 1 8:1 / / rw - ext4 /dev/sda1 rw"
    >>> data = "30 22 0:9 / /my\\040data rw,noatime shared:1 - nfs4 host:/data rw"
    >>> mounts = f"{root}\n{data}"
    >>> find_file_system("/my data/jobs.db", mounts), find_file_system("/my database", mounts)
    ('nfs4', 'ext4')
    """
    best, found = "", "an unknown file system"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        # Spaces and backslashes are written in octal.
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount hides an earlier one at the same place.
        if inside and len(point) >= len(best):
            best, found = point, after.split()[0]
    return found


def _is_read_only(error: StorageError) -> bool:
    name = getattr(error.__cause__, "sqlite_errorname", "") or ""
    return name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN"))


def _file_system_of(path: str) -> str:
    try:
        return find_file_system(path, _MOUNTS.read_text(errors="replace"))
    except FileNotFoundError:
        return "an unknown file system"


def _size_of_log(path: str) -> int:
    try:
        return Path(f"{path}-wal").stat().st_size
    except FileNotFoundError:
        return 0
