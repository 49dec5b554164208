"""What `duetime doctor` finds in SQLite files alone. Each fault is planted for real."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from duetime import Duetime
from duetime.doctor import examine
from duetime.domain.findings import Finding, FindingLevel, Thresholds
from duetime.settings import Settings
from duetime.storage.sqlite import diagnosis
from duetime.storage.sqlite.diagnosis import SqliteDiagnosis

AT_ONCE = Thresholds(write_lock=timedelta(milliseconds=50), log_megabytes=1)


@pytest.fixture
def file(tmp_path: Path, sqlite_tables: Path) -> Path:
    return Path(shutil.copy(sqlite_tables, tmp_path / "duetime.db"))


async def check(name: str, file: Path, thresholds: Thresholds = AT_ONCE) -> list[Finding]:
    found = SqliteDiagnosis(str(file), Settings(), thresholds)
    [run] = [one.run for one in found.checks() if one.name == name]
    return list(await run())


def codes(findings: Sequence[Finding]) -> list[str]:
    return [finding.code for finding in findings]


async def test_a_transaction_that_holds_the_write_lock(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        held = await check("transactions", file)
        writable = await check("writable", file)
        writer.execute("rollback")

        assert codes(held) == ["write_lock_held"]
        assert codes(writable) == ["writable_ok"]
        assert codes(await check("transactions", file)) == ["transactions_ok"]


async def test_a_held_lock_does_not_keep_the_doctor_waiting(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        app = Duetime(f"sqlite:///{file}", database_timeout="600ms")
        findings = await examine(app, thresholds=AT_ONCE)
        writer.execute("rollback")
    await app.close()

    assert "check_failed" not in codes(findings)
    assert "write_lock_held" in codes(findings)


async def test_a_reader_that_keeps_the_log_from_being_emptied(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from duetime_job").fetchone()
        with closing(sqlite3.connect(file)) as writer:
            writer.execute("create table ballast (x blob)")
            writer.execute("insert into ballast values (zeroblob(2000000))")
            writer.commit()

            [large] = await check("transactions", file)

    assert large.code == "log_large"
    assert large.facts["megabytes"] >= 2


async def test_a_file_that_is_not_in_wal_mode(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma journal_mode = delete")

    [found] = await check("journal", file)

    assert found.code == "journal_not_wal"
    assert found.facts == {"mode": "delete"}


@pytest.mark.parametrize(
    ("version", "code"),
    [((3, 51, 2), "sqlite_wal_reset"), ((3, 51, 3), "sqlite_ok"), ((3, 53, 0), "sqlite_ok")],
)
async def test_versions_with_the_wal_reset_bug(
    file: Path, version: tuple[int, ...], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

    assert codes(await check("sqlite", file)) == [code]


@pytest.fixture
def in_memory(file: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(shutil.copy(file, folder))


async def test_a_file_in_memory_is_lost_at_a_restart(in_memory: Path) -> None:
    [found] = await check("file_system", in_memory)

    assert found.code == "file_system_temporary"
    assert "tmpfs" in found.message


async def test_a_file_on_a_network_file_system(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:9 / {tmp_path} rw - nfs4 h:/ rw"
    )
    monkeypatch.setattr(diagnosis, "_MOUNTS", mounts)

    [found] = await check("file_system", file)

    assert found.level is FindingLevel.ERROR
    assert "nfs4, a network file system" in found.message
