"""PostgreSQL: the production engine, for any number of machines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
import psycopg
from psycopg_pool import AsyncConnectionPool

from duetime.domain.job import (
    AttemptInfo,
    ClaimedJob,
    EndedAs,
    EndedJob,
    Enqueued,
    JobFilter,
    JobInfo,
    JobState,
    NewJob,
)
from duetime.domain.queue import Limits, QueueInfo
from duetime.storage.postgres.bulk import copy_rows
from duetime.storage.postgres.connection import (
    array,
    check_schema_name,
    in_schema,
    limited_to,
    make_dsn,
    told_errors,
)
from duetime.storage.postgres.heart import PostgresHeart
from duetime.storage.postgres.listener import Listener
from duetime.storage.postgres.sleeper import PostgresSleeper
from duetime.storage.statements import load_statements
from duetime.storage.store import (
    Capabilities,
    Exchange,
    Lane,
    Rescued,
    Row,
    Statements,
    WorkerInfo,
)

Connection = psycopg.AsyncConnection[Row]

_BULK = 1000
"""From this many jobs on, COPY is faster than one function call."""
_CHUNK = 2000
_LONGEST_SHORT_US = 2**31 - 1
_TROUBLED = ("dead", "cancelled", "superseded", "expired")


class PostgresStore:
    """A pool of connections for short transactions; listeners and hearts have their own."""

    capabilities = Capabilities(notifies=True, many_machines=True, placeholder="%s")

    def __init__(
        self,
        url: str,
        *,
        listen_url: str | None = None,
        schema: str = "duetime",
        notify: bool = True,
        prepare: bool = True,
        pool_size: int = 4,
        call_seconds: float = 30.0,
        poll_seconds: float = 1.0,
    ) -> None:
        self.schema = check_schema_name(schema)
        self.dsn = make_dsn(url)
        self.listen_dsn = make_dsn(listen_url) if listen_url else self.dsn
        self._notify = notify
        self._prepare = prepare
        self._pool_size = pool_size
        self._call_seconds = call_seconds
        self._poll_seconds = poll_seconds
        self._sql = load_statements(
            "duetime.storage.postgres", lambda text: in_schema(text, self.schema)
        )
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._results: Listener | None = None
        self._watched: dict[int, list[asyncio.Event]] = {}

    # Life

    async def open(self) -> None:
        """Connect; a wrong password or host is told at once."""
        with told_errors():
            probe = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
            await probe.close()
        self._pool = AsyncConnectionPool(
            self.dsn,
            kwargs={"autocommit": True, "prepare_threshold": 0 if self._prepare else None},
            min_size=1,
            max_size=self._pool_size,
            timeout=self._call_seconds,
            max_idle=300,
            reconnect_timeout=10**9,
            configure=self._configure,
            check=None,
            open=False,
            name="duetime",
        )
        await self._pool.open()

    async def close(self) -> None:
        if self._results is not None:
            await self._results.close()
            self._results = None
        if self._pool is not None:
            await self._pool.close(timeout=2)
            self._pool = None

    async def now(self) -> datetime:
        return cast("datetime", (await self._rows("now"))[0][0])

    async def drive_clock(self, now: datetime | None) -> None:
        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "create_clock")
            await self._on(connection, "set_clock", now=now)
            await self._on(connection, "real_clock" if now is None else "driven_clock")

    # Enqueue

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if len(jobs) >= _BULK and all(job.key is None for job in jobs):
            return await self._copy(jobs)
        async with self._connection() as connection, connection.transaction():
            statements = self.enqueue_in(jobs)
            try:
                statement, parameters = next(statements)
                while True:
                    cursor = await connection.execute(statement, parameters)
                    statement, parameters = statements.send(await cursor.fetchall())
            except StopIteration as done:
                return cast("list[Enqueued]", done.value)

    def enqueue_in(self, jobs: Sequence[NewJob]) -> Statements:
        # Keys are taken in one order, across chunks too: two such calls cannot deadlock.
        order = sorted(
            range(len(jobs)), key=lambda place: (jobs[place].key or "", jobs[place].task, place)
        )
        answers: list[Enqueued | None] = [None] * len(jobs)
        for start in range(0, len(jobs), _CHUNK):
            places = order[start : start + _CHUNK]
            body = msgspec.json.encode([jobs[place] for place in places]).decode()
            rows = yield self._sql["enqueue"], (body, self._notify)
            for place, row in zip(places, rows, strict=True):
                answers[place] = Enqueued(*row)
        return answers

    def enqueued_in(self) -> None:
        """The database wakes the sleepers at the commit."""

    async def _copy(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        async with self._connection() as connection, connection.transaction():
            [(moment, ids)] = await self._on(connection, "reserve_ids", count=len(jobs))
            job_rows, due_rows, first_due = copy_rows(jobs, ids, moment)
            for name, rows in (("copy_job", job_rows), ("copy_due", due_rows)):
                async with connection.cursor().copy(self._sql[name]) as copy:
                    await copy.write(rows)
            if self._notify:
                for queue, run_at in sorted(first_due.items()):
                    await self._on(connection, "wake", queue=queue, run_at=run_at)
            return [Enqueued(job_id, "created") for job_id in ids]

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
        async with self._connection() as connection, connection.transaction():
            if tasks:
                await self._on(
                    connection,
                    "register_tasks",
                    names=list(tasks),
                    queues=[task["queue"] for task in tasks.values()],
                    priorities=[task["priority"] for task in tasks.values()],
                    max_attempts=[task["max_attempts"] for task in tasks.values()],
                    timeouts=[task["timeout"] for task in tasks.values()],
                    expires=[task["expires"] for task in tasks.values()],
                )
            rows = await self._on(
                connection,
                "register_worker",
                name=name,
                queues=list(queues),
                tasks=list(tasks),
                concurrency=concurrency,
                lease=lease,
            )
            return cast("int", rows[0][0])

    async def remove_worker(self, worker_id: int) -> None:
        await self._rows("remove_worker", worker=worker_id)

    def heart(self) -> PostgresHeart:
        return PostgresHeart(self.listen_dsn, self._sql["beat"])

    async def sleeper(self, worker_id: int) -> PostgresSleeper:
        sleeper = PostgresSleeper(
            self.listen_dsn,
            self.schema,
            worker_id,
            notify=self._notify,
            poll=self._poll_seconds,
        )
        with told_errors():
            await sleeper.open()
        return sleeper

    # The hot path

    async def exchange(
        self,
        worker_id: int,
        *,
        ended: Sequence[EndedJob] = (),
        closed: Sequence[int] = (),
        lanes: Sequence[Lane] = (),
        limited: Sequence[str] = (),
        want: int = 0,
        look_ahead: bool = False,
    ) -> Exchange:
        async with self._connection() as connection, connection.pipeline():
            finishes = await self._send_finishes(connection, ended, closed)
            claim = None
            if want > 0 and lanes:
                claim = await self._send(
                    connection,
                    "claim",
                    worker=worker_id,
                    want=want,
                    queues=[lane.queue for lane in lanes],
                    priorities=array(lane.priority for lane in lanes),
                    floors=[lane.floor for lane in lanes],
                )
            claims_limited = [
                await self._send(
                    connection, "claim_limited", worker=worker_id, queue=queue, want=want
                )
                for queue in limited
                if want > 0
            ]
            ahead = None
            if look_ahead:
                queues = sorted({lane.queue for lane in lanes})
                ahead = await self._send(connection, "next_run_at", queues=queues)
            accepted = {row[0] for cursor in finishes for row in await cursor.fetchall()}
            rows = await claim.fetchall() if claim is not None else []
            limited_rows = [row for cursor in claims_limited for row in await cursor.fetchall()]
            next_rows = await ahead.fetchall() if ahead is not None else []
        claimed = [_claimed(row, limited=False) for row in rows if row[2] is not None]
        claimed += [_claimed(row, limited=True) for row in limited_rows if row[2] is not None]
        now = rows[0][0] if rows else None
        next_run_at = None
        if next_rows:
            now, next_run_at = next_rows[0]
        opens = [row[15] for row in limited_rows if row[15] is not None]
        if limited and look_ahead and now is not None:
            soonest = await self._rows("next_limited_at", queues=list(limited), now=now)
            opens += [row[0] for row in soonest if row[0] is not None]
        if opens:
            next_run_at = min([next_run_at, *opens] if next_run_at else opens)
        return Exchange(
            now=now,
            refused=frozenset(end.job.id for end in ended) - accepted,
            claimed=claimed,
            next_run_at=next_run_at,
        )

    async def settle(self, ended: Sequence[EndedJob], closed: Sequence[int]) -> frozenset[int]:
        async with self._connection() as connection, connection.transaction():
            before = await self._on(
                connection,
                "finished_before",
                jobs=array(end.job.id for end in ended),
                tokens=array(end.job.token for end in ended),
            )
            done = {row[0] for row in before}
            left = [end for end in ended if end.job.id not in done]
            cursors = await self._send_finishes(connection, left, closed)
            done |= {row[0] for cursor in cursors for row in await cursor.fetchall()}
            return frozenset(end.job.id for end in ended) - done

    async def disown(self, worker_id: int, known: Sequence[int]) -> int:
        rows = await self._rows("disown", worker=worker_id, known=array(known))
        return len(rows)

    async def claim_quarantined(self, worker_id: int, queues: Sequence[str]) -> list[ClaimedJob]:
        for queue in queues:
            rows = await self._rows("claim_quarantined", worker=worker_id, queue=queue)
            if rows:
                return [_claimed(row, limited=False) for row in rows]
        return []

    async def release(self, jobs: Sequence[ClaimedJob], closed: Sequence[int]) -> None:
        await self._put("put_back", jobs, closed)

    async def park(self, jobs: Sequence[ClaimedJob], closed: Sequence[int], reason: str) -> None:
        await self._put("park", jobs, closed, reason=reason)

    async def _put(
        self, name: str, jobs: Sequence[ClaimedJob], closed: Sequence[int], **more: Any
    ) -> None:
        ids = array(job.id for job in jobs)
        tokens = array(job.token for job in jobs)
        async with self._connection() as connection, connection.transaction():
            left = await self._on(connection, "leave_claims", tokens=tokens, jobs=ids)
            await self._on(connection, "drop_claims", tokens=tokens, closed=array(closed))
            await self._on(
                connection,
                name,
                jobs=ids,
                run_ats=[job.run_at for job in jobs],
                attempts=array(job.attempt - 1 for job in jobs),
                left=array(row[0] for row in left),
                **more,
            )
            await self._on(connection, "wake_for", jobs=ids)

    async def unpark(self, tasks: Sequence[str]) -> int:
        return cast("int", (await self._rows("unpark", tasks=list(tasks)))[0][0])

    def finish_in(self, ended: EndedJob) -> Statements:
        body = {
            "job": ended.job.id,
            "token": ended.job.token,
            "started": ended.started_us,
            "finished": ended.finished_us,
            "result": None if ended.result is None else msgspec.Raw(ended.result.encode()),
        }
        rows = yield self._sql["complete"], (msgspec.json.encode(body).decode(),)
        return bool(rows[0][0])

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        # The caller's own errors pass as they are: only ours are told.
        pool = self._open_pool()
        with told_errors():
            connection = await pool.getconn()
        try:
            with told_errors():
                await connection.execute("begin")
                # The caller's own statements are planned as anywhere else.
                await connection.execute("set local enable_seqscan = on")
            try:
                yield connection
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    await connection.rollback()
                raise
            with told_errors():
                await connection.commit()
        finally:
            await pool.putconn(connection)

    @contextmanager
    def transaction_sync(self) -> Iterator[psycopg.Connection[Any]]:
        with told_errors():
            connection = psycopg.connect(self.dsn)
        with closing(connection):
            yield connection
            with told_errors():
                connection.commit()

    async def set_progress(self, job: ClaimedJob, progress: str) -> bool:
        return bool(
            await self._rows("set_progress", job=job.id, token=job.token, progress=progress)
        )

    # Housekeeping

    async def rescue(self) -> list[Rescued]:
        async with self._connection() as connection:
            async with connection.transaction():
                dead = await self._on(connection, "lock_dead_claims")
                rows = (
                    await self._on(connection, "rescue", tokens=array(row[0] for row in dead))
                    if dead
                    else []
                )
            await self._on(connection, "bury_workers")
        states = {"lost": JobState.RETRYING, "dead": JobState.DEAD, "cancelled": JobState.CANCELLED}
        return [
            Rescued(job_id, task, attempt, states[ended_as], worker)
            for job_id, task, attempt, ended_as, worker in rows
        ]

    async def prune(self, retention: Mapping[EndedAs, timedelta], *, batch: int) -> int:
        pruned = 0
        for ended_as, age in retention.items():
            rows = await self._rows("prune", ended_as=ended_as.value, age=age, batch=batch)
            pruned += rows[0][0]
        if retention:
            await self._rows("prune_leftovers", age=max(retention.values()))
        return pruned

    # Operate

    async def get(self, job_id: int) -> JobInfo | None:
        rows = await self._rows("get_job", job=job_id)
        if not rows:
            return None
        history = await self._rows("get_history", job=job_id)
        attempts = tuple(
            AttemptInfo(**dict(zip(AttemptInfo.__struct_fields__, row, strict=True)))
            for row in history
        )
        return _job_info(rows[0], history=attempts)

    async def find(self, which: JobFilter) -> list[JobInfo]:
        states = {state.value for state in which.states}
        walk = not states or "completed" in states or which.ids is not None
        rows = await self._rows(
            "list_jobs",
            walk=walk,
            waiting=not walk and bool(states & {"pending", "retrying", "parked"}),
            running=not walk and "running" in states,
            troubled=[] if walk else sorted(states & set(_TROUBLED)),
            states=sorted(states) or None,
            ids=None if which.ids is None else list(which.ids),
            queue=which.queue,
            task=which.task,
            key=which.key,
            before=which.before_id,
            limit=which.limit,
        )
        return [_job_info(row) for row in rows]

    async def cancel(self, job_id: int, *, reason: str) -> JobState | None:
        async with self._connection() as connection, connection.transaction():
            state = await self._state(connection, job_id)
            if await self._on(
                connection, "cancel_waiting", job=job_id, reason=reason, ended_as="cancelled"
            ):
                return JobState.PENDING if state is None or state.ended else state
            if await self._on(connection, "cancel_running", job=job_id):
                return JobState.RUNNING
            return await self._state(connection, job_id)

    async def reschedule(self, job_id: int, run_at: datetime) -> JobState | None:
        return await self._move("reschedule", job_id, run_at=run_at)

    async def reprioritise(self, job_id: int, priority: int) -> JobState | None:
        return await self._move("reprioritise", job_id, priority=priority)

    async def _move(self, name: str, job_id: int, **parameters: Any) -> JobState | None:
        async with self._connection() as connection, connection.transaction():
            moved = await self._on(connection, name, job=job_id, **parameters)
            state = await self._state(connection, job_id)
            return JobState.PENDING if moved else state

    async def _state(self, connection: Connection, job_id: int) -> JobState | None:
        rows = await self._on(connection, "job_state", job=job_id)
        return JobState(rows[0][0]) if rows else None

    async def requeue(self, which: JobFilter, *, run_at: datetime | None) -> list[int]:
        ids = [job.id for job in await self.find(which)]
        rows = await self._rows("requeue", ids=array(ids), run_at=run_at)
        return sorted(row[0] for row in rows)

    async def pause_queue(self, queue: str, *, by: str, reason: str) -> None:
        await self._rows("pause_queue", queue=queue, by=by, reason=reason)

    async def resume_queue(self, queue: str) -> None:
        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "resume_queue", queue=queue)
            await self._on(connection, "drop_plain_queues", queue=queue)

    async def limit_queue(self, queue: str, limits: Limits) -> None:
        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "limit_queue", queue=queue, **msgspec.structs.asdict(limits))
            await self._on(connection, "drop_plain_queues", queue=queue)

    async def queues(self) -> list[QueueInfo]:
        return [
            QueueInfo(
                **dict(zip(QueueInfo.__struct_fields__[:9], row[:9], strict=True)),
                limits=_limits(row[9:]),
            )
            for row in await self._rows("queues")
        ]

    async def limited_queues(self) -> dict[str, Limits]:
        return {row[0]: _limits(row[1:]) for row in await self._rows("limited_queues")}

    async def workers(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(**dict(zip(WorkerInfo.__struct_fields__, _tuples(row), strict=True)))
            for row in await self._rows("workers")
        ]

    async def wait_ended(self, job_id: int, seconds: float) -> None:
        if self._results is None and self._notify:
            self._results = Listener(self.listen_dsn, [f"{self.schema}.ended"], self._heard_ended)
            with told_errors():
                await self._results.open()
        event = asyncio.Event()
        self._watched.setdefault(job_id, []).append(event)
        try:
            await self._rows("watch", job=job_id, wait=timedelta(seconds=seconds))
            state = await self._rows("job_state", job=job_id)
            if state and JobState(state[0][0]).ended:
                return
            # A finish may have begun before it could see us: look again soon, then less often.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            self._watched[job_id].remove(event)
            if not self._watched[job_id]:
                del self._watched[job_id]

    def _heard_ended(self, channel: str, payload: str) -> None:
        jobs = [int(payload)] if payload.isdigit() else list(self._watched)
        for job_id in jobs:
            for event in self._watched.get(job_id, ()):
                event.set()

    # Statements

    async def _configure(self, connection: Connection) -> None:
        if not self._prepare:
            # Behind a pooler, what is set for a session reaches the sessions of others.
            return
        await connection.execute("set jit = off")
        # A prepared plan outlives the size of the table that it was made for: one made for
        # an empty `due` would scan a million rows. Plans made each time see the size.
        await connection.execute("set enable_seqscan = off")
        if not self._notify:
            await connection.execute(in_schema("set duetime.notify = 'off'", self.schema))

    def _open_pool(self) -> AsyncConnectionPool[Connection]:
        if self._pool is None:
            raise AssertionError("the store is not open")
        return self._pool

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        async with limited_to(self._call_seconds):
            async with self._open_pool().connection() as connection:
                yield connection

    async def _rows(self, name: str, /, **parameters: Any) -> list[Row]:
        async with self._connection() as connection:
            return await self._on(connection, name, **parameters)

    async def _on(self, connection: Connection, name: str, /, **parameters: Any) -> list[Row]:
        cursor = await self._send(connection, name, **parameters)
        return await cursor.fetchall() if cursor.description else []

    async def _send(
        self, connection: Connection, name: str, /, **parameters: Any
    ) -> psycopg.AsyncCursor[Row]:
        cursor = connection.cursor(binary=True)
        await cursor.execute(self._sql[name], parameters)
        return cursor

    async def _send_finishes(
        self, connection: Connection, ended: Sequence[EndedJob], closed: Sequence[int]
    ) -> list[psycopg.AsyncCursor[Row]]:
        """Send `finish` for the plainly completed, `finish_fully` for the rest.

        The claims are closed by the last statement, after both have passed the fence.
        """
        plain = [end for end in ended if _is_plain(end)]
        full = [end for end in ended if not _is_plain(end)] if len(plain) < len(ended) else []
        cursors = []
        if plain or (closed and not full):
            held = sorted({end.job.token for end in plain})
            cursors.append(
                await self._send(
                    connection,
                    "finish",
                    jobs=array(end.job.id for end in plain),
                    tokens=array(end.job.token for end in plain),
                    attempts=array(end.job.attempt for end in plain),
                    started=array(end.started_us for end in plain),
                    finished=array(end.finished_us for end in plain),
                    held=array(held),
                    closed=array(() if full else closed),
                )
            )
        if full:
            held = sorted({end.job.token for end in full})
            cursors.append(
                await self._send(
                    connection, "finish_fully", **_full_parameters(full, held, closed=closed)
                )
            )
        return cursors


def _is_plain(end: EndedJob) -> bool:
    return (
        end.ended_as is EndedAs.COMPLETED
        and end.result is None
        and end.job.key is None
        and not end.job.limited
        and end.finished_us <= _LONGEST_SHORT_US
    )


def _full_parameters(
    ended: Sequence[EndedJob], held: Sequence[int], *, closed: Sequence[int]
) -> dict[str, Any]:
    return {
        "jobs": array(end.job.id for end in ended),
        "tokens": array(end.job.token for end in ended),
        "attempts": array(end.job.attempt for end in ended),
        "started": array(end.started_us for end in ended),
        "finished": array(end.finished_us for end in ended),
        "ended_as": [end.ended_as.value for end in ended],
        "again": [end.again_after for end in ended],
        "codes": [end.error_code for end in ended],
        "errors": [end.error for end in ended],
        "tracebacks": [end.traceback for end in ended],
        "results": [end.result for end in ended],
        "held": array(held),
        "closed": array(closed),
    }


def _claimed(row: Row, *, limited: bool) -> ClaimedJob:
    # In the order of the columns of `claim`; positional, as this is the hot path.
    return ClaimedJob(
        row[2], row[1], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[0],
        row[10], row[11], row[12], row[13], row[14], limited,
    )  # fmt: skip


def _job_info(row: Row, history: tuple[AttemptInfo, ...] = ()) -> JobInfo:
    values = dict(zip(JobInfo.__struct_fields__, row, strict=False))
    values["state"] = JobState(values["state"])
    return JobInfo(**values, history=history)


def _limits(row: Row) -> Limits:
    return Limits(running=row[0], per_partition=row[1], rate=row[2], period=row[3])


def _tuples(row: Row) -> Row:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)
