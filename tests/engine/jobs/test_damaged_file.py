"""A damaged SQLite file: its workers stop, with one line that says what to do."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from duetime import Duetime
from duetime.errors import DatabaseCorrupted
from duetime.telemetry.events import log as events_log
from tests.acceptance.command import worker
from tests.log_events import event_of, events_of
from tests.waiting import until_true

EXIT_CODE = 74


@pytest.fixture
def path(tmp_path: Path, sqlite_tables: Path) -> Path:
    return Path(shutil.copy(sqlite_tables, tmp_path / "jobs.db"))


@pytest.fixture
async def app(path: Path) -> AsyncIterator[Duetime]:
    app = Duetime(f"sqlite:///{path}", lease="30s", poll="200ms")
    yield app
    await app.close()


def damage(path: Path, table: str) -> None:
    """Overwrite a table and its indexes, and make others read them anew."""
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        [[busy, _, _]] = connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        assert not busy
        pages = connection.execute(
            "select rootpage from sqlite_master where tbl_name = ? and rootpage > 0", [table]
        ).fetchall()
        [[size]] = connection.execute("pragma page_size").fetchall()
    with path.open("r+b") as file:
        for [page] in pages:
            file.seek((page - 1) * size)
            file.write(b"\xa5" * size)
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        connection.execute("create table others (a)")
        connection.commit()


@pytest.mark.parametrize(
    "table",
    ["duetime_due", "duetime_worker", "duetime_claim", "duetime_queue", "duetime_schedule"],
)
async def test_a_damaged_file_stops_the_worker(
    app: Duetime, path: Path, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = asyncio.create_task(app._make_worker(await app.store()).run())
    await until_true(lambda: "worker_started" in events_of(caplog))

    damage(path, table)

    with pytest.raises(DatabaseCorrupted, match="restore a backup"):
        await asyncio.wait_for(running, 15)
    troubles = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.name, event_of(record)) for record in troubles] == [
        (events_log.name, "database_corrupted")
    ]


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
async def test_a_damaged_file_ends_the_process(path: Path, options: tuple[str, ...]) -> None:
    with worker(f"sqlite:///{path}", "--poll", "200ms", *options) as process:
        await until_true(lambda: process.logged("worker_started"))
        damage(path, "duetime_due")

        assert process.exit_code(20) == EXIT_CODE

        troubles = [line for line in process.lines if line["level"] in ("warning", "error")]
        assert {line["event"] for line in troubles} == {"database_corrupted"}
        assert len(troubles) <= (2 if options else 1)


def test_a_file_that_is_damaged_from_the_start(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + b"\xa5" * 100_000)
    with worker(f"sqlite:///{path}") as process:
        assert process.exit_code(30) == EXIT_CODE

        troubles = [line for line in process.lines if line["level"] in ("warning", "error")]
        assert [line["event"] for line in troubles] == ["database_corrupted"]
