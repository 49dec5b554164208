"""The planner: decides on claimed runs of schedules, arms what follows, keeps the ledger.

No leader: each worker plans for the runs that it claimed, and any worker repairs what a crash
left undone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import datetime
from math import inf
from random import uniform
from typing import Any

import msgspec

from duetime.domain.checks import RUN_KEYS
from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.keys import read_run_key
from duetime.domain.reasons import Reason
from duetime.domain.schedules.decide_run import Decision
from duetime.domain.schedules.schedule import TickStatus
from duetime.engine.followers import Follower, Gate, Upkeep, WorkerView
from duetime.engine.services import AGAIN_SECONDS, GO_ON_SECONDS, PRUNE_BATCH, Service
from duetime.errors import (
    DatabaseCorrupted,
    InvalidArguments,
    OlderRelease,
    StorageError,
    TransientError,
)
from duetime.schedules.events import ScheduleEvents
from duetime.schedules.memory import MemorySchedules
from duetime.settings import Settings
from duetime.storage.jobs.changes import JobStatements
from duetime.storage.schedules.changes import ScheduleStatements
from duetime.storage.schedules.rows import ClaimedRun, Declarer, NewSchedule
from duetime.storage.schedules.runs import RunStatements
from duetime.storage.store import Statements
from duetime.telemetry.events import log_event

log = logging.getLogger("duetime.planner")

_REPAIR_SECONDS = 1.0
_UNRECORDED_EVERY = 5
"""How many checks pass between two searches for runs that finished and were not recorded."""
_PAUSES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""After so many seconds the schedules are tried again that another transaction had locked."""
_MAX_TRIES = 150
"""After so many, about half a minute, a run that nobody could decide on waits for the lock, and is
given back if that takes as long as no call may."""
_MANY = 10
_AFTER_STARTS_SECONDS = (0.05, 0.15)
"""After many runs have started together, this is when what follows them is written: not by all
workers at the same moment."""
_FALLBACK_SECONDS = 5.0
"""How often schedules that fell back to memory try their table again."""
_MAX_KEPT = 10_000


class Planner(Follower):
    """Follows the runs of schedules for one worker."""

    name = "planner"
    key_prefix = RUN_KEYS
    gates = True
    check_every = _REPAIR_SECONDS

    def __init__(
        self, worker: WorkerView, declared: Sequence[NewSchedule], settings: Settings
    ) -> None:
        self._worker = worker.name
        self._store = worker.store
        self._events = ScheduleEvents(worker.name)
        self._tally = worker.events.tally
        self._tasks = worker.tasks
        self._declared = declared
        self._declarer = Declarer(settings.service, settings.release)
        self._fallback = settings.schedule_fallback
        """If the schedule tables fail, runs start all the same, and declared schedules tick in
        memory."""
        self._fallen_back = False
        self._retention = settings.retention["tick"]
        self._pruned_to = 0
        """The id of the schedule to continue after."""
        self._schedules = ScheduleStatements(self._store.dialect)
        self._statements = RunStatements(self._store.dialect)
        self._memory = MemorySchedules(self._store)
        self._admitted: dict[int, ClaimedRun] = {}
        """By their jobs: they wait for their time, or for a runner."""
        self._begun: list[ClaimedRun] = []
        self._decided: set[int] = set()
        self._ended: list[int] = []
        self._ledger = Upkeep("duetime-planner", self._keep_ledger)
        self._tries = 0
        """How often in a row schedules were locked by others."""
        self._checks = 0
        self._searches = True
        """Whether the next repair looks for runs that finished and were not recorded."""
        self._unreadable: set[str] = set()
        """Schedules that were reported as left to others."""

    # Declared schedules

    async def open(self) -> None:
        """Store what the code declares; what is not to be stored ticks in memory."""
        stored = [schedule for schedule in self._declared if schedule.stored]
        memory = [schedule for schedule in self._declared if not schedule.stored]
        try:
            await self._apply(stored)
        except StorageError as error:
            if not self._fallback or isinstance(error, TransientError):
                raise
            if not self._fallen_back:
                self._events.fallback_started(len(stored), str(error))
            self._fallen_back = True
            memory = list(self._declared)
        else:
            if self._fallen_back:
                self._events.fallback_ended(len(stored))
            self._fallen_back = False
        self._memory.schedules = memory

    async def _apply(self, declared: Sequence[NewSchedule]) -> None:
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
            self._events.outdated_release(error.service, error.release, error.newest)
            return
        for name, change in answer.items():
            if change != "same":
                self._events.changed(name, change)

    # Before a run starts

    async def before_start(self, jobs: Sequence[ClaimedJob], received: float, gate: Gate) -> None:
        """Let claimed runs start, unless their schedule says otherwise."""
        fitting = [job for job in jobs if self._fits(job, gate)]
        if fitting:
            await self._admit(fitting, received, gate)

    def _fits(self, job: ClaimedJob, gate: Gate) -> bool:
        """Park a run whose arguments do not fit the task as this worker knows it. In a rolling
        deploy a worker of another release knows it otherwise. Arguments that are so large that
        they are read at the start are not checked."""
        try:
            if job.args is not None:
                self._tasks[job.task].decode(job.args)
        except InvalidArguments as error:
            why = {"worker": self._worker, "text": str(error)}
            gate.park(job, Reason.of("arguments_unusable", **why))
            return False
        return True

    async def _admit(self, jobs: Sequence[ClaimedJob], received: float, gate: Gate) -> None:
        claimed = {job.id: job for job in jobs}
        for job in jobs:
            job.start_by = inf
        try:
            runs = await self._transact(self._statements.gate(list(claimed)), reads=True)
        except TransientError:
            raise
        except StorageError as error:
            if not self._fallback:
                raise
            self._report_delay(error)
            runs = []
        unclear = [run for run in runs if not self._may_start(run, claimed[run.job_id])]
        held = {run.job_id for run in unclear}
        for run in runs:
            job = claimed[run.job_id]
            # A retry is in the ledger already, unless its first worker died too soon.
            if run.job_id not in held and (run.status is TickStatus.ARMED or not run.clear):
                self._let_start(run, job, received)
        # What the ledger does not know (it was pruned, or the key is a stranger's) runs as any job.
        self._start([job for job in jobs if job.id not in held], gate)
        wait = max(job.not_before for job in jobs) - time.monotonic()
        if unclear and wait > 0.0:
            # Claimed ahead of its time: what stands in the way may end before that.
            await asyncio.sleep(wait)
            await self._admit([claimed[run.job_id] for run in unclear], received, gate)
        elif unclear:
            await self._decide(unclear, claimed, received, gate)

    async def _decide(
        self,
        runs: Sequence[ClaimedRun],
        claimed: dict[int, ClaimedJob],
        received: float,
        gate: Gate,
    ) -> None:
        tries = 0
        while runs:
            decide = self._statements.decide(runs, self._worker, waits=tries >= _MAX_TRIES)
            decisions = await self._transact(decide, computes=True)
            decided = [run for run in runs if run.job_id in decisions]
            if decided:
                await self._follow(decisions, claimed, decided, received, gate)
            runs = [run for run in runs if run.job_id not in decisions]
            if runs:
                await asyncio.sleep(_pause_after(tries))
                tries += 1

    def _let_start(self, run: ClaimedRun, job: ClaimedJob, received: float) -> None:
        self._admitted[run.job_id] = run
        if run.start_by is not None and job.attempt == 1:
            job.start_by = received + (run.start_by - job.claimed_at).total_seconds()

    def _start(self, jobs: Sequence[ClaimedJob], gate: Gate) -> None:
        for lost in gate.start(jobs):
            self._admitted.pop(lost.id, None)

    def _may_start(self, run: ClaimedRun, job: ClaimedJob) -> bool:
        """A run that has begun continues, whatever has changed in its schedule since."""
        return run.clear if job.attempt == 1 else not run.unbegun

    async def _follow(
        self,
        decisions: dict[int, Decision],
        claimed: dict[int, ClaimedJob],
        runs: Sequence[ClaimedRun],
        received: float,
        gate: Gate,
    ) -> None:
        run, wait = [], []
        checked = {run.job_id: run for run in runs}
        for job_id, decision in decisions.items():
            job = claimed[job_id]
            if decision.action == "run":
                run.append(job)
                self._let_start(_decided(checked[job_id], decision), job, received)
            elif decision.action == "skip":
                reason = decision.reason or Reason("tick_closed")
                self._tally.tick_skipped(decision.status)
                self._events.tick_skipped(job, decision.status, reason)
                gate.skip(job, _ENDS.get(decision.status, AttemptOutcome.CANCELLED), reason)
            else:
                job.run_at = decision.at or job.run_at
                wait.append(job)
        self._start(run, gate)
        cancel = [job_id for decision in decisions.values() for job_id in decision.cancel]
        if cancel:
            statements = JobStatements(self._store.dialect)
            await self._store.transact(
                statements.cancel_many(cancel, reason=Reason("next_run_due"))
            )
        if wait:
            await gate.postpone(wait)
            waiting = {checked[job.id].schedule_id for job in wait}
            await self._transact(self._statements.nudge(sorted(waiting)))
        self._decided |= {run.schedule_id for run in runs}
        self._ledger.soon()

    async def given_back(self, jobs: Sequence[ClaimedJob]) -> None:
        """Runs that were decided on, and do not start here, are to be decided on again."""
        runs = [self._admitted[job.id] for job in jobs if job.id in self._admitted]
        if decided := [run for run in runs if run.previous_status is not None]:
            await self._transact(self._statements.withdraw(decided, self._worker))
        for job in jobs:
            self._admitted.pop(job.id, None)

    # The ledger

    def started(self, job: ClaimedJob) -> None:
        run = self._admitted.pop(job.id, None)
        if run is not None:
            self._begun.append(run)
            self._write_ledger()

    def finished(self, jobs: Sequence[FinishedJob]) -> None:
        for finished in jobs:
            self._admitted.pop(finished.job.id, None)
            if read_run_key(finished.job.key) is not None:
                self._ended.append(finished.job.id)
        self._write_ledger()

    def _write_ledger(self) -> None:
        """What follows a run can wait for a moment, a start cannot. Of many that start together,
        others may be about to start elsewhere, and need the CPU first."""
        if len(self._admitted) + len(self._begun) + len(self._ended) >= _MANY:
            self._ledger.within(uniform(*_AFTER_STARTS_SECONDS))
        else:
            self._ledger.soon()

    async def flush(self) -> None:
        """Wait until the ledger is up to date with what happened here."""
        await self._ledger.done()

    async def _keep_ledger(self) -> None:
        begun, self._begun = self._begun, []
        decided, self._decided = self._decided, set()
        ended, self._ended = self._ended, []
        left: list[int] = []
        busy: set[int] = set()
        try:
            if begun or decided:
                busy = await self._transact(
                    self._statements.advance(begun, self._worker, decided=decided, waits=False),
                    computes=True,
                )
                begun = [run for run in begun if run.schedule_id in busy]
                decided &= busy
            if ended:
                left = await self._record_finished(ended)
                ended = left
        except StorageError as error:
            # Repaired within seconds, by this worker or another. Only this one knows which runs
            # have begun.
            self._keep(begun, set(), ended)
            if not isinstance(error, DatabaseCorrupted):
                self._report_delay(error)
            return
        if not busy and not left:
            self._tries = 0
            return
        self._keep(begun, decided, ended)
        await asyncio.sleep(_pause_after(self._tries))
        self._tries += 1
        self._ledger.soon()

    def _keep(self, begun: Sequence[ClaimedRun], decided: set[int], ended: Sequence[int]) -> None:
        self._begun = [*begun, *self._begun][:_MAX_KEPT]
        self._decided |= decided
        self._ended = [*ended, *self._ended][:_MAX_KEPT]

    def _report_delay(self, error: StorageError) -> None:
        log_event(
            log,
            logging.WARNING,
            "ledger_delayed",
            "What follows a run could not be written at once: %(error)s",
            worker=self._worker,
            error=str(error),
        )

    # Repair

    def check(self) -> Statements:
        self._checks += 1
        searches = self._checks % _UNRECORDED_EVERY == 1
        due, unrecorded = yield from self._statements.check(unrecorded=searches)
        self._searches = unrecorded
        # What could not be written here is tried again; schedules that fell back try their table.
        return due or unrecorded or self._fallen_back or bool(self._begun or self._ended)

    async def repair(self) -> float:
        """Plan schedules that were not planned on, and record runs that were not recorded."""
        if not self._fallen_back:
            try:
                return await self._repair()
            except StorageError as error:
                if not self._fallback or isinstance(error, TransientError):
                    raise
        await self.open()
        return _FALLBACK_SECONDS

    async def _repair(self) -> float:
        if self._begun or self._ended:
            self._ledger.soon()
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
        if self._searches:
            jobs = await self._transact(self._statements.find_unrecorded(), reads=True)
            if jobs:
                # Other workers find the same: what one of them has locked is left to it.
                await self._record_finished(jobs)
        return _REPAIR_SECONDS

    async def next_repair(self) -> datetime | None:
        at: datetime | None = await self._transact(self._statements.next_due(), reads=True)
        return at

    async def prune(self) -> float | None:
        prune = self._statements.prune(self._retention, self._pruned_to, batch=PRUNE_BATCH)
        pruned, self._pruned_to = await self._store.transact(prune)
        if pruned >= PRUNE_BATCH:
            return AGAIN_SECONDS
        return GO_ON_SECONDS if self._pruned_to else None

    def services(self) -> Sequence[Service]:
        return [Service("schedules in memory", self._memory.arm)]

    async def _transact(
        self, statements: Statements, *, reads: bool = False, computes: bool = False
    ) -> Any:
        """Run statements of schedules; report those that were set aside, or are not for us."""
        answer = await self._store.transact(statements, reads=reads, computes=computes)
        for planning in (self._schedules, self._statements):
            for name, reason in planning.set_aside.items():
                self._events.broken(name, str(reason))
            for name in planning.unreadable.keys() - self._unreadable:
                self._events.unreadable(name, planning.unreadable[name])
            self._unreadable |= planning.unreadable.keys()
            planning.set_aside.clear()
            planning.unreadable.clear()
        return answer

    async def _record_finished(self, jobs: Sequence[int]) -> list[int]:
        """Returns the jobs that could not be recorded, since others have locked their schedules."""
        left: list[int]
        record = self._statements.record_finished(jobs, waits=False)
        paused, left = await self._transact(record, computes=True)
        for name in paused:
            self._events.changed(name, "paused")
        return left


def _pause_after(tries: int) -> float:
    return _PAUSES[min(tries, len(_PAUSES) - 1)]


def _decided(run: ClaimedRun, decision: Decision) -> ClaimedRun:
    """The ledger's row of a run that may start. After it waited, or was late, its start is never
    late."""
    on_time = run.status is not TickStatus.WAITING and decision.status is TickStatus.FIRED
    return msgspec.structs.replace(
        run,
        status=decision.status,
        start_by=run.start_by if on_time else None,
        previous_status=run.status,
    )


_ENDS = {TickStatus.COALESCED: AttemptOutcome.SUPERSEDED}
