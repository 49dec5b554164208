"""PostgreSQL: the production engine, for any number of machines."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime
from typing import Any, cast

import msgspec

from duetime.domain.jobs.job import Enqueued, NewJob
from duetime.storage.postgres.bulk import BEGIN, END, CopyRows
from duetime.storage.postgres.connection import translate_errors
from duetime.storage.postgres.dialect import drive, drive_directly
from duetime.storage.postgres.hot_path import HotPath
from duetime.storage.postgres.operate import Operations
from duetime.storage.postgres.plain import PlainJobs, read_ids
from duetime.storage.store import Statements, in_parts

_BULK = 1000
"""From this many jobs on, COPY is faster than one function call."""
_CHUNK = 2000


class PostgresStore(HotPath, Operations):
    """The store: enqueues here; `HotPath` serves workers, `Operations` people."""

    placeholder = "%s"
    _computing: ThreadPoolExecutor | None = None
    _copies: bool | None = None
    """Whether our role may write to the tables, once it is known."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._plain_jobs = PlainJobs()

    async def now(self) -> datetime:
        return cast("datetime", (await self._ask("now"))[0][0])

    async def drive_clock(self, now: datetime | None) -> None:
        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "create_clock")
            await self._on(connection, "set_clock", now=now)
            await self._on(connection, "real_clock" if now is None else "driven_clock")

    async def enqueue(self, jobs: Sequence[NewJob], *, waits: bool = True) -> list[Enqueued]:
        enqueued = await self._enqueue(jobs, waits=waits)
        if len(jobs) == 1:
            self._waits.enqueued(enqueued[0].job_id)
        return enqueued

    async def _enqueue(self, jobs: Sequence[NewJob], *, waits: bool) -> list[Enqueued]:
        if all(job.key is None for job in jobs) and await self._may_copy():
            if len(jobs) >= _BULK:
                return await self._copy(jobs)
            if self._prepare and jobs:
                return await self._enqueue_plainly(jobs)
        # One chunk is one statement, and its own transaction.
        statements = self._enqueue_in(jobs, "enqueue" if waits else "enqueue_without_waiting")
        if self._prepare and len(jobs) <= _CHUNK:
            with translate_errors():
                return cast(
                    "list[Enqueued]",
                    await drive_directly(self._calls, statements, seconds=self._call_seconds),
                )
        whole = nullcontext() if len(jobs) <= _CHUNK else None
        async with (
            self._connection() as connection,
            whole or connection.transaction(),
        ):
            return cast("list[Enqueued]", await drive(connection, statements))

    async def _enqueue_plainly(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        name, parameters = self._plain_jobs.parameters(jobs, notify=self._notify)
        with translate_errors():
            ids = await self._calls.fetch_bytes(self._sql[name], parameters, self._call_seconds)
        return [Enqueued(job_id, "created") for job_id in read_ids(ids)]

    async def transact(
        self,
        statements: Statements,
        *,
        reads: bool = False,
        single: bool = False,
        computes: bool = False,
    ) -> Any:
        if single and self._prepare and self._direct.is_free:
            return await self._run_directly(statements)
        # Each statement has its time-out: a change of many subjects has many of them.
        async with (
            self._lasting_connection() as connection,
            nullcontext() if reads or single else connection.transaction(),
        ):
            return await drive(
                connection,
                statements,
                seconds=self._call_seconds,
                thread=self._computing_thread() if computes else None,
            )

    async def _run_directly(self, statements: Statements) -> Any:
        with translate_errors():
            return await drive_directly(self._direct, statements, seconds=self._call_seconds)

    def _computing_thread(self) -> ThreadPoolExecutor:
        # Its own: the event loop's threads may all be busy with handlers.
        if self._computing is None:
            self._computing = ThreadPoolExecutor(1, "duetime-compute")
        return self._computing

    async def close(self) -> None:
        await super().close()
        if self._computing is not None:
            self._computing.shutdown(wait=False)
            self._computing = None

    def enqueue_in(self, jobs: Sequence[NewJob]) -> Statements:
        return self._enqueue_in(jobs, "enqueue")

    def _enqueue_in(self, jobs: Sequence[NewJob], name: str) -> Statements:
        # Keys are taken in one order, across chunks too: two such calls cannot deadlock.
        order = sorted(
            range(len(jobs)), key=lambda place: (jobs[place].key or "", jobs[place].task, place)
        )
        answers: list[Enqueued | None] = [None] * len(jobs)
        for places in in_parts(order, _CHUNK):
            body = msgspec.json.encode([jobs[place] for place in places]).decode()
            rows = yield self._sql[name], (body, self._notify)
            for place, row in zip(places, rows, strict=True):
                answers[place] = Enqueued(*row)
        return answers

    async def _may_copy(self) -> bool:
        if self._copies is None:
            self._copies = bool((await self._rows("may_copy"))[0][0])
        return self._copies

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
