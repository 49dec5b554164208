"""SQLite: the embedded default, for one machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

from duetime.domain.flows.flow import NewRecord
from duetime.domain.jobs.facets import ErrorGroup, JobFacets
from duetime.domain.jobs.job import (
    AttemptOutcome,
    ClaimedJob,
    Enqueued,
    FinishedJob,
    FoundJobs,
    JobFilter,
    JobInfo,
    JobResult,
    NewJob,
)
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import Reason
from duetime.errors import JobNotFound
from duetime.storage.sqlite import hot_path, housekeeping, operate
from duetime.storage.sqlite.connection import (
    DEFAULT_PREFIX,
    check_path,
    check_prefix,
    check_version,
    translate_errors,
    with_prefix,
)
from duetime.storage.sqlite.dialect import SqliteDialect, encode_ids, from_us, to_us
from duetime.storage.sqlite.enqueue import Enqueue
from duetime.storage.sqlite.heart import SqliteHeart
from duetime.storage.sqlite.lending import Lender
from duetime.storage.sqlite.shared import SqliteSleeper, shared_of, turn_of
from duetime.storage.sqlite.thread import StoreThread, Transaction
from duetime.storage.sqlite.triggers import SqliteTriggers
from duetime.storage.statements import load_statements
from duetime.storage.store import (
    Exchange,
    Lane,
    PollResult,
    Rescued,
    Statements,
    WorkerInfo,
)


class SqliteStore:
    """One connection on one thread, which runs whole transactions."""

    placeholder = "?"

    def __init__(
        self,
        path: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        call_seconds: float = 30.0,
        poll_seconds: float = 0.02,
    ) -> None:
        check_version()
        self.prefix = check_prefix(prefix)
        self.path = check_path(path)
        self._sql = load_statements(
            "duetime.storage.sqlite", lambda text: with_prefix(text, self.prefix)
        )
        self._shared = shared_of(self.path, self.prefix)
        self._reads = asyncio.Lock()
        self.dialect = SqliteDialect(self._sql, self._shared.now_us)
        self.triggers = SqliteTriggers(self._sql, self.dialect, self.prefix)
        turn = turn_of(self.path)
        self._thread = StoreThread(
            self.path,
            self._sql,
            self._shared,
            turn,
            call_seconds=call_seconds,
            poll_seconds=poll_seconds,
            changed=self._changed,
        )
        self._lender = Lender(
            self.path, turn, lock_seconds=call_seconds / 2, committed=self._thread.poll_now
        )

    # Life

    async def open(self) -> None:
        """Open the file; one that is missing, corrupted or read-only fails at once."""
        with translate_errors(self.path):
            await asyncio.to_thread(self._thread.start)

    async def close(self) -> None:
        self._lender.close()
        await asyncio.to_thread(self._thread.stop)

    async def now(self) -> datetime:
        return from_us(self._shared.now_us())

    async def drive_clock(self, now: datetime | None) -> None:
        moment = None if now is None else to_us(now)
        self._shared.drive_clock(moment)
        # For triggers, which run on the connections of others.
        await self._thread.write(lambda tx: tx.run("drive_clock", now=moment))
        await self._thread.write(lambda tx: tx.run("free_clock", now=moment))

    # Enqueue

    hands_over = False

    async def enqueue_held(self, job: NewJob, worker_id: int) -> tuple[Enqueued, ClaimedJob | None]:
        raise NotImplementedError

    async def enqueue(self, jobs: Sequence[NewJob], *, waits: bool = True) -> list[Enqueued]:
        """See the protocol. On SQLite no transaction holds a key alone: writers take turns."""

        def work(tx: Transaction) -> list[Enqueued]:
            plan = Enqueue(self._sql, jobs, tx.now)
            answers: list[Enqueued] = tx.drive(plan.statements())
            for queue, run_at in plan.queues.items():
                tx.wake(queue, run_at)
            return answers

        return await self._thread.write(work)

    def enqueue_in(self, jobs: Sequence[NewJob]) -> Statements:
        return (yield from Enqueue(self._sql, jobs, self._shared.now_us()).statements())

    # A worker's life

    async def register_worker(
        self,
        *,
        name: str,
        queues: Sequence[str],
        tasks: Mapping[str, Mapping[str, Any]],
        concurrency: int,
        lease: timedelta,
    ) -> int:
        self.installation = await self.transact(self.dialect.installation())
        return await self._thread.write(
            lambda tx: housekeeping.register_worker(
                tx, name=name, queues=queues, tasks=tasks, concurrency=concurrency, lease=lease
            )
        )

    async def remove_worker(self, worker_id: int) -> None:
        await self._thread.write(lambda tx: tx.run("remove_worker", worker=worker_id))

    def heart(self) -> SqliteHeart:
        return SqliteHeart(self._thread)

    async def sleeper(
        self, worker_id: int, *, notified: Callable[[str], None] = lambda channel: None
    ) -> SqliteSleeper:
        sleeper = SqliteSleeper(self._shared, worker_id, notified)
        # The thread may be waiting without a timeout; from now on it has to poll.
        self._thread.poll_now()
        return sleeper

    # The hot path

    async def exchange(
        self,
        worker_id: int,
        *,
        finished: Sequence[FinishedJob] = (),
        closed: Sequence[int] = (),
        lanes: Sequence[Lane] = (),
        limited: Sequence[str] = (),
        want: int = 0,
        look_ahead: bool = False,
        lead: float = 0.0,
        in_turn: bool = False,
    ) -> Exchange:
        """See the protocol. On SQLite a claim is closed with its job, so `closed` is not needed;
        claims always take turns."""
        lead_us = int(lead * 1e6)

        def work(tx: Transaction) -> Exchange:
            return hot_path.exchange(
                tx,
                worker_id,
                finished=finished,
                lanes=lanes,
                limited=limited,
                want=want,
                look_ahead=look_ahead,
                lead=lead_us,
            )

        if finished:
            return await self._thread.write(work)
        return await self._thread.write_unless(
            lambda tx: hot_path.answer_if_idle(
                tx, lanes, limited, want=want, look_ahead=look_ahead, lead=lead_us
            ),
            work,
        )

    async def next_run_at(self, queues: Sequence[str]) -> tuple[datetime, datetime | None]:
        return await self._thread.read(lambda tx: hot_path.next_run_at(tx, queues))

    async def finish_again(
        self, finished: Sequence[FinishedJob], closed: Sequence[int]
    ) -> Exchange:
        return await self._thread.write(lambda tx: hot_path.finish_again(tx, finished))

    async def disown(self, worker_id: int, known: Sequence[int], *, lead: float = 0.0) -> int:
        lead_us = int(lead * 1e6)
        return await self._thread.write(lambda tx: hot_path.disown(tx, worker_id, known, lead_us))

    async def claim_quarantined(self, worker_id: int, queues: Sequence[str]) -> list[ClaimedJob]:
        return await self._thread.write_unless(
            lambda tx: None if hot_path.any_quarantined(tx, queues) else [],
            lambda tx: hot_path.claim_quarantined(tx, worker_id, queues),
        )

    async def args_of(self, job_id: int) -> str:
        args: str | None = await self._thread.read(lambda tx: tx.value("args_of", job=job_id))
        if args is None:
            raise JobNotFound(job_id)
        return args

    async def release(self, jobs: Sequence[ClaimedJob]) -> None:
        await self._thread.write(lambda tx: hot_path.release(tx, jobs))

    async def park(self, jobs: Sequence[ClaimedJob], reason: Reason) -> None:
        await self._thread.write(lambda tx: hot_path.park(tx, jobs, reason))

    async def park_unreadable(self, queues: Sequence[str], *, most: int) -> dict[int, str]:
        return await self._thread.write(lambda tx: hot_path.park_unreadable(tx, queues, most))

    async def unpark(
        self, tasks: Sequence[str], queues: Sequence[str], *, sparing: Collection[int] = ()
    ) -> int:
        return await self._thread.write(lambda tx: housekeeping.unpark(tx, tasks, queues, sparing))

    def finish_in(self, finished: FinishedJob) -> Statements:
        return (yield from hot_path.complete(self._sql, finished, self._shared.now_us()))

    def finish_many_in(self, finished: Sequence[FinishedJob]) -> Statements:
        accepted = [False] * len(finished)
        for place, one in enumerate(finished):
            accepted[place] = yield from self.finish_in(one)
        return accepted

    def finish_steps_in(self, finished: Sequence[FinishedJob], runs: Sequence[int]) -> Statements:
        return (yield from self.finish_many_in(finished))

    runs_graphs = False

    def end_steps_in(
        self, finished: Sequence[FinishedJob], document: Mapping[str, Any]
    ) -> Statements:
        raise NotImplementedError

    def begin_run_in(self, document: Mapping[str, Any]) -> Statements:
        raise NotImplementedError

    def end_run_in(self, document: Mapping[str, Any]) -> Statements:
        raise NotImplementedError

    records_at_once = False

    async def record_step(self, record: NewRecord) -> bool | None:
        return None

    async def transact(
        self,
        statements: Statements,
        *,
        reads: bool = False,
        snapshot: bool = False,
        single: bool = False,
        computes: bool = False,
    ) -> Any:
        # All computation happens on the store's thread.
        if reads or snapshot:
            return await self._thread.read(lambda tx: tx.drive(statements))

        def work(tx: Transaction) -> Any:
            tx.concerns_anyone = True
            return tx.drive(statements)

        return await self._thread.write(work)

    def transaction(
        self, *, before_commit: Callable[[sqlite3.Connection], Awaitable[None]] | None = None
    ) -> AbstractAsyncContextManager[sqlite3.Connection]:
        """It holds the write lock from begin to commit: await little in it."""
        return self._lender.lend(before_commit)

    def transaction_sync(
        self, *, before_commit: Callable[[sqlite3.Connection], None] | None = None
    ) -> AbstractContextManager[sqlite3.Connection]:
        return self._lender.lend_sync(before_commit)

    async def set_progress(self, job: ClaimedJob, progress: str) -> bool:
        return await self._thread.write(lambda tx: housekeeping.set_progress(tx, job, progress))

    # Housekeeping

    async def poll(
        self,
        queues: Sequence[str],
        tasks: Sequence[str],
        *,
        sparing: Collection[int] = (),
        checks: Sequence[Statements] = (),
        ahead: bool = True,
    ) -> tuple[PollResult, list[Any]]:
        return await self._thread.read(
            lambda tx: (
                housekeeping.poll(tx, queues, tasks, sparing, ahead=ahead),
                [tx.drive(check) for check in checks],
            )
        )

    def any_dead(self, *, sparing: int = 0) -> Statements:
        rows = yield self._sql["any_dead"], {"now": self._shared.now_us()}
        return bool(rows[0][0])

    async def rescue(self, *, sparing: int = 0) -> list[Rescued]:
        return await self._thread.write_unless(
            lambda tx: None if tx.value("any_dead", now=tx.now) else [],
            lambda tx: housekeeping.rescue(tx, sparing),
        )

    async def prune(
        self, retention: Mapping[AttemptOutcome, timedelta], *, after: int, batch: int
    ) -> tuple[int, int]:
        # An index has them in the order in which they finished: each call starts at its beginning.
        found = [await self._prune(outcome, age, batch) for outcome, age in retention.items()]
        oldest = max(retention.values())
        await self._thread.write(lambda tx: housekeeping.prune_leftovers(tx, oldest))
        return sum(found), 0

    async def end_parked(self, age: timedelta, *, batch: int) -> list[int]:
        return await self._thread.write_unless(
            lambda tx: None if housekeeping.long_parked(tx, age, 1) else [],
            lambda tx: housekeeping.end_parked(tx, age, batch),
        )

    async def _prune(self, outcome: AttemptOutcome, age: timedelta, batch: int) -> int:
        return await self._thread.write(lambda tx: housekeeping.prune(tx, outcome, age, batch))

    # Operate

    async def get(self, job_id: int) -> JobInfo | None:
        return await self._thread.read(lambda tx: operate.get(tx, job_id))

    async def find(self, which: JobFilter) -> FoundJobs:
        return await self._thread.read(lambda tx: operate.find(tx, which))

    async def facets(self, which: JobFilter) -> JobFacets:
        return await self._thread.read(lambda tx: operate.facets(tx, which))

    async def errors(self, which: JobFilter) -> list[ErrorGroup]:
        return await self._thread.read(lambda tx: operate.errors(tx, which))

    async def queues(
        self,
        *,
        only: str | None = None,
        count_to: int | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[QueueInfo]:
        return await self._thread.read(
            lambda tx: operate.queues(tx, only=only, count_to=count_to, after=after, limit=limit)
        )

    async def limited_queues(self) -> dict[str, Limits]:
        return await self._thread.read(operate.limited_queues)

    async def workers(self) -> list[WorkerInfo]:
        return await self._thread.read(operate.workers)

    async def change_mark(self) -> Any:
        return await asyncio.to_thread(_file_times, self.path)

    async def wait_finished(self, job_id: int, seconds: float) -> JobResult | None:
        event = asyncio.Event()
        self._shared.watch(job_id, event)
        try:
            # Watch first, then read: a finish between the two is seen by one of them.
            if (result := await self._result_of(job_id)) is not None or not seconds:
                return result
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
            return await self._result_of(job_id)
        finally:
            self._shared.unwatch(job_id, event)

    async def _result_of(self, job_id: int) -> JobResult | None:
        # One at a time: a worker's calls never queue behind thousands of these.
        async with self._reads:
            job = await self.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        if not job.state.finished:
            return None
        return JobResult(
            task=job.task,
            state=job.state,
            result=job.history[-1].result if job.history else None,
            error_code=job.error_code,
            error=job.error,
        )

    def _changed(self, tx: Transaction) -> None:
        """Something was written, perhaps by another connection: notify those affected. Runs on the
        thread, after the commit."""
        for sleeper in self._shared.in_random_order():
            cancelled = tx.rows("cancelled_of", worker=sleeper.worker_id)
            sleeper.sync_cancelled(row[0] for row in cancelled)
            if queues := sorted(sleeper.queues):
                left = sleeper.until - time.monotonic()
                first = hot_path.first_due(tx, queues, queues, overdue=True)
                if first and min(first) - tx.now < left * 1_000_000:
                    sleeper.wake()
        if watched := self._shared.watched:
            rows = tx.rows("finished_jobs", jobs=encode_ids(watched))
            self._shared.notify_finished(row[0] for row in rows)


def _file_times(path: str) -> list[int | None]:
    """When the file and its log were last written to."""
    times: list[int | None] = []
    for file in (path, f"{path}-wal"):
        try:
            times.append(os.stat(file).st_mtime_ns)  # noqa: PTH116
        except FileNotFoundError:
            times.append(None)
    return times
