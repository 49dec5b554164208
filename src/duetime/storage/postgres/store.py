"""PostgreSQL: the production engine, for any number of machines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, cast

import msgspec

from duetime.domain.job import Enqueued, NewJob
from duetime.storage.postgres.bulk import BEGIN, END, CopyRows
from duetime.storage.postgres.connection import rows_of
from duetime.storage.postgres.hot_path import HotPath
from duetime.storage.postgres.operate import Operations
from duetime.storage.postgres.sessions import Connection
from duetime.storage.store import Capabilities, Statements, in_parts

_BULK = 1000
"""From this many jobs on, COPY is faster than one function call."""
_CHUNK = 2000


class PostgresStore(HotPath, Operations):
    """The store: enqueues here; `HotPath` serves workers, `Operations` people."""

    capabilities = Capabilities(notifies=True, many_machines=True, placeholder="%s")

    async def now(self) -> datetime:
        return cast("datetime", (await self._rows("now"))[0][0])

    async def drive_clock(self, now: datetime | None) -> None:
        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "create_clock")
            await self._on(connection, "set_clock", now=now)
            await self._on(connection, "real_clock" if now is None else "driven_clock")

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if len(jobs) >= _BULK and all(job.key is None for job in jobs):
            return await self._copy(jobs)
        # One chunk is one statement, and its own transaction.
        whole = nullcontext() if len(jobs) <= _CHUNK else None
        async with (
            self._connection() as connection,
            whole or connection.transaction(),
        ):
            return cast("list[Enqueued]", await _drive(connection, self.enqueue_in(jobs)))

    async def transact(self, statements: Statements, *, reads: bool = False) -> Any:
        # Each statement has its time-out: a change of many subjects has many of them.
        async with (
            self._lasting_connection() as connection,
            nullcontext() if reads else connection.transaction(),
        ):
            return await _drive(connection, statements, seconds=self._call_seconds)

    def enqueue_in(self, jobs: Sequence[NewJob]) -> Statements:
        # Keys are taken in one order, across chunks too: two such calls cannot deadlock.
        order = sorted(
            range(len(jobs)), key=lambda place: (jobs[place].key or "", jobs[place].task, place)
        )
        answers: list[Enqueued | None] = [None] * len(jobs)
        for places in in_parts(order, _CHUNK):
            body = msgspec.json.encode([jobs[place] for place in places]).decode()
            rows = yield self._sql["enqueue"], (body, self._notify)
            for place, row in zip(places, rows, strict=True):
                answers[place] = Enqueued(*row)
        return answers

    async def _copy(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        async with self._connection() as connection, connection.transaction():
            [(moment, ids)] = await self._on(connection, "reserve_ids", count=len(jobs))
            rows = CopyRows(moment)
            async with connection.cursor().copy(self._sql["copy_job"]) as copy:
                await copy.write(BEGIN)
                for start in range(0, len(jobs), _CHUNK):
                    end = start + _CHUNK
                    await copy.write(rows.add(jobs[start:end], ids[start:end]))
                await copy.write(END)
            async with connection.cursor().copy(self._sql["copy_due"]) as copy:
                await copy.write(BEGIN)
                for chunk in rows.due:
                    await copy.write(chunk)
                await copy.write(END)
            if self._notify:
                for queue, run_at in sorted(rows.first_due.items()):
                    await self._on(connection, "wake", queue=queue, run_at=run_at)
            return [Enqueued(job_id, "created") for job_id in ids]


async def _drive(
    connection: Connection, statements: Statements, *, seconds: float | None = None
) -> Any:
    try:
        statement, parameters = next(statements)
        while True:
            async with asyncio.timeout(seconds):
                cursor = await connection.execute(statement, parameters or None)
                rows = await rows_of(cursor)
            statement, parameters = statements.send(rows)
    except StopIteration as done:
        return done.value
