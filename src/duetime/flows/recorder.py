"""What runs record close to each other is written together, in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from duetime.domain.flows.flow import LoadedRun, NewRecord, SuspendAnswer, Suspension
from duetime.domain.jobs.job import NewJob
from duetime.engine.batching import Batcher, process_alone_if_refused
from duetime.engine.context import Context
from duetime.errors import ClaimLost, TransientError
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.store import Statements
from duetime.storage.transaction import run_async
from duetime.telemetry.events import log_event

if TYPE_CHECKING:
    from duetime.app import Duetime

log = logging.getLogger("duetime.flows")

_MAX_BATCH_SIZE = 500
"""Each batch is a commit, whatever its size."""
_FIRST_WAIT_SECONDS = 0.1
_MAX_WAIT_SECONDS = 5.0
FIRST_BUSY_SECONDS = 0.005
MAX_BUSY_SECONDS = 1.0


class Pause(NamedTuple):
    """A run that suspends, and what it has to record before."""

    records: list[NewRecord]
    suspension: Suspension


class Recorder:
    """Loads, records and suspends the runs of one app, many in one call."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._running = 0
        """The runs that this process goes on with now."""
        self._loads: Batcher[int, LoadedRun] = Batcher(self._load_many, max_size=_MAX_BATCH_SIZE)
        self._begins: Batcher[int, datetime | None] = Batcher(
            self._read_begins, max_size=_MAX_BATCH_SIZE
        )
        self._records: Batcher[list[NewRecord], bool | Exception] = Batcher(
            lambda groups: process_alone_if_refused(self._write, groups),
            max_size=_MAX_BATCH_SIZE,
            wait_on_cancel=True,
        )
        self._pauses: Batcher[Pause, SuspendAnswer | Exception] = Batcher(
            lambda pauses: process_alone_if_refused(self._suspend_many, pauses), wait_on_cancel=True
        )

    async def load(self, run: int) -> LoadedRun:
        return await self._loads.submit(run)

    async def began_at(self, run: int) -> datetime | None:
        """When a run first ran, since it was last retried. None: it has not before."""
        return await self._begins.submit(run)

    async def has_ended(self, run: int) -> bool:
        """Whether a run has ended, or is gone."""
        store = await self._app.store()
        ended: bool = await store.transact(
            FlowStatements(store.dialect).has_ended(run), reads=True, single=True
        )
        return ended

    @contextmanager
    def running(self) -> Iterator[None]:
        """A run goes on meanwhile."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def record(
        self, ctx: Context, records: list[NewRecord], *, is_alone: bool = False
    ) -> None:
        """Record what a run did; raise `ClaimLost` if it is not ours any more. `is_alone`: the run
        does nothing else meanwhile."""
        submit: Callable[[list[NewRecord]], Awaitable[bool | Exception]] = self._records.submit
        if is_alone and self._running == 1 and len(records) == 1 and records[0].is_plain:
            # Nothing could share its commit: the batcher's task would only make it wait.
            submit = self._record_at_once
        await record_until_accepted(
            ctx,
            lambda: submit(records),
            run_id=ctx.job.id,
            step=records[-1].name,
        )

    async def _record_at_once(self, records: list[NewRecord]) -> bool | Exception:
        store = await self._app.store()
        accepted = await store.record_step(records[0]) if store.records_at_once else None
        return await self._records.submit(records) if accepted is None else accepted

    async def start_jobs(self, ctx: Context, starts: Sequence[tuple[NewRecord, NewJob]]) -> None:
        """Record that a run waits for jobs, and enqueue them, in one transaction."""
        store = await self._app.store()
        statements = FlowStatements(store.dialect).start_jobs(store, starts)
        if await store.transact(statements) is None:
            raise ClaimLost(ctx.job.id, ctx.job.token)

    @asynccontextmanager
    async def transaction(self, ctx: Context, record: NewRecord) -> AsyncIterator[Any]:
        """A transaction that also writes the record; `ClaimLost` rolls it back."""
        store = await self._app.store()

        async def write(connection: Any) -> None:
            statements = FlowStatements(store.dialect).record([record])
            placeholder = store.placeholder
            [accepted] = await run_async(connection, statements, placeholder=placeholder)
            if not accepted:
                raise ClaimLost(ctx.job.id, ctx.job.token)

        async with store.transaction(before_commit=write) as connection:
            yield connection

    async def suspend(self, pause: Pause) -> SuspendAnswer:
        """Suspend a run, once no transaction is open that signals it."""
        wait = FIRST_BUSY_SECONDS
        answer = await self._pauses.submit(pause)
        while answer == "busy":
            await asyncio.sleep(wait)
            wait = min(2 * wait, MAX_BUSY_SECONDS)
            # What it had to record is recorded.
            answer = await self._pauses.submit(Pause([], pause.suspension))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _load_many(self, runs: list[int]) -> Sequence[LoadedRun]:
        store = await self._app.store()
        loaded: list[LoadedRun] = await store.transact(
            FlowStatements(store.dialect).load(runs), reads=True, single=True
        )
        return loaded

    async def _read_begins(self, runs: list[int]) -> Sequence[datetime | None]:
        store = await self._app.store()
        began: list[datetime | None] = await store.transact(
            FlowStatements(store.dialect).began(runs), reads=True, single=True
        )
        return began

    async def _write(self, groups: Sequence[list[NewRecord]]) -> list[bool]:
        store = await self._app.store()
        records = [record for group in groups for record in group]
        if len(records) == 1 and records[0].is_plain:
            is_accepted = await store.record_step(records[0])
            if is_accepted is not None:
                return [is_accepted]
        accepted = iter(
            await store.transact(FlowStatements(store.dialect).record(records), single=True)
        )
        return [all([next(accepted) for _ in group]) for group in groups]  # noqa: C419

    async def _suspend_many(self, pauses: Sequence[Pause]) -> Sequence[SuspendAnswer]:
        store = await self._app.store()
        statements = FlowStatements(store.dialect)
        answers: list[SuspendAnswer] = await store.transact(_suspend(statements, pauses))
        return answers


async def record_until_accepted(
    ctx: Context, submit: Callable[[], Awaitable[bool | Exception]], *, run_id: int, step: str
) -> None:
    """Record what a step did, however often that takes, so that it does not run again because its
    record was refused. Raise `ClaimLost` if the run is not ours any more."""
    wait = _FIRST_WAIT_SECONDS
    while True:
        try:
            accepted = await submit()
            if isinstance(accepted, Exception):
                raise accepted
            if not accepted:
                raise ClaimLost(ctx.job.id, ctx.job.token)
            return
        except TransientError as error:
            log_event(
                log,
                logging.WARNING,
                "step_not_recorded",
                "Run %(job_id)s of flow %(task)s could not record the step %(step)s and tries "
                "again: %(error)s",
                job_id=run_id,
                task=ctx.job.task,
                step=step,
                error=str(error),
            )
        await asyncio.sleep(wait)
        wait = min(2 * wait, _MAX_WAIT_SECONDS)


def _suspend(statements: FlowStatements, pauses: Sequence[Pause]) -> Statements:
    if records := [record for pause in pauses for record in pause.records]:
        yield from statements.record(records)
    return (yield from statements.suspend([pause.suspension for pause in pauses]))
