"""The planner: decides on claimed runs of schedules, arms what follows, keeps the ledger.

No leader: each worker plans for the runs that it claimed, and any worker repairs what a crash
left undone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from math import inf
from typing import Any

import msgspec

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob
from duetime.domain.reminders.digest import DIGEST_TASK
from duetime.domain.reminders.reminder import REMIND_TASK
from duetime.domain.schedules.decide_run import Decision
from duetime.domain.schedules.schedule import TickStatus, read_run_key
from duetime.errors import DatabaseCorrupted, OlderRelease, StorageError, TransientError
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.reminders.digest_ends import DigestEnds
from duetime.storage.reminders.rearm import RearmStatements
from duetime.storage.schedules.changes import ScheduleStatements
from duetime.storage.schedules.rows import ClaimedRun, Declarer, NewSchedule
from duetime.storage.schedules.runs import RunStatements
from duetime.storage.store import Statements, Store
from duetime.telemetry.events import Events, log_event

log = logging.getLogger("duetime.planner")

REPAIR_SECONDS = 1.0
_UNSETTLED_EVERY = 5
"""Every so many repairs, look for runs that ended and were not recorded."""
_MOST_KEPT = 10_000
_REMINDING = frozenset({REMIND_TASK, DIGEST_TASK})


class Planner:
    """A worker's planner. `run`, `skip` and `wait` are what it tells the worker to do."""

    def __init__(
        self,
        store: Store,
        events: Events,
        *,
        worker: str,
        knows: Callable[[str], bool],
        run: Callable[[Sequence[ClaimedJob], float], None],
        skip: Callable[[ClaimedJob, AttemptOutcome, str], None],
        wait: Callable[[Sequence[ClaimedJob]], Awaitable[None]],
        declarer: Declarer | None = None,
        optional: bool = False,
    ) -> None:
        self._store = store
        self._schedules = ScheduleStatements(store.dialect)
        self._statements = RunStatements(store.dialect)
        self._events = events
        self._worker = worker
        self._knows = knows
        self._declarer = declarer or Declarer()
        self._run = run
        self._skip = skip
        self._wait = wait
        self._admitted: dict[int, ClaimedRun] = {}
        """By their jobs: they wait for their time, or for a runner."""
        self._begun: list[ClaimedRun] = []
        self._decided: set[int] = set()
        self._ended: list[int] = []
        self._reminded: list[int] = []
        self._digested: list[int] = []
        self._reminders = DeliveryStatements(store.dialect)
        self._digests = DigestEnds(store.dialect)
        self._marks = RearmStatements(store.dialect)
        self._keeping: asyncio.Task[None] | None = None
        self._repairs = 0
        self._unreadable: set[str] = set()
        """Schedules that were reported as left to others."""
        self.optional = optional
        """Runs start even if the schedule tables fail."""

    async def apply(self, declared: Sequence[NewSchedule]) -> None:
        """Store what the code declares, as it is now; an operator's pause stays. What an older
        release declares is not stored."""
        if not declared and not self._declarer.release:
            return
        try:
            answer = await self._transact(
                self._schedules.apply(declared, actor="code", prune=False, declarer=self._declarer),
                computes=True,
            )
        except OlderRelease as error:
            self._events.outdated_release(self._worker, error.service, error.release, error.newest)
            return
        for name, change in answer.items():
            if change != "same":
                self._events.schedule_changed(self._worker, name, change)

    async def admit(self, jobs: Sequence[ClaimedJob], received: float) -> None:
        """Let claimed runs start, unless their schedule says otherwise."""
        claimed = {job.id: job for job in jobs}
        for job in jobs:
            job.start_by = inf
        try:
            runs = await self._transact(self._statements.gate(list(claimed)), reads=True)
        except TransientError:
            raise
        except StorageError as error:
            if not self.optional:
                raise
            log_event(
                log,
                logging.WARNING,
                "ledger_delayed",
                "What follows a run could not be written at once: %(error)s",
                worker=self._worker,
                error=str(error),
            )
            runs = []
        # What this worker does not know it does not decide on: it is parked.
        runs = [run for run in runs if self._knows(claimed[run.job_id].task)]
        unclear = [run for run in runs if not self._may_start(run, claimed[run.job_id])]
        held = {run.job_id for run in unclear}
        for run in runs:
            job = claimed[run.job_id]
            # A retry is in the ledger already, unless its first worker died too soon.
            if run.job_id not in held and (run.status is TickStatus.ARMED or not run.clear):
                self._let_start(run, job, received)
        # What the ledger does not know (it was pruned, or the key is a stranger's) runs as any job.
        self._run([job for job in jobs if job.id not in held], received)
        wait = max(job.not_before for job in jobs) - time.monotonic()
        if unclear and wait > 0.0:
            # Claimed ahead of its time: what stands in the way may end before that.
            await asyncio.sleep(wait)
            await self.admit([claimed[run.job_id] for run in unclear], received)
        elif unclear:
            decisions = await self._transact(
                self._statements.decide(unclear, self._worker), computes=True
            )
            await self._follow(decisions, claimed, unclear, received)

    def _let_start(self, run: ClaimedRun, job: ClaimedJob, received: float) -> None:
        self._admitted[run.job_id] = run
        if run.start_by is not None and job.attempt == 1:
            job.start_by = received + (run.start_by - job.claimed_at).total_seconds()

    def began(self, job: ClaimedJob) -> None:
        """The job's handler starts."""
        run = self._admitted.pop(job.id, None)
        if run is not None:
            self._begun.append(run)
            self._keep_soon()

    async def withdraw(self, jobs: Sequence[ClaimedJob]) -> None:
        """These are given back before they began: to be decided on again."""
        runs = [self._admitted[job.id] for job in jobs if job.id in self._admitted]
        if decided := [run for run in runs if run.previous_status is not None]:
            await self._transact(self._statements.withdraw(decided, self._worker))
        self.forget(jobs)

    def forget(self, jobs: Iterable[ClaimedJob]) -> None:
        """These do not begin here, and are not given back either."""
        for job in jobs:
            self._admitted.pop(job.id, None)

    def _may_start(self, run: ClaimedRun, job: ClaimedJob) -> bool:
        """A run that has begun goes on, whatever its schedule says since."""
        return run.clear if job.attempt == 1 else not run.unbegun

    async def _follow(
        self,
        decisions: dict[int, Decision],
        claimed: dict[int, ClaimedJob],
        runs: Sequence[ClaimedRun],
        received: float,
    ) -> None:
        run, wait = [], []
        looked = {run.job_id: run for run in runs}
        for job_id, decision in decisions.items():
            job = claimed[job_id]
            if decision.action == "run":
                run.append(job)
                self._let_start(_decided(looked[job_id], decision), job, received)
            elif decision.action == "skip":
                self._events.tick_skipped(self._worker, job, decision.status, decision.reason or "")
                self._skip(
                    job, _ENDS.get(decision.status, AttemptOutcome.CANCELLED), decision.reason or ""
                )
            else:
                job.run_at = decision.at or job.run_at
                wait.append(job)
        self._run(run, received)
        cancel = [job_id for decision in decisions.values() for job_id in decision.cancel]
        if cancel:
            await self._store.cancel_many(
                cancel, reason="cancelled: the next run of its schedule is due"
            )
        if wait:
            await self._wait(wait)
            waiting = {looked[job.id].schedule_id for job in wait}
            await self._transact(self._statements.nudge(sorted(waiting)))
        self._decided |= {run.schedule_id for run in runs}
        self._keep_soon()

    def ended(self, jobs: Sequence[ClaimedJob]) -> None:
        """Jobs have ended for good; runs go into the ledger, reminders are told."""
        self.forget(jobs)
        runs = [job.id for job in jobs if read_run_key(job.key) is not None]
        reminded = [job for job in jobs if job.task in _REMINDING]
        if runs or reminded:
            self._ended += runs
            self._reminded += [job.id for job in reminded if job.task == REMIND_TASK]
            self._digested += [job.id for job in reminded if job.task == DIGEST_TASK]
            self._keep_soon()

    async def repair(self) -> float:
        """Plan on where nobody has; record what nobody did. Returns the seconds until the next."""
        if self._begun or self._ended:
            self._keep_soon()
        if await self._transact(self._statements.due(), reads=True):
            planned = await self._transact(self._statements.repair(), computes=True)
            if planned:
                log_event(
                    log,
                    logging.INFO,
                    "schedules_repaired",
                    "Worker %(worker)s planned %(count)s schedules that were overdue.",
                    worker=self._worker,
                    count=planned,
                )
                # There may be more: a long outage is planned in parts.
                return 0.01
        if self._repairs % _UNSETTLED_EVERY == 0:
            jobs = await self._transact(self._statements.unsettled(), reads=True)
            if jobs:
                await self._settle(jobs)
            jobs = await self._store.transact(self._reminders.unsettled(), reads=True)
            if jobs:
                await self._store.transact(self._reminders.settle(jobs))
            await self._end_digests(None)
            await self._repair_marks()
        self._repairs += 1
        return REPAIR_SECONDS

    async def _end_digests(self, jobs: Sequence[int] | None) -> None:
        """What is in a digest that failed ends with it. `jobs`: only the digests of these."""
        for digest in await self._store.transact(self._digests.failed(jobs), reads=True):
            while await self._store.transact(self._digests.fail(digest)):
                pass

    async def _repair_marks(self) -> None:
        """Subjects that are to be armed again must not wait for a job that is gone."""
        if await self._store.transact(self._marks.overdue(), reads=True) and (
            await self._store.transact(self._marks.repair())
        ):
            log_event(
                log,
                logging.INFO,
                "rearm_repaired",
                "Worker %(worker)s enqueued a lost job that arms reminders again.",
                worker=self._worker,
            )

    async def next_repair(self) -> datetime | None:
        """When `repair` has something to do, if nothing is claimed before."""
        at: datetime | None = await self._transact(self._statements.next_due(), reads=True)
        return at

    async def kept(self) -> None:
        """Wait until the ledger is up to date with what happened here."""
        while self._keeping is not None:
            await asyncio.wait([self._keeping])

    def _keep_soon(self) -> None:
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="duetime-planner")

    async def _keep(self) -> None:
        """One batch at a time: what comes meanwhile is the next."""
        begun: list[ClaimedRun] = []
        ended: list[int] = []
        try:
            while self._begun or self._decided or self._ended or self._reminded or self._digested:
                begun, self._begun = self._begun, []
                decided, self._decided = self._decided, set()
                ended, self._ended = self._ended, []
                if begun or decided:
                    await self._transact(
                        self._statements.advance(begun, self._worker, decided=decided),
                        computes=True,
                    )
                    begun = []
                if ended:
                    await self._settle(ended)
                    ended = []
                if self._reminded:
                    reminded, self._reminded = self._reminded, []
                    await self._store.transact(self._reminders.settle(reminded))
                if self._digested:
                    digested, self._digested = self._digested, []
                    await self._end_digests(digested)
        except StorageError as error:
            # Repaired within seconds, by this worker or another; that they have begun only this one
            # knows.
            self._begun = [*begun, *self._begun][:_MOST_KEPT]
            self._ended = [*ended, *self._ended][:_MOST_KEPT]
            if not isinstance(error, DatabaseCorrupted):
                log_event(
                    log,
                    logging.WARNING,
                    "ledger_delayed",
                    "What follows a run could not be written at once: %(error)s",
                    worker=self._worker,
                    error=str(error),
                )
        finally:
            self._keeping = None

    async def _transact(
        self, statements: Statements, *, reads: bool = False, computes: bool = False
    ) -> Any:
        """Run statements of schedules; report those that were set aside, or are not for us."""
        answer = await self._store.transact(statements, reads=reads, computes=computes)
        for planning in (self._schedules, self._statements):
            for name, reason in planning.set_aside.items():
                self._events.schedule_broken(self._worker, name, reason)
            for name in planning.unreadable.keys() - self._unreadable:
                self._events.schedule_unreadable(self._worker, name, planning.unreadable[name])
            self._unreadable |= planning.unreadable.keys()
            planning.set_aside.clear()
            planning.unreadable.clear()
        return answer

    async def _settle(self, jobs: Sequence[int]) -> None:
        for name in await self._transact(self._statements.settle(jobs), computes=True):
            self._events.schedule_changed(self._worker, name, "paused")


def _decided(run: ClaimedRun, decision: Decision) -> ClaimedRun:
    """What the ledger says of a run that may start. Once it waited, or was late, no start of it is
    late."""
    on_time = run.status is not TickStatus.WAITING and decision.status is TickStatus.FIRED
    return msgspec.structs.replace(
        run,
        status=decision.status,
        start_by=run.start_by if on_time else None,
        previous_status=run.status,
    )


_ENDS = {TickStatus.COALESCED: AttemptOutcome.SUPERSEDED}
