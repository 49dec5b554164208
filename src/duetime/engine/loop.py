"""A worker's loop: send what ended, claim what is due, and sleep in between."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from random import uniform
from typing import Any

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.jobs.task import TaskDefinition
from duetime.domain.schedules.schedule import read_run_key
from duetime.engine.clock import DatabaseClock
from duetime.engine.executor import end_as_completed
from duetime.engine.holdings import Holdings
from duetime.engine.lanes import Lanes
from duetime.engine.options import WorkerOptions
from duetime.engine.runners import Runners
from duetime.engine.services import OUTAGE_SECONDS, backoff
from duetime.errors import (
    DatabaseUnreachable,
    DataRejected,
    InvalidArguments,
    StorageError,
    TransactionConflict,
    TransientError,
)
from duetime.schedules.memory import MemorySchedules
from duetime.schedules.planner import Planner
from duetime.storage.schedules.rows import Declarer, NewSchedule
from duetime.storage.store import LEAD, Exchange, Sleeper, Store
from duetime.telemetry.events import Events, log_event
from duetime.telemetry.outage import Outage

log = logging.getLogger("duetime.worker")

_NAPS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)
_LINGER_SECONDS = 0.002
_BUSY_SECONDS = 0.05
"""Woken twice within this time: stay awake, so that producers need not wake us."""
_BUSY_NAP_SECONDS = 0.005
_STAGGER_SECONDS = 0.002
_LEAD_SECONDS = LEAD.total_seconds()
"""An idle worker claims what falls due so soon, and starts it to the millisecond: the round trips
are behind it by then."""
_AGAIN_AFTER = timedelta(seconds=5)
_MOST_UNFITTING = 10_000
_LATE_SECONDS = 60.0
"""A claim whose connection broke may still wait in the database for a lock, and be made later, no
matter how much: so look for it again and again."""


class Dispatcher:
    """Moves jobs between the store and the runners. `Worker` gives it its life."""

    _runners: Runners
    _sleeper: Sleeper

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, TaskDefinition],
        options: WorkerOptions,
        events: Events,
        declared: Sequence[NewSchedule] = (),
    ) -> None:
        self._store = store
        self._declared = declared
        self._tasks = tasks
        self._options = options
        self._events = events
        self.name = options.name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._worker_id = 0
        self._rank = 0
        self._clock = DatabaseClock()
        self._holdings = Holdings()
        self._planner = Planner(
            store,
            events,
            worker=self.name,
            knows=tasks.__contains__,
            run=self._start,
            skip=self._skip,
            wait=self._give_back,
            declarer=Declarer(options.service, options.release),
            optional=options.schedule_fallback,
        )
        self._log_started = events.job_started(self.name)
        self._ticker = MemorySchedules(store)
        self._applied = False
        self._fallen_back = False
        """The schedule tables failed: what the code declares ticks in memory."""
        self._admitting: set[asyncio.Task[None]] = set()
        self._flushing: asyncio.Task[None] | None = None
        self._giving_back: set[asyncio.Task[None]] = set()
        self._unfitting: deque[int] = deque(maxlen=_MOST_UNFITTING)
        """Jobs that were parked since their arguments do not fit: left to other workers."""
        self._returning: list[ClaimedJob] = []
        """Jobs that could not be given back yet."""
        self._limited: list[str] = []
        self._unsure = False
        """An exchange failed: what it did is unknown until settled."""
        self._look_back_at = math.inf
        """When to look again for claims that we do not know of."""
        self._failures = 0
        self.outage = Outage(self.name)
        """Whoever waited for the database to start this worker sets its own."""
        self._stopping = False
        self._stop_asked = asyncio.Event()
        self._calls_end: float | None = None
        """Until when, while it stops, the database may answer."""
        self._calls: set[asyncio.Timeout] = set()
        self._stop_now = False
        self._fenced: str | None = None
        self._quarantined: int | None = None
        self._quarantine_next = False
        self._lanes = Lanes(options.queues)
        self._claiming = asyncio.Lock()
        self.started = asyncio.Event()
        self.left_behind = 0
        """Jobs that could not be given back; their lease must run out first."""
        self._begin()

    def _begin(self) -> None:
        """Look at once; nothing is known of what comes."""
        self._look = True
        self._look_ahead = False
        self._more = False
        self._early = False
        """Nothing is due: claim what falls due within milliseconds, and hold it until then."""
        self._last_wake = 0.0
        self._wake_at = 0.0
        self._naps = 0

    def _check_lease(self) -> None:
        """Fence this worker if its lease is over."""
        raise NotImplementedError

    def _fence(self, reason: str) -> None:
        raise NotImplementedError

    def _is_damage(self, error: BaseException) -> bool:
        """Return whether the database is damaged; then this worker stops."""
        raise NotImplementedError

    async def _step(self) -> None:
        """Send what ended, claim what is due; or, if there is neither, sleep."""
        try:
            if self._unsure or time.monotonic() >= self._look_back_at:
                self._unsure = True
                await self._settle()
            for job_id in await self._sleeper.cancelled_jobs():
                self._runners.cancel(job_id)
            if self._quarantine_next:
                self._quarantine_next = False
                await self._claim_quarantined()
            room = self._runners.room(2 * self._options.batch) if self._look else 0
            if room > 0:
                await self._linger(room)
                await self._exchange(min(room, self._options.batch))
            elif self._holdings.to_send:
                await self._linger(len(self._holdings.ended))
                await self._exchange(0)
            else:
                await self._rest()
            self._failures = 0
            self.outage.worked("worker")
        except StorageError as error:
            self._unsure = True
            self._look = True
            if isinstance(error, TransientError) or not await self._park_unreadable():
                await self._back_off(error)

    async def _park_unreadable(self) -> bool:
        """A claim failed, and not for the connection: perhaps for one row of those it takes."""
        try:
            # The claim may have been made, and only its answer was unreadable.
            await self._settle()
            parked = await self._store.park_unreadable(
                self._options.queues, most=self._options.batch
            )
        except StorageError:
            return False
        for job_id, reason in parked.items():
            log_event(
                log,
                logging.ERROR,
                "job_unreadable",
                "Job %(job)s cannot be read and was parked: %(error)s",
                worker=self.name,
                job=job_id,
                error=reason,
            )
        return bool(parked)

    async def _linger(self, size: int) -> None:
        # With work at hand, a small exchange can wait a moment and become a larger one.
        if self._runners.waiting and size < self._options.batch // 2:
            await asyncio.sleep(_LINGER_SECONDS)

    async def _exchange(self, want: int) -> None:
        """One round trip for both. While there is more than we can claim, the ends go beside."""
        if want and self._more:
            if self._holdings.to_send and self._flushing is None:
                self._flushing = asyncio.create_task(self._send(0), name="duetime-finish")
                self._flushing.add_done_callback(self._flushed)
            await self._send(want, finish=False)
        else:
            await self._await_flush()
            if self._unsure:
                await self._settle()
            await self._send(want)

    def _flushed(self, flushing: asyncio.Task[None]) -> None:
        self._flushing = None
        if not flushing.cancelled() and (error := flushing.exception()) is not None:
            self._unsure = True
            if not self._is_damage(error):
                log_event(
                    log,
                    logging.WARNING,
                    "finish_failed",
                    "Worker %(worker)s could not record finished jobs and tries again: %(error)s",
                    worker=self.name,
                    error=str(error),
                )

    async def _await_flush(self) -> None:
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _send(self, want: int, *, finish: bool = True) -> None:
        early, self._early = self._early and want > 0, False
        if early:
            # By itself: an answer to a claim comes long after its clock was read.
            moment, read = await self._store.now(), time.monotonic()
        if self._stopping or self._fenced is not None:
            # Since we began to wait: what is claimed now would only be given back, or lost.
            want = 0
        ended, closed = self._holdings.take() if finish else ([], [])
        look_ahead = self._look_ahead or early
        sent = time.monotonic()
        try:
            answer = await self._store.exchange(
                self._worker_id,
                ended=ended,
                closed=closed,
                lanes=self._lanes.in_turn() if want else (),
                want=want,
                look_ahead=want > 0 and look_ahead,
                lead=_LEAD_SECONDS if early else 0.0,
            )
        except BaseException:
            self._holdings.put_back(ended, closed)
            raise
        received = time.monotonic()
        if answer.now is not None:
            self._clock.set(answer.now, sent=sent, received=received)
            if early and answer.claimed:
                received = _hold_until_due(
                    answer.claimed, moment, read=read, sent=sent, received=received
                )
        if answer.lease_lost:
            self._fence("the lease had run out")
        self._accept(answer.claimed, received)
        self._report(ended, answer)
        if want:
            claimed = len(answer.claimed)
            if self._limited and self._fenced is None:
                claimed += await self._claim_limited(answer)
            await self._after_look(answer, claimed, want, looked_ahead=look_ahead, early=early)

    async def _claim_limited(self, answer: Exchange) -> int:
        """From limited queues only what the runners can take next: it counts as running."""
        held = sum(job.limited for job in self._holdings)
        more = await self._store.exchange(
            self._worker_id,
            limited=self._limited,
            want=max(0, self._options.concurrency - held),
            look_ahead=True,
        )
        self._accept(more.claimed, time.monotonic())
        times = [at for at in (answer.next_run_at, more.next_run_at) if at is not None]
        answer.next_run_at = min(times) if times else None
        return len(more.claimed)

    def _accept(self, jobs: Sequence[ClaimedJob], received: float) -> None:
        self._check_lease()
        if self._fenced is not None:
            # Answered too late: they may not begin here. Others may, and nothing counts.
            self._give_back_soon(jobs)
            return
        self._holdings.add(jobs)
        self._events.jobs_claimed(self.name, jobs)
        runs = [job for job in jobs if job.key is not None and _is_run(job)]
        known = jobs
        if runs:
            known = [job for job in jobs if not _is_run(job)]
        unknown: list[ClaimedJob] = []
        if any(name not in self._tasks for name in {job.task for job in known}):
            unknown = [job for job in known if job.task not in self._tasks]
            known = [job for job in known if job.task in self._tasks]
        if known:
            self._runners.put(known, received=received)
        if runs and (fitting := self._park_unfitting(runs)):
            self._admit_soon(fitting, received)
        if unknown:
            self._park_soon(unknown)

    def _park_unfitting(self, runs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        """Park runs whose arguments do not fit the task as this worker knows it, and return the
        others. In a rolling deploy a worker of another release knows it otherwise. Arguments that
        are so large that they are read at the start are not looked at."""
        fitting = []
        for job in runs:
            try:
                if job.task in self._tasks and job.args is not None:
                    self._tasks[job.task].decode(job.args)
            except InvalidArguments as error:
                self._unfitting.append(job.id)
                self._park_soon([job], f"worker {self.name} cannot use its arguments: {error}")
            else:
                fitting.append(job)
        return fitting

    def _admit_soon(self, runs: Sequence[ClaimedJob], received: float) -> None:
        admitting = asyncio.create_task(self._admit(runs, received))
        self._admitting.add(admitting)
        admitting.add_done_callback(self._admitting.discard)

    def _admit_again(self, run: ClaimedJob, received: float) -> None:
        """No runner was free while a start was on time."""
        self._admit_soon([run], received)

    async def _admit(self, runs: Sequence[ClaimedJob], received: float) -> None:
        try:
            await self._planner.admit(runs, received)
        except Exception as error:  # noqa: BLE001 -- whatever it was, the jobs are given back.
            has, holds = self._runners.has, self._holdings.holds
            left = [job for job in runs if holds(job) and not has(job)]
            now = self._clock.now()
            if not isinstance(error, StorageError) and now is not None:
                # It may well happen again: not at once.
                for job in left:
                    job.run_at = max(job.run_at, now + _AGAIN_AFTER)
            self._return_later(left, error)
            self._sleeper.interrupt()

    def _start(self, jobs: Sequence[ClaimedJob], received: float) -> None:
        """Start what is still ours: the lease may have been lost while the planner looked."""
        self._check_lease()
        if self._fenced is not None:
            self._give_back_soon(jobs)
        else:
            mine = [job for job in jobs if self._holdings.holds(job)]
            known = [job for job in mine if job.task in self._tasks]
            self._planner.forget(job for job in jobs if not self._holdings.holds(job))
            self._runners.put(known, received=received)
            if len(known) < len(mine):
                self._park_soon([job for job in mine if job.task not in self._tasks])

    def _skip(self, job: ClaimedJob, outcome: AttemptOutcome, reason: str) -> None:
        self._job_ended(job, FinishedJob(job, outcome, 0, 0, error=reason))

    async def _after_look(
        self, answer: Exchange, claimed: int, want: int, *, looked_ahead: bool, early: bool
    ) -> None:
        """Decide when to look again."""
        self._more = claimed >= want and not early
        if self._more:
            self._lanes.raise_floors(answer.claimed)
            self._naps = 0
            self._look_ahead = False
            if self._sleeper.asleep:
                await self._sleeper.wake_up()
            return
        self._lanes.forget_floors()
        if not looked_ahead:
            # All that was due is claimed. Look once more, with an eye on what comes next.
            if self._sleeper.asleep:
                self._look_ahead = True
            elif claimed:
                # Busy: stay awake, so that producers need not wake us.
                await asyncio.sleep(_BUSY_NAP_SECONDS)
            elif await self._sleeper.fall_asleep(self._options.queues):
                self._look_ahead = True
                self._naps = 0
            else:
                await self._nap()
            return
        wait = self._options.poll.total_seconds()
        if answer.next_run_at is not None:
            wait = min(wait, self._clock.seconds_until(answer.next_run_at))
        if claimed:
            self._naps = 0
        soon = answer.next_run_at is not None and wait <= _LEAD_SECONDS
        if soon and not early and self._sleeper.asleep:
            self._early = True
            return
        if wait <= 0.0 or not self._sleeper.asleep:
            # It fell due since; or another worker is claiming it, or the listener was lost.
            self._look_ahead = self._sleeper.asleep
            await self._nap()
            return
        self._naps = 0
        self._look = False
        self._look_ahead = False
        if answer.next_run_at is not None and wait > 0.005:
            # Many sleepers do not stampede for one job.
            wait += min(self._rank, 5 if soon else 20) * _STAGGER_SECONDS
            if not soon:
                wait -= _LEAD_SECONDS
            elif wait > 0.8 * _LEAD_SECONDS:
                # We came a moment too soon: our clock is an estimate. Once more, still ahead.
                wait -= _LEAD_SECONDS / 2
        self._wake_at = time.monotonic() + wait

    async def _nap(self) -> None:
        self._naps += 1
        await asyncio.sleep(_NAPS[min(self._naps, len(_NAPS)) - 1])

    async def _rest(self) -> None:
        """Sleep until due, notified, or something ends here."""
        if self._look:
            # No room: a job must end before we look again.
            await self._sleeper.sleep(1.0)
            return
        reason = await self._sleeper.sleep(max(0.0, self._wake_at - time.monotonic()))
        now = time.monotonic()
        if reason == "interrupted" and now < self._wake_at:
            return
        self._look = True
        self._early = reason == "timed out" and self._sleeper.asleep
        self._events.woken(self.name, reason)
        if reason == "notified":
            if now - self._last_wake < _BUSY_SECONDS:
                await self._sleeper.wake_up()
            self._last_wake = now

    # What began, and what ended

    def _job_started(self, job: ClaimedJob) -> None:
        self._log_started(job)
        if job.key is not None:
            self._planner.began(job)

    def _job_ended(self, job: ClaimedJob, end: FinishedJob | None) -> None:
        if job.id == self._quarantined:
            self._quarantine_next = True
            self._quarantined = None
        if not self._holdings.drop(job):
            return
        ended = self._holdings.ended
        if end is not None and not end.recorded:
            ended.append(end)
        else:
            self._planner.ended([job])
            self._events.jobs_finished(self.name, [] if end is None else [end])
        if job.limited:
            self._look = True
        if len(ended) <= 1:
            self._sleeper.interrupt()

    def _report(self, ended: Sequence[FinishedJob], answer: Exchange) -> None:
        refused = answer.refused
        for end in ended if refused else ():
            if end.completed_before and end.job.id in refused:
                end_as_completed(end)
        if answer.cancelled:
            for end in ended:
                if end.job.id in answer.cancelled:
                    end.outcome, end.again_after = AttemptOutcome.CANCELLED, None
        self._planner.ended(
            [end.job for end in ended if end.job.key is not None and end.again_after is None]
        )
        if not refused:
            self._events.jobs_finished(self.name, ended)
            return
        self._events.jobs_finished(
            self.name,
            [end for end in ended if end.completed_before or end.job.id not in refused],
        )
        for end in ended:
            if end.job.id in refused and not end.completed_before:
                self._events.claim_lost(self.name, end)

    async def _flush(self) -> bool:
        """While it stops: record what ended. False: the database did not take it."""
        try:
            async with self._in_time():
                await self._settle()
        except StorageError as error:
            if not self._is_damage(error):
                log_event(
                    log,
                    logging.WARNING,
                    "flush_failed",
                    "Worker %(worker)s could not record finished jobs while it stops: %(error)s",
                    worker=self.name,
                    error=str(error),
                )
            return False
        return True

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """A database that does not answer must not hold up a stop beyond its time."""
        try:
            async with asyncio.timeout_at(self._calls_end) as limit:
                self._calls.add(limit)
                try:
                    yield
                finally:
                    self._calls.discard(limit)
        except TimeoutError as error:
            raise DatabaseUnreachable("The database did not answer in time.") from error

    async def _settle(self) -> None:
        """Record what ended; idempotent, whatever became of an earlier try."""
        await self._await_flush()
        ended, closed = self._holdings.take()
        if ended or closed:
            try:
                answer = await self._record(ended, closed)
            except BaseException:
                self._holdings.put_back(ended, closed)
                raise
            self._report(ended, answer)
        if self._returning:
            returning = self._returning[:]
            await self._planner.withdraw(returning)
            await self._store.release(returning)
            self._let_go(returning)
            del self._returning[: len(returning)]
        if self._unsure:
            async with self._claiming:
                await self._store.disown(self._worker_id, self._holdings.tokens, lead=_LEAD_SECONDS)
            self._unsure = False
            self._look_back_at = time.monotonic() + _LATE_SECONDS

    async def _record(self, ended: Sequence[FinishedJob], closed: Sequence[int]) -> Exchange:
        try:
            return await self._store.settle(ended, closed)
        except TransientError:
            raise
        except StorageError:
            if not ended:
                raise
        # The database refuses one of them, perhaps always: it must not keep back the others.
        answers: list[Exchange] = []
        refusal: StorageError | None = None
        for end in ended:
            try:
                answers.append(await self._record_one(end))
            except TransientError:
                raise
            except StorageError as error:
                refusal = error
        if refusal is not None:
            # All are tried again: those that are recorded by now stay so.
            raise refusal
        await self._store.settle([], closed)
        return Exchange(
            refused=frozenset().union(*(answer.refused for answer in answers)),
            cancelled=frozenset().union(*(answer.cancelled for answer in answers)),
        )

    async def _record_one(self, end: FinishedJob) -> Exchange:
        """Record how one ended. If the database will never accept its values, without them."""
        try:
            return await self._store.settle([end], [])
        except DataRejected as error:
            end.error_code, end.error = "not_stored", f"The database does not take its end: {error}"
            end.result = end.traceback = None
            return await self._store.settle([end], [])

    async def _back_off(self, error: StorageError) -> None:
        if self._is_damage(error):
            return
        self._failures += 1
        wait = OUTAGE_SECONDS
        if isinstance(error, TransactionConflict):
            # Who was in the way has gone on. Not all at the same moment.
            wait = backoff(self._failures) * uniform(0.0, 0.1)
            self._events.transaction_conflict(self.name, str(error), wait)
        else:
            self.outage.failed("worker", error, wait)
        deadline, fenced = time.monotonic() + wait, self._fenced
        while time.monotonic() < deadline and not self._stopping and self._fenced == fenced:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    # What is given back

    async def _claim_quarantined(self) -> None:
        """One at a time: if it takes this worker down too, it takes nothing else with it."""
        if self._stopping or self._fenced is not None:
            return
        if self._quarantined is None and self._runners.free:
            self._quarantined = 0
            jobs: list[ClaimedJob] = []
            worker_id = self._worker_id
            try:
                async with self._claiming:
                    jobs = await self._store.claim_quarantined(worker_id, self._options.queues)
                    if worker_id == self._worker_id:
                        self._accept(jobs, time.monotonic())
                    else:
                        self._give_back_soon(jobs)
            except BaseException:
                # It may hold a job that we do not know of.
                self._unsure = True
                raise
            finally:
                held = [job.id for job in jobs if self._holdings.holds(job)]
                self._quarantined = held[0] if held else None

    async def _give_back(self, jobs: Sequence[ClaimedJob]) -> None:
        if not jobs:
            return
        try:
            async with self._in_time():
                await self._planner.withdraw(jobs)
                await self._store.release(jobs)
        except StorageError as error:
            self._return_later(jobs, error)
        else:
            self._let_go(jobs)

    def _give_back_soon(self, jobs: Sequence[ClaimedJob]) -> None:
        if jobs:
            self._do_soon(self._give_back(jobs))

    def _park_soon(self, jobs: Sequence[ClaimedJob], reason: str | None = None) -> None:
        if reason is None:
            names = ", ".join(sorted({job.task for job in jobs}))
            reason = f"worker {self.name} does not know the task {names}"
        self._events.jobs_parked(self.name, jobs, reason)
        self._do_soon(self._park(jobs, reason))

    def _do_soon(self, giving_back: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(giving_back)
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def _park(self, jobs: Sequence[ClaimedJob], reason: str) -> None:
        try:
            await self._store.park(jobs, reason)
        except StorageError as error:
            self._return_later(jobs, error)
        else:
            self._let_go(jobs)

    def _return_later(self, jobs: Sequence[ClaimedJob], error: Exception) -> None:
        """Still held, so that their claims stay open, and given back as soon as that works."""
        self._returning += jobs
        self._unsure = True
        if self._is_damage(error):
            return
        log_event(
            log,
            logging.WARNING,
            "give_back_failed",
            "Worker %(worker)s could not give back %(jobs)s jobs: %(error)s",
            worker=self.name,
            jobs=len(jobs),
            error=str(error) or repr(error),
            exc_info=None if isinstance(error, StorageError) else error,
        )

    def _let_go(self, jobs: Sequence[ClaimedJob]) -> None:
        """Hold these jobs no longer: they have left their claims. (Before that, closing a claim
        would lose them.)"""
        for job in jobs:
            if job.id == self._quarantined:
                self._quarantined = None
            self._holdings.drop(job)


def _hold_until_due(
    jobs: Sequence[ClaimedJob], moment: datetime, *, read: float, sent: float, received: float
) -> float:
    """Say of each job when it may start; return the monotonic time that `claimed_at` stands for.

    The database's clock showed `moment` before `read`, so it shows a later time at the latest as
    long after `read` as that is after `moment`: nothing is early. `claimed_at` was read between
    `sent` and `received`. If it seems not to be, the clock was set in between: then the answer
    alone counts, and nothing is early or held for hours.
    """
    claimed_at = jobs[0].claimed_at
    claimed = read + (claimed_at - moment).total_seconds()
    if not sent <= claimed <= received:
        claimed = received
    for job in jobs:
        job.not_before = claimed + (job.run_at - claimed_at).total_seconds()
    return claimed


def _is_run(job: ClaimedJob) -> bool:
    """Whether the job is a run of a schedule: the planner lets it start."""
    return read_run_key(job.key) is not None
