"""A worker's loop: send what ended, claim what is due, and sleep in between."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from random import uniform

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.jobs.outcome import NOT_STORED
from duetime.domain.reasons import Reason
from duetime.engine.clock import DatabaseClock
from duetime.engine.executor import end_as_completed
from duetime.engine.followers import Follower, Followers, WorkerView
from duetime.engine.holdings import Holdings
from duetime.engine.hooks import Hooks
from duetime.engine.lanes import Lanes
from duetime.engine.lease import Lease
from duetime.engine.options import WorkerOptions
from duetime.engine.pace import Pace
from duetime.engine.returns import Returns
from duetime.engine.runners import Runners
from duetime.engine.services import OUTAGE_SECONDS, backoff
from duetime.engine.stopping import Stopping
from duetime.errors import (
    DataRejected,
    StorageError,
    TransactionConflict,
    TransientError,
)
from duetime.storage.store import Exchange
from duetime.telemetry.events import log_event
from duetime.telemetry.outage import Outage

log = logging.getLogger("duetime.worker")

_LINGER_SECONDS = 0.002
_AGAIN_AFTER = timedelta(seconds=5)
_LATE_SECONDS = 60.0
"""A claim whose connection broke may still wait in the database for a lock, and be made later, no
matter how much: so look for it again and again."""


class Loop:
    """Moves jobs between the store and the runners, under the worker's lease."""

    runners: Runners

    def __init__(
        self,
        worker: WorkerView,
        options: WorkerOptions,
        followers: Followers,
        *,
        lease: Lease,
        stopping: Stopping,
    ) -> None:
        self._worker = worker.name
        self._store = worker.store
        self._tasks = worker.tasks
        self._events = worker.events
        self._options = options
        self._followers = followers
        self._followed_tasks = followers.tasks
        self._lease = lease
        self._stopping = stopping
        self._clock = DatabaseClock()
        self._lanes = Lanes(options.queues)
        self._log_started = worker.events.job_started(worker.name)
        self.holdings = Holdings()
        self.pace = Pace(worker.name, options, worker.events, self._clock)
        self.returns = Returns(worker, self.holdings, followers, stopping, failed=self._call_failed)
        self.outage = Outage(worker.name)
        self._limited: list[str] = []
        """The worker's queues that have limits."""
        self.unsure = False
        """A call failed: what it did is unknown until settled."""
        self._refusal: StorageError | None = None
        """Why the database refused the last call, though it could be reached."""
        self.failures = 0
        self._look_back_at = math.inf
        """When to look again for claims that we do not know of."""
        self._asking: set[asyncio.Task[None]] = set()
        self._finishing: asyncio.Task[None] | None = None
        self._quarantined: ClaimedJob | None = None
        self._quarantine_next = False
        self._claiming = asyncio.Lock()

    def open(self, hooks: Hooks) -> None:
        """Make the runners, on the running event loop."""
        self.runners = Runners(
            self._tasks,
            store=self._store,
            worker=self._worker,
            concurrency=self._options.concurrency,
            ended=self._job_ended,
            started=self._job_started,
            late=self._ask_again,
            stuck=partial(self._events.job_stuck, self._worker),
            hooks=hooks,
        )

    async def step(self) -> None:
        """Send what ended, claim what is due; or, if there is neither, sleep."""
        try:
            if self.unsure or time.monotonic() >= self._look_back_at:
                await self._make_sure()
            for job_id in await self.pace.sleeper.cancelled_jobs():
                self.runners.cancel(job_id)
            if self._quarantine_next:
                self._quarantine_next = False
                await self.claim_quarantined()
            room = self.runners.room(2 * self._options.batch) if self.pace.look else 0
            if room > 0:
                await self._linger(room)
                await self._exchange(min(room, self._options.batch))
            elif self.holdings.to_send:
                await self._linger(len(self.holdings.ended))
                await self._exchange(0)
            else:
                await self.pace.rest()
            self.failures = 0
            self.outage.worked("worker")
        except StorageError as error:
            self.unsure = True
            self.pace.look = True
            if isinstance(error, TransientError) or self._refusal is not None:
                self._refusal = None
                await self.back_off(error)
            else:
                self._refusal = error

    async def _make_sure(self) -> None:
        """Find out what a call did that failed. If the database refused it, and not for the
        connection, it was perhaps a claim, and for one row of those that it takes."""
        self.unsure = True
        await self.settle()
        refusal, self._refusal = self._refusal, None
        if refusal is not None and not await self._park_unreadable():
            await self.back_off(refusal)

    async def _park_unreadable(self) -> bool:
        try:
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
                worker=self._worker,
                job=job_id,
                error=reason,
            )
        return bool(parked)

    async def _linger(self, size: int) -> None:
        # With work at hand, a small exchange can wait a moment and become a larger one.
        if self.runners.waiting and size < self._options.batch // 2:
            await asyncio.sleep(_LINGER_SECONDS)

    async def _exchange(self, want: int) -> None:
        """One round trip for both. While there is more than we can claim, the ends go beside."""
        if want and self.pace.more:
            if self.holdings.to_send and self._finishing is None:
                self._finishing = asyncio.create_task(self._send(0), name="duetime-finish")
                self._finishing.add_done_callback(self._finished)
            await self._send(want, finish=False)
        else:
            await self._await_finish()
            if not self.unsure:
                await self._send(want)

    def _finished(self, finishing: asyncio.Task[None]) -> None:
        self._finishing = None
        error = None if finishing.cancelled() else finishing.exception()
        if error is not None and not self._call_failed(error):
            log_event(
                log,
                logging.WARNING,
                "finish_failed",
                "Worker %(worker)s could not record finished jobs and tries again: %(error)s",
                worker=self._worker,
                error=str(error),
            )

    async def _await_finish(self) -> None:
        if self._finishing is not None:
            await asyncio.wait([self._finishing])

    async def _send(self, want: int, *, finish: bool = True) -> None:
        pace = self.pace
        early, pace.early = pace.early and want > 0, False
        if early:
            # By itself: an answer to a claim comes long after its clock was read.
            moment, read = await self._store.now(), time.monotonic()
        if self._stopping or self._lease.fenced is not None:
            # Since we began to wait: what is claimed now would only be given back, or lost.
            want = 0
        ended, closed = self.holdings.take() if finish else ([], [])
        look_ahead = pace.look_ahead or early
        sent = time.monotonic()
        try:
            answer = await self._store.exchange(
                self._lease.worker_id,
                ended=ended,
                closed=closed,
                lanes=self._lanes.in_turn() if want else (),
                want=want,
                look_ahead=want > 0 and look_ahead,
                lead=pace.lead if early else 0.0,
            )
        except BaseException:
            self.holdings.put_back(ended, closed)
            raise
        received = time.monotonic()
        if answer.now is not None:
            self._clock.set(answer.now, sent=sent, received=received)
            if early and answer.claimed:
                received = _hold_until_due(
                    answer.claimed, moment, read=read, sent=sent, received=received
                )
        if answer.lease_lost:
            self._lease.fence("the lease had run out")
        self._accept(answer.claimed, received)
        self._report(ended, answer)
        if want:
            claimed = len(answer.claimed)
            if self._limited and self._lease.fenced is None:
                claimed += await self._claim_limited(answer)
            pace.more = claimed >= want and not early
            if pace.more:
                self._lanes.raise_floors(answer.claimed)
            else:
                self._lanes.forget_floors()
            await pace.after_look(
                answer.next_run_at, claimed=claimed > 0, looked_ahead=look_ahead, early=early
            )

    async def _claim_limited(self, answer: Exchange) -> int:
        """From limited queues only what the runners can take next: it counts as running."""
        held = sum(job.limited for job in self.holdings)
        more = await self._store.exchange(
            self._lease.worker_id,
            limited=self._limited,
            want=max(0, self._options.concurrency - held),
            look_ahead=True,
        )
        self._accept(more.claimed, time.monotonic())
        times = [at for at in (answer.next_run_at, more.next_run_at) if at is not None]
        answer.next_run_at = min(times) if times else None
        return len(more.claimed)

    # What was claimed

    def _accept(self, jobs: Sequence[ClaimedJob], received: float) -> None:
        if not self._lease.holds():
            # Answered too late: they may not begin here. Others may, and nothing counts.
            self.returns.give_back_soon(jobs)
            return
        self.holdings.add(jobs)
        self._events.jobs_claimed(self._worker, jobs)
        if any(name not in self._tasks for name in {job.task for job in jobs}):
            self.returns.park_unknown([job for job in jobs if job.task not in self._tasks])
            jobs = [job for job in jobs if job.task in self._tasks]
        free, gated = self._followers.split(jobs)
        if free:
            self.runners.put(free, received=received)
        for follower, mine in gated.items():
            self._ask_soon(follower, mine, received)

    def _ask_soon(self, follower: Follower, jobs: Sequence[ClaimedJob], received: float) -> None:
        asking = asyncio.create_task(self._ask(follower, _Gate(self, jobs, received)))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    def _ask_again(self, job: ClaimedJob, received: float) -> None:
        """No runner was free while a start was on time."""
        _, gated = self._followers.split([job])
        for follower in gated:
            self._ask_soon(follower, [job], received)

    async def _ask(self, follower: Follower, gate: _Gate) -> None:
        try:
            await follower.before_start(list(gate.undecided.values()), gate.received, gate)
            if gate.undecided:
                raise RuntimeError(f"{follower.name} did not decide on {len(gate.undecided)} jobs")
        except Exception as error:  # noqa: BLE001 -- whatever it was, the jobs are given back.
            left = [job for job in gate.undecided.values() if self.holdings.holds(job)]
            now = self._clock.now()
            if not isinstance(error, StorageError) and now is not None:
                # It may well happen again: not at once.
                for job in left:
                    job.run_at = max(job.run_at, now + _AGAIN_AFTER)
            self.returns.give_back_later(left, error)
            self.pace.sleeper.interrupt()

    async def decided(self) -> None:
        """Wait until followers have decided on what they were asked about, and it is given back."""
        while self._asking or self.returns.under_way:
            await asyncio.gather(*self._asking, *self.returns.under_way)

    def start(self, jobs: Sequence[ClaimedJob], received: float) -> list[ClaimedJob]:
        """Start what is still ours: the lease may have been lost while a follower looked. Returns
        the others."""
        if not self._lease.holds():
            self.returns.give_back_soon(jobs)
            return []
        self.runners.put([job for job in jobs if self.holdings.holds(job)], received=received)
        return [job for job in jobs if not self.holdings.holds(job)]

    async def claim_quarantined(self) -> None:
        """One at a time: if it takes this worker down too, it takes nothing else with it."""
        if self._stopping or self._lease.fenced is not None or not self.runners.free:
            return
        held = self._quarantined
        if self._claiming.locked() or (held is not None and self.holdings.holds(held)):
            return
        worker_id = self._lease.worker_id
        try:
            async with self._claiming:
                jobs = await self._store.claim_quarantined(worker_id, self._options.queues)
                if worker_id == self._lease.worker_id:
                    self._accept(jobs, time.monotonic())
                    self._quarantined = next(iter(jobs), None)
                else:
                    self.returns.give_back_soon(jobs)
        except BaseException:
            # It may hold a job that we do not know of.
            self.unsure = True
            raise

    # What began, and what ended

    def _job_started(self, job: ClaimedJob) -> None:
        self._log_started(job)
        if job.key is not None or job.task in self._followed_tasks:
            self._followers.started(job)

    def _job_ended(self, job: ClaimedJob, end: FinishedJob | None) -> None:
        if job is self._quarantined:
            self._quarantine_next = True
        if not self.holdings.drop(job):
            if end is not None:
                # Lost: nobody logs it. See `Events.jobs_finished`.
                end.exception = None
            return
        ended = self.holdings.ended
        if end is not None and not end.recorded:
            ended.append(end)
        elif end is not None:
            self._followers.finished([end])
            self._events.jobs_finished(self._worker, [end])
        if job.limited:
            self.pace.look = True
        if len(ended) <= 1:
            self.pace.sleeper.interrupt()

    def skip(self, job: ClaimedJob, outcome: AttemptOutcome, reason: Reason) -> None:
        """End a job without running it."""
        self._job_ended(job, FinishedJob.because(job, outcome, reason))

    def _report(self, ended: Sequence[FinishedJob], answer: Exchange) -> None:
        refused = answer.refused
        for end in ended if refused else ():
            if end.completed_before and end.job.id in refused:
                end_as_completed(end)
        if answer.cancelled:
            for end in ended:
                if end.job.id in answer.cancelled:
                    end.outcome, end.again_after = AttemptOutcome.CANCELLED, None
        self._followers.finished(ended)
        if not refused:
            self._events.jobs_finished(self._worker, ended)
            return
        self._events.jobs_finished(
            self._worker,
            [end for end in ended if end.completed_before or end.job.id not in refused],
        )
        for end in ended:
            if end.job.id in refused and not end.completed_before:
                self._events.claim_lost(self._worker, end)

    # After a call that failed

    def _call_failed(self, error: BaseException) -> bool:
        """What a call did is unknown. Returns whether the database is damaged."""
        self.unsure = True
        return self._stopping.is_damage(error)

    async def settle(self) -> None:
        """Record what ended; idempotent, whatever became of an earlier try."""
        await self._await_finish()
        ended, closed = self.holdings.take()
        if ended or closed:
            try:
                answer = await self._record(ended, closed)
            except BaseException:
                self.holdings.put_back(ended, closed)
                raise
            self._report(ended, answer)
        await self.returns.retry()
        if self.unsure:
            async with self._claiming:
                await self._store.disown(
                    self._lease.worker_id, self.holdings.tokens, lead=self.pace.lead
                )
            self.unsure = False
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
            end.error_code, end.error = NOT_STORED, f"The database refused its outcome: {error}"
            end.result = end.traceback = None
            return await self._store.settle([end], [])

    async def back_off(self, error: StorageError) -> None:
        """Wait until it makes sense to ask the database again."""
        if self._stopping.is_damage(error):
            return
        self.failures += 1
        wait = OUTAGE_SECONDS
        if isinstance(error, TransactionConflict):
            # Who was in the way has gone on. Not all at the same moment.
            wait = backoff(self.failures) * uniform(0.0, 0.1)
            self._events.transaction_conflict(self._worker, str(error), wait)
        else:
            self.outage.failed("worker", error, wait)
        lease, deadline = self._lease, time.monotonic() + wait
        fenced = lease.fenced
        while time.monotonic() < deadline and not self._stopping and lease.fenced == fenced:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def read_limits(self) -> None:
        """Read which of the worker's queues have limits."""
        limited = await self._store.limited_queues()
        self._limited = [queue for queue in self._options.queues if queue in limited]

    def forget(self) -> None:
        """Nothing is held any more: the lease was lost, and everything else is settled."""
        self.holdings.forget()
        self.returns.waiting.clear()


class _Gate:
    """What becomes of jobs that a follower was asked about."""

    def __init__(self, loop: Loop, jobs: Sequence[ClaimedJob], received: float) -> None:
        self._loop = loop
        self.received = received
        self.undecided = {job.id: job for job in jobs}

    def start(self, jobs: Sequence[ClaimedJob]) -> Sequence[ClaimedJob]:
        self._decide(jobs)
        return self._loop.start(jobs, self.received)

    def skip(self, job: ClaimedJob, outcome: AttemptOutcome, reason: Reason) -> None:
        self._decide([job])
        self._loop.skip(job, outcome, reason)

    async def postpone(self, jobs: Sequence[ClaimedJob]) -> None:
        self._decide(jobs)
        await self._loop.returns.give_back(jobs)

    def park(self, job: ClaimedJob, reason: Reason) -> None:
        self._decide([job])
        self._loop.returns.leave(job, reason)

    def _decide(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            del self.undecided[job.id]


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
