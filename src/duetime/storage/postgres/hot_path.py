"""A worker's statements: claim, finish and give back, each in one short transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from itertools import starmap
from operator import itemgetter
from typing import Any, cast

import msgspec
import psycopg

from duetime.domain.jobs.job import PARKED_CODE, UNREADABLE, AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.reasons import Reason, write_reason
from duetime.errors import JobNotFound, StorageError, TransientError
from duetime.storage.postgres.connection import array, rows_of, text_array, translate_errors
from duetime.storage.postgres.dialect import drive
from duetime.storage.postgres.heart import PostgresHeart
from duetime.storage.postgres.pool import Connection
from duetime.storage.postgres.sessions import Sessions, Statement
from duetime.storage.postgres.sleeper import PostgresSleeper
from duetime.storage.store import (
    LEAD,
    MAX_CLAIMED_ARGS,
    Exchange,
    Lane,
    PollResult,
    Rescued,
    Row,
    Statements,
    rescued_state,
)

_NO_TURNS_SECONDS = 30.0
"""How long claims take no turns after one has waited in vain."""
_MAX_SHORT_US = 2**31 - 1
_CHECKED = 5
"""The pruner checks at most this many times as many jobs as it removes."""
_COMPLETED = AttemptOutcome.COMPLETED
_OPEN_AT = ClaimedJob.__struct_fields__.index("limited")
"""`claim_limited` has one more column than a claim."""
_TASK, _PRIORITY, _RUN_AT, _EXPIRES_AT = 1, 3, 7, 11
"""Columns of `claim`."""
_ORDER = itemgetter(_PRIORITY, _RUN_AT, 0)
_NONE: frozenset[int] = frozenset()


class HotPath(Sessions):
    """What a worker does, from its registration to the rescue of another."""

    _turns_from = 0.0
    """When claims take turns again, by the monotonic clock."""

    async def register_worker(
        self,
        *,
        name: str,
        queues: Sequence[str],
        tasks: Mapping[str, Mapping[str, Any]],
        concurrency: int,
        lease: timedelta,
    ) -> int:
        await self.check_pooler()
        async with self._connection(fail_fast=True) as connection, connection.transaction():
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
                    max_args_bytes=[task.get("max_args_bytes") for task in tasks.values()],
                    flows=[task.get("flow") for task in tasks.values()],
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
            self.installation = await drive(connection, self.dialect.installation())
            return cast("int", rows[0][0])

    async def remove_worker(self, worker_id: int) -> None:
        await self._ask("remove_worker", worker=worker_id)

    def heart(self) -> PostgresHeart:
        return PostgresHeart(self.listen_dsn, self._sql["beat"])

    async def sleeper(
        self, worker_id: int, *, notified: Callable[[str], None] = lambda channel: None
    ) -> PostgresSleeper:
        claims = self._prepare and self.listen_dsn == self.dsn
        sleeper = PostgresSleeper(
            self.schema,
            worker_id,
            read_cancelled=lambda: self._cancelled_jobs(worker_id),
            notified=notified,
            listen=partial(self._make_listener, claims=claims) if self._notify else None,
            poll=self._poll_seconds,
            claims=claims,
        )
        with translate_errors():
            await sleeper.open()
        self._sleepers.add(sleeper)
        return sleeper

    async def _cancelled_jobs(self, worker_id: int) -> list[int]:
        return [row[0] for row in await self._ask("cancelled_jobs", worker=worker_id)]

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
        try:
            return await self._exchange(
                worker_id, finished, closed, lanes, limited, want, look_ahead, lead, in_turn, False
            )
        except StorageError as error:
            if not isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                raise
            # Something was finished twice under its token: check each.
            return await self._exchange(
                worker_id, finished, closed, lanes, limited, want, look_ahead, lead, in_turn, True
            )

    async def _exchange(
        self,
        worker_id: int,
        finished: Sequence[FinishedJob],
        closed: Sequence[int],
        lanes: Sequence[Lane],
        limited: Sequence[str],
        want: int,
        look_ahead: bool,
        lead: float,
        in_turn: bool,
        careful: bool,
    ) -> Exchange:
        statements = _finishes(finished, closed, careful=careful)
        finishes = len(statements)
        claims = want > 0 and bool(lanes)
        if claims:
            # As JSON: adapting arrays of text and of moments costs us 0.1 ms more.
            given = msgspec.json.encode(lanes).decode()
            claim = {
                "worker": worker_id,
                "want": want,
                "lanes": given,
                "lead": lead,
                "most_args": MAX_CLAIMED_ARGS,
            }
            statements.append(("claim", claim))
        if look_ahead:
            queues = text_array(sorted({lane.queue for lane in lanes}))
            statements.append(("next_run_at", {"queues": queues}))
        with self._waits.claiming() if claims else nullcontext():
            if claims and in_turn and len(statements) == 1:
                answers = [await self._claim_in_turn(claim)]
            else:
                answers = await self._together(statements) if statements else []
            refused, cancelled = _sort_out(answers[:finishes])
            now, claimed, alive = (
                _claimed_together(answers[finishes]) if claims else (None, [], True)
            )
            self._waits.finished(finished, closed, refused=refused | cancelled)
            self._waits.claimed(claimed)
        limited_rows: list[Row] = []
        for queue in limited:
            if len(claimed) < want:
                more = await self._ask(
                    "claim_limited",
                    worker=worker_id,
                    queue=queue,
                    want=want - len(claimed),
                    quarantined=False,
                    most_args=MAX_CLAIMED_ARGS,
                )
                claimed += _claimed_limited(more)
                limited_rows += more
        next_run_at = None
        if look_ahead:
            [(now, next_run_at)] = answers[-1]
        opens = [row[_OPEN_AT] for row in limited_rows if row[_OPEN_AT] is not None]
        if limited and look_ahead and now is not None:
            soonest = await self._ask("next_limited_at", queues=list(limited), now=now)
            opens += [row[0] for row in soonest if row[0] is not None]
        if opens:
            next_run_at = min([next_run_at, *opens] if next_run_at else opens)
        return Exchange(now, refused, cancelled, claimed, next_run_at, lease_lost=not alive)

    async def _claim_in_turn(self, claim: dict[str, Any]) -> list[Row]:
        """A claim that waits for those of other workers, so that no more than two are made at a
        time. Each passes over the jobs of the others, which would cost most where many are made."""
        if self._prepare and time.monotonic() >= self._turns_from:
            turn = {"lanes": claim["lanes"], "worker": claim["worker"]}
            try:
                session = self._direct_session("claim")
                if session is None:
                    return (await self._together([("claim_turn", turn), ("claim", claim)]))[1]
                statements = [(self._sql["claim_turn"], turn), (self._sql["claim"], claim)]
                with translate_errors():
                    return (await session.execute_together(statements, self._call_seconds))[1]
            except StorageError as error:
                if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                    raise
            # Somebody holds up everybody, perhaps a process that was stopped.
            self._turns_from = time.monotonic() + _NO_TURNS_SECONDS
        [rows] = await self._together([("claim", claim)])
        return rows

    async def next_run_at(self, queues: Sequence[str]) -> tuple[datetime, datetime | None]:
        [[(now, next_run_at)]] = await self._together(
            [("next_run_at", {"queues": text_array(queues)})]
        )
        return now, next_run_at

    async def finish_again(
        self, finished: Sequence[FinishedJob], closed: Sequence[int]
    ) -> Exchange:
        async with self._connection(fail_fast=True) as connection, connection.transaction():
            before = await self._on(
                connection,
                "finished_before",
                jobs=array(one.job.id for one in finished),
                tokens=array(one.job.token for one in finished),
            )
            done = set(before)
            left = [one for one in finished if (one.job.id, one.job.token) not in done]
            refused, cancelled = _sort_out(
                [
                    await self._on(connection, name, **parameters)
                    for name, parameters in _finishes(left, closed, careful=True)
                ]
            )
        self._waits.finished(finished, closed, refused=refused | cancelled)
        return Exchange(refused=refused, cancelled=cancelled)

    async def disown(self, worker_id: int, known: Sequence[int], *, lead: float = 0.0) -> int:
        async with self._connection(fail_fast=True) as connection, connection.transaction():
            rows = await self._on(
                connection, "lock_unknown_claims", worker=worker_id, known=array(known), lead=lead
            )
            return await self._leave_claims(connection, "put_back", rows)

    async def args_of(self, job_id: int) -> str:
        rows = await self._ask("args_of", job=job_id)
        if not rows:
            raise JobNotFound(job_id)
        args: str = rows[0][0]
        return args

    async def claim_quarantined(self, worker_id: int, queues: Sequence[str]) -> list[ClaimedJob]:
        for queue in queues:
            rows = await self._ask("claim_quarantined", worker=worker_id, queue=queue)
            if rows:
                return _claimed(rows)
            rows = await self._ask(
                "claim_limited",
                worker=worker_id,
                queue=queue,
                want=1,
                quarantined=True,
                most_args=MAX_CLAIMED_ARGS,
            )
            if claimed := _claimed_limited(rows):
                return claimed
        return []

    async def _ask(self, name: str, /, **parameters: Any) -> list[Row]:
        """As `_rows`, for a worker's loop, which does not wait while the server is down."""
        async with self._connection(fail_fast=True) as connection:
            return await self._on(connection, name, **parameters)

    async def release(self, jobs: Sequence[ClaimedJob]) -> None:
        await self._give_up("put_back", jobs)

    async def park(self, jobs: Sequence[ClaimedJob], reason: Reason) -> None:
        await self._give_up("park", jobs, reason=write_reason(reason))

    async def _give_up(self, name: str, jobs: Sequence[ClaimedJob], **more: Any) -> None:
        tokens = array(job.token for job in jobs)
        async with self._connection(fail_fast=True) as connection, connection.transaction():
            await self._on(connection, "lock_claims", tokens=tokens)
            rows = [(job.token, job.id, job.attempt, job.run_at) for job in jobs]
            await self._leave_claims(connection, name, rows, **more)

    async def _leave_claims(
        self, connection: Connection, name: str, rows: Sequence[Row], **more: Any
    ) -> int:
        """Move jobs, given as (token, job, attempt, run_at), from their locked claims to where the
        statement `name` puts them; return how many."""
        if not rows:
            return 0
        tokens, ids, attempts, run_ats = zip(*rows, strict=True)
        left = await self._on(connection, "leave_claims", tokens=array(tokens), jobs=array(ids))
        await self._on(connection, "drop_claims", tokens=array(tokens))
        await self._on(
            connection,
            name,
            jobs=array(ids),
            run_ats=list(run_ats),
            attempts=array(attempt - 1 for attempt in attempts),
            left=array(row[0] for row in left),
            **more,
        )
        await self._on(connection, "wake_for", jobs=array(ids))
        return len(left)

    async def park_unreadable(self, queues: Sequence[str], *, most: int) -> dict[int, str]:
        parked: dict[int, str] = {}
        for row in await self._rows("due_ids", queues=list(queues), most=most):
            try:
                await self._rows("read_due", job=row[0])
            except TransientError:
                raise
            except StorageError as error:
                reason = Reason.of(UNREADABLE, text=str(error))
                written = write_reason(reason)
                if await self._rows("park_unreadable", job=row[0], reason=written):
                    parked[row[0]] = str(reason)
        return parked

    async def unpark(
        self, tasks: Sequence[str], queues: Sequence[str], *, sparing: Collection[int] = ()
    ) -> int:
        rows = await self._ask(
            "unpark", tasks=list(tasks), queues=list(queues), sparing=list(sparing)
        )
        return cast("int", rows[0][0])

    def finish_in(self, finished: FinishedJob) -> Statements:
        body = _completion(finished)
        [(accepted,)] = yield self._sql["complete"], (msgspec.json.encode(body).decode(),)
        return bool(accepted)

    def finish_many_in(self, finished: Sequence[FinishedJob]) -> Statements:
        body = [_completion(one) for one in finished]
        rows = yield self._sql["complete_many"], (msgspec.json.encode(body).decode(),)
        return [bool(row[0]) for row in rows]

    def finish_steps_in(self, finished: Sequence[FinishedJob], runs: Sequence[int]) -> Statements:
        places = sorted(range(len(finished)), key=lambda place: finished[place].job.token)
        body = [{"run": runs[place], "finish": _completion(finished[place])} for place in places]
        rows = yield self._sql["complete_steps"], (msgspec.json.encode(body).decode(),)
        accepted = {places[number - 1]: bool(is_ours) for number, is_ours in rows}
        return [accepted.get(place) for place in range(len(finished))]

    runs_graphs = True

    def end_steps_in(
        self, finished: Sequence[FinishedJob], document: Mapping[str, Any]
    ) -> Statements:
        ends = [
            {**end, "finish": _completion(one)}
            for end, one in zip(document["ends"], finished, strict=True)
        ]
        rows = yield self._with_claims("graph_end_steps", {**document, "ends": ends})
        answers = [(row[1], bool(row[2])) for row in rows if row[0] is not None]
        return answers, _claimed([row[3:] for row in rows if row[0] is None])

    def begin_run_in(self, document: Mapping[str, Any]) -> Statements:
        [(has_begun, is_closed, *_), *rows] = yield self._with_claims("graph_begin_run", document)
        return has_begun, bool(is_closed), _claimed([row[2:] for row in rows])

    def end_run_in(self, document: Mapping[str, Any]) -> Statements:
        rows = yield self._sql["graph_end_run"], (msgspec.json.encode(document).decode(),)
        return dict(rows) or None

    def _with_claims(self, name: str, document: Mapping[str, Any]) -> tuple[str, tuple[str]]:
        given = {**document, "notify": self._notify, "most_args": MAX_CLAIMED_ARGS}
        return self._sql[name], (msgspec.json.encode(given).decode(),)

    async def set_progress(self, job: ClaimedJob, progress: str) -> bool:
        return bool(
            await self._rows("set_progress", job=job.id, token=job.token, progress=progress)
        )

    async def poll(
        self,
        queues: Sequence[str],
        tasks: Sequence[str],
        *,
        sparing: Collection[int] = (),
        checks: Sequence[Statements] = (),
        ahead: bool = True,
    ) -> tuple[PollResult, list[Any]]:
        given = {
            "queues": text_array(queues),
            "lanes": text_array(queues if ahead else ()),
            "tasks": text_array(tasks),
            "sparing": array(sparing),
        }
        asked = [next(check) for check in checks]
        if (session := self._direct_session("poll")) is not None:
            # The driver would take most of the CPU of a worker that does nothing else.
            with translate_errors():
                (
                    [(now, next_run_at, limited, parked, quarantined)],
                    *found,
                ) = await session.execute_together(
                    [(self._sql["poll"], given), *((text, more or ()) for text, more in asked)],
                    self._call_seconds,
                )
            result = PollResult(now, next_run_at, tuple(limited), parked, quarantined)
            return result, [
                await self._go_on(check, rows) for check, rows in zip(checks, found, strict=True)
            ]
        async with self._connection(fail_fast=True) as connection:
            # A transaction of its own, which the end of the pipeline commits.
            async with connection.pipeline() if asked else nullcontext():
                cursor = await self._send(connection, "poll", **given)
                cursors = [await connection.execute(*statement) for statement in asked]
            [(now, next_run_at, limited, parked, quarantined)] = await cursor.fetchall()
            answers = [
                await drive(connection, check, rows=await rows_of(cursor))
                for check, cursor in zip(checks, cursors, strict=True)
            ]
        return PollResult(now, next_run_at, tuple(limited), parked, quarantined), answers

    async def _go_on(self, check: Statements, rows: list[Row]) -> Any:
        """Finish a check whose first statement was answered."""
        try:
            statement = check.send(rows)
        except StopIteration as done:
            return done.value
        async with self._connection(fail_fast=True) as connection:
            first = await rows_of(await connection.execute(*statement))
            return await drive(connection, check, rows=first)

    def any_dead(self, *, sparing: int = 0) -> Statements:
        rows = yield self._sql["any_dead"], {"sparing": sparing}
        return bool(rows[0][0])

    async def rescue(self, *, sparing: int = 0) -> list[Rescued]:
        async with self._connection(fail_fast=True) as connection:
            async with connection.transaction():
                dead = await self._on(connection, "lock_dead_claims", sparing=sparing)
                rows = (
                    await self._on(
                        connection, "rescue", tokens=array(row[0] for row in dead), lead=LEAD
                    )
                    if dead
                    else []
                )
            await self._on(connection, "bury_workers")
        return [
            Rescued(job_id, task, attempt, rescued_state(outcome, attempt), worker)
            for job_id, task, attempt, outcome, worker in rows
        ]

    async def prune(
        self, retention: Mapping[AttemptOutcome, timedelta], *, after: int, batch: int
    ) -> tuple[int, int]:
        ages = {
            "outcomes": [outcome.value for outcome in retention],
            "ages": list(retention.values()),
        }
        pruned = 0
        async with self._connection() as connection, connection.transaction():
            [(old, after)] = await self._on(
                connection,
                "find_prunable",
                **ages,
                after=after,
                batch=batch,
                checked=_CHECKED * batch,
            )
            if old:
                jobs = await self._on(connection, "lock_prunable", jobs=array(old))
                locked = array(row[0] for row in jobs)
                [(pruned,)] = await self._on(connection, "prune", **ages, jobs=locked)
        if not after:
            await self._ask("prune_leftovers", age=max(retention.values()))
        return pruned, after

    async def end_parked(self, age: timedelta, *, batch: int) -> list[int]:
        rows = await self._rows("end_parked", age=age, batch=batch, code=PARKED_CODE)
        return [row[0] for row in rows]


def _finishes(
    finished: Sequence[FinishedJob], closed: Sequence[int], *, careful: bool
) -> list[Statement]:
    """`finish` for the plainly completed, `finish_fully` for the rest or if `careful`.

    The claims are closed by the last statement, after both have passed the fence.
    """
    plain = [] if careful else [one for one in finished if _is_plain(one)]
    full = finished if careful else []
    if not careful and len(plain) < len(finished):
        full = [one for one in finished if not _is_plain(one)]
    if len(full) == len(finished) == 1 and not careful and _has_result_only(full[0], closed):
        return [_finish_one(full[0], closed)]
    statements: list[Statement] = []
    if plain or (closed and not full):
        parameters = _parameters(plain, () if full else closed)
        statements.append(("finish", parameters))
    if full:
        parameters = _parameters(full, closed) | {
            "outcome": [one.outcome.value for one in full],
            "again": [one.again_after for one in full],
            "codes": [one.error_code for one in full],
            "errors": [one.error for one in full],
            "facts": [one.facts for one in full],
            "tracebacks": [one.traceback for one in full],
            "results": [one.result for one in full],
            "logs": [one.log for one in full],
        }
        statements.append(("finish_fully", parameters))
    return statements


def _finish_one(finished: FinishedJob, closed: Sequence[int]) -> Statement:
    document = msgspec.json.encode(_completion(finished)).decode()
    return "finish_one", {"finish": document, "closed": array(closed)}


def _completion(finished: FinishedJob) -> dict[str, Any]:
    document: dict[str, Any] = {
        "job": finished.job.id,
        "token": finished.job.token,
        "started": finished.started_us,
        "finished": finished.finished_us,
    }
    if finished.result is not None:
        document["result"] = msgspec.Raw(finished.result.encode())
    if finished.log is not None:
        document["log"] = msgspec.Raw(finished.log.encode())
    return document


def _is_plain(finished: FinishedJob) -> bool:
    job = finished.job
    return (
        finished.outcome is _COMPLETED
        and finished.result is None
        and finished.log is None
        and finished.error_code is None
        and job.key is None
        and not job.limited
        and not finished.completed_before
        and finished.finished_us <= _MAX_SHORT_US
    )


def _has_result_only(finished: FinishedJob, closed: Sequence[int]) -> bool:
    job = finished.job
    return (
        finished.outcome is _COMPLETED
        and finished.error_code is None
        and not job.limited
        and not finished.completed_before
        and all(token == job.token for token in closed)
    )


def _parameters(finished: Sequence[FinishedJob], closed: Sequence[int]) -> dict[str, Any]:
    jobs = [one.job for one in finished]
    tokens = [job.token for job in jobs]
    return {
        "jobs": array([job.id for job in jobs]),
        "tokens": array(tokens),
        "attempts": array([job.attempt for job in jobs]),
        "started": array([one.started_us for one in finished]),
        "finished": array([one.finished_us for one in finished]),
        "held": array(sorted(set(tokens))),
        "closed": array(closed),
    }


def _sort_out(answers: Sequence[Sequence[Row]]) -> tuple[frozenset[int], frozenset[int]]:
    """Of what a finish returned: the jobs that it refused, and those that had been cancelled."""
    rows = [row for rows in answers for row in rows if row[0] is not None]
    if not rows:
        return _NONE, _NONE
    cancelled = frozenset(row[0] for row in rows if row[2:] == (True,))
    return frozenset(row[0] for row in rows if row[2:] != (True,)), cancelled


# This is the hot path: of what the jobs of a claim share, no row has a copy.


def _claimed_together(rows: Sequence[Row]) -> tuple[datetime, list[ClaimedJob], bool]:
    """Return the moment of a claim, its jobs in their order, and whether the lease holds."""
    [(token, moment, until)] = [
        (row[0], row[_RUN_AT], row[_EXPIRES_AT]) for row in rows if row[_TASK] is None
    ]
    jobs = sorted([row for row in rows if row[_TASK] is not None], key=_ORDER)
    claimed = [
        ClaimedJob(
            job_id, token, task, queue, priority, args, attempt, max_attempts, run_at, moment,
            key, partition, timeout, expires_at, trace, is_unrecorded,
        )
        for job_id, task, queue, priority, args, attempt, max_attempts, run_at, key, partition,
            timeout, expires_at, trace, is_unrecorded in jobs
    ]  # fmt: skip
    return moment, claimed, until is not None


def _claimed(rows: Sequence[Row]) -> list[ClaimedJob]:
    """The columns stand in the order of the fields of `ClaimedJob`."""
    return list(starmap(ClaimedJob, rows))


def _claimed_limited(rows: Sequence[Row]) -> list[ClaimedJob]:
    jobs = _claimed([row[:_OPEN_AT] for row in rows if row[0] is not None])
    for job in jobs:
        job.limited = True
    return jobs
