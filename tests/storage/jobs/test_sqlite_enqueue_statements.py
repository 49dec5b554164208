"""How much an enqueue of many jobs has SQLite do: counted, since times differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from duetime.domain.jobs.job import Enqueued, NewJob
from duetime.storage.migrations import upgrade
from duetime.storage.sqlite.enqueue import Enqueue
from duetime.storage.sqlite.migrator import SqliteMigrator
from duetime.storage.sqlite.store import SqliteStore

SQL = {
    name: name if name != "copy_job" else "copy_job values (?)"
    for name in ("reserve_ids", "add_job", "copy_job", "copy_due", "take_key")
}


def write(jobs: Sequence[NewJob]) -> tuple[list[Enqueued], Counter[str], int]:
    """Return the answers, the statements by their names, and how many values they carry."""
    statements, ran, values = Enqueue(SQL, jobs, 1_000_000).statements(), Counter[str](), 0
    rows: list[tuple[Any, ...]] | None = None
    try:
        while True:
            sql, parameters = statements.send(cast("Any", rows))
            ran[sql.split(" ")[0]] += 1
            values += len(parameters)
            rows = [(len(jobs),)]
    except StopIteration as done:
        return done.value, ran, values


def test_a_thousand_jobs_of_one_kind_are_a_few_statements_with_two_values_for_each() -> None:
    answers, ran, values = write([NewJob(task="send")] * 1000)

    assert [one.job_id for one in answers] == list(range(1, 1001))
    # 512, seven times 64, five times 8.
    assert ran == {"reserve_ids": 1, "copy_job": 13, "copy_due": 13}
    assert values <= 3 * 1000 + 13 * 20


def test_kinds_that_take_turns_are_not_mixed_up() -> None:
    jobs = [NewJob(task="send", priority=number % 2) for number in range(9)]
    answers, ran, _ = write([*jobs, *[NewJob(task="send", priority=3)] * 8])

    assert [one.job_id for one in answers] == list(range(1, 18))
    assert ran == {"reserve_ids": 1, "add_job": 9, "copy_job": 1, "copy_due": 1}


@pytest.mark.parametrize("keyed", [False, True])
async def test_what_is_stored_is_what_was_given(tmp_path: Path, keyed: bool) -> None:
    path = str(tmp_path / "jobs.db")
    upgrade(SqliteMigrator(path))
    store = SqliteStore(path)
    await store.open()
    jobs = [
        NewJob(
            task=f"task {number // 700}",
            args=cast("Any", f'{{"number": {number}}}'.encode()),
            priority=number // 600,
            queue="mail" if number % 1500 > 20 else "default",
            key=f"key {number}" if keyed and number % 3 == 0 else None,
        )
        for number in range(2000)
    ]
    try:
        enqueued = await store.enqueue(jobs)
        rows = await store._thread.read(
            lambda tx: tx.connection.execute(
                "select j.task, j.args, j.priority, j.queue, j.key, d.queue, d.priority, j.id"
                " from duetime_job as j join duetime_due as d on d.job_id = j.id order by j.id"
            ).fetchall()
        )
    finally:
        await store.close()

    assert rows == [
        (
            job.task, bytes(job.args).decode(), job.priority, job.queue, job.key, job.queue,
            job.priority, answer.job_id,
        )
        for job, answer in zip(jobs, enqueued, strict=True)
    ]  # fmt: skip
