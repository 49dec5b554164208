"""What workers do for schedules: let claimed runs start, arm what follows, record how they ended.

Statements without I/O, for every backend.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.reasons import Reason
from duetime.domain.schedules.decide_run import Decision, decide
from duetime.domain.schedules.schedule import ENGINE_ACTOR, OpenRun, TickStatus
from duetime.storage.schedules.planning import Planning, Step
from duetime.storage.schedules.rows import MICROSECOND, ClaimedRun
from duetime.storage.store import Row, Statement, Statements

_PATIENCE = {"patience": timedelta(seconds=1) // MICROSECOND}
"""So long after a tick, nobody else will plan on."""
_SCHEDULES = 1000
"""Of how many schedules runs are removed at once."""
_LEFT_FOR = timedelta(seconds=1)
"""How long a run waits for a worker that can read its schedule, before any worker checks again."""


class RunStatements(Planning):
    """Every method is one transaction.

    Many workers do this at once, and for the same schedules once these lag behind. Unless it
    `waits`, a transaction leaves out the schedules that another one has locked, and its caller
    tries again. If it waited, it would keep others waiting for the locks that it has, and soon all
    of them would stand in line.
    """

    def gate(self, jobs: Sequence[int]) -> Statements:
        """Return `[ClaimedRun]` for those of the jobs that are runs. Reads only."""
        rows = yield from self._dialect.run("schedule_gate", list(jobs))
        moment = self._dialect.moment
        return [
            ClaimedRun(
                row[0], row[1], moment(row[2]), bool(row[3]), bool(row[4]), TickStatus(row[5]),
                None if row[6] is None else moment(row[6]),
            )
            for row in rows
        ]  # fmt: skip

    def decide(self, runs: Sequence[ClaimedRun], worker: str, *, waits: bool = True) -> Statements:
        """Decide on runs that are not clear; return `{job_id: Decision}`, without the runs of
        schedules that are locked.

        A run that may start has its place from now on. It begins when its handler does: `advance`.
        """
        if not waits:
            busy = yield from self._try_lock({run.schedule_id for run in runs})
            runs = [run for run in runs if run.schedule_id not in busy]
        if not runs:
            return {}
        now = yield from self._dialect.now()
        schedules = yield from self._lock(ids={run.schedule_id for run in runs})
        opened = yield from self._open(schedules)
        paced = yield from self._paced(
            {run.schedule_id: run.tick for run in sorted(runs, key=_tick, reverse=True)}, schedules
        )
        after = {s.policy.after for s in schedules.values() if s.policy.after is not None}
        succeeded = yield from self._succeeded(sorted(after))
        decisions: dict[int, Decision] = {}
        marks = []
        mine = {run.job_id for run in runs}
        for schedule in schedules.values():
            if schedule.broken is not None:
                continue
            if schedule.unreadable is not None:
                left = Decision("wait", TickStatus.ARMED, at=now + _LEFT_FOR)
                decisions |= {run.job_id: left for run in runs if run.schedule_id == schedule.id}
                continue
            others = {run.job_id: run for run in opened[schedule.id]}
            for job_id in [job_id for job_id in others if job_id in mine]:
                run = others.pop(job_id)
                decision = decide(
                    schedule,
                    run,
                    now=now,
                    others=list(others.values()),
                    succeeded_at=succeeded.get(schedule.policy.after or ""),
                    paced_until=paced.get(schedule.id),
                )
                decisions[job_id] = decision
                if decision.run_at is not None:
                    paced[schedule.id] = decision.run_at + schedule.policy.pace
                if decision.action != "skip":
                    others[job_id] = msgspec.structs.replace(
                        run, status=decision.status, begun=decision.action == "run"
                    )
                marks.append(_mark(run, decision, worker))
        if marks:
            yield from self._dialect.run("schedule_mark", marks)
        # A run that is skipped leaves its place to those that wait for it: nothing else
        # releases them, as it never finishes.
        if skipped := {mark["schedule_id"] for mark in marks if mark["done"]}:
            yield from self.nudge(sorted(skipped))
        gone = Decision("skip", TickStatus.SKIPPED, Reason("tick_closed"))
        return {run.job_id: decisions.get(run.job_id, gone) for run in runs}

    def advance(
        self,
        begun: Sequence[ClaimedRun],
        worker: str,
        *,
        decided: Iterable[int] = (),
        waits: bool = True,
    ) -> Statements:
        """Record runs that have begun, and arm what follows; also of schedules `decided` on.

        Returns the schedules that are locked, for which nothing was done."""
        ids = {run.schedule_id for run in begun} | set(decided)
        busy: set[int] = set() if waits else (yield from self._try_lock(ids))
        ids -= busy
        if not ids:
            return busy
        begun = [run for run in begun if run.schedule_id not in busy]
        schedules = yield from self._lock(ids=ids)
        yield from self._dialect.run(
            "schedule_mark",
            [
                {
                    "schedule_id": run.schedule_id,
                    "tick": run.tick,
                    "expect": run.status,
                    "worker": worker,
                    "begun": True,
                }
                for run in begun
            ],
        )
        yield from self._plan(schedules)
        return busy

    def withdraw(self, runs: Sequence[ClaimedRun], worker: str) -> Statements:
        """Give up the places of runs that `decide` let start, and that did not."""
        yield from self._lock(ids={run.schedule_id for run in runs})
        yield from self._dialect.run(
            "schedule_mark",
            [
                {
                    "schedule_id": run.schedule_id,
                    "tick": run.tick,
                    "expect": run.status,
                    "status": run.previous_status,
                    "held_by": worker,
                }
                for run in runs
            ],
        )

    def check(self, *, unrecorded: bool) -> Statements:
        """Return whether `repair` has something to do, and whether `find_unrecorded` may have.
        Locks nothing: every worker asks every second."""
        given = _PATIENCE | {"unrecorded": unrecorded}
        [(due, is_open)] = yield from self._dialect.run("schedule_check", given)
        return bool(due), bool(is_open)

    def due(self) -> Statements:
        """Return whether `repair` has something to do. Reads only."""
        return (yield from self.check(unrecorded=False))[0]

    def find_unrecorded(self) -> Statements:
        """Return finished jobs that the ledger does not have as such. Reads only."""
        rows = yield from self._dialect.run("schedule_unrecorded", _PATIENCE)
        return [row[0] for row in rows]

    def repair(self) -> Statements:
        """Plan the schedules that nobody has planned further; return how many those were."""
        rows = yield from self._due()
        if not rows:
            return 0
        schedules = yield from self._lock(ids={row[0] for row in rows})
        now = yield from self._dialect.now()
        for schedule in schedules.values():
            until = schedule.paused_until
            if until is not None and until <= now and schedule.unreadable is None:
                yield from self._resume(schedule, missed=True, actor=ENGINE_ACTOR)
        yield from self._plan(schedules)
        return sum(schedule.unreadable is None for schedule in schedules.values())

    def next_due(self) -> Statements:
        """Return when `repair` has something to do, if nobody plans further before. Reads only."""
        rows = yield from self._dialect.run("schedule_next", _PATIENCE)
        return None if rows[0][0] is None else self._dialect.moment(rows[0][0])

    def record_finished(self, jobs: Sequence[int], *, waits: bool = True) -> Statements:
        """Record how runs ended; pause schedules that fail too often. Returns their names, and the
        jobs whose schedules are locked, of which nothing was recorded."""
        # Schedules before their ledger, in the order of their ids, as everyone does.
        owners = yield from self._dialect.run("schedule_gate", list(jobs))
        ids = {row[1] for row in owners}
        left: list[int] = []
        if waits:
            yield from self._dialect.run("schedule_lock", {"ids": sorted(ids), "names": []})
        else:
            busy = yield from self._try_lock(ids)
            left = [row[0] for row in owners if row[1] in busy]
            jobs = [job for job in jobs if job not in left]
        if not jobs:
            return [], left
        rows = yield from self._dialect.run("schedule_record_finished", list(jobs))
        failing = {row[0]: row[1] for row in rows if row[1]}
        paused = []
        if failing:
            schedules = yield from self._lock(ids=set(failing))
            for schedule in schedules.values():
                most = schedule.policy.pause_after
                if most is not None and schedule.failures >= most and schedule.paused_at is None:
                    yield from self._pause(schedule, ENGINE_ACTOR, None, None)
                    paused.append(schedule.name)
        return paused, left

    def nudge(self, schedule_ids: Sequence[int]) -> Statements:
        """Check again runs that wait for something that has finished, or was skipped."""
        yield from self._dialect.run("schedule_nudge", list(schedule_ids))

    def prune(self, age: timedelta, after: int, *, batch: int) -> Statements:
        """Remove runs that were due and ended longer ago than `age`, of some schedules.

        Returns (how many, the schedule to continue after): 0 when all were checked. If a batch is
        full, there may be more of the same schedules.
        """
        rows = yield from self._dialect.run("schedule_page", {"after": after, "most": _SCHEDULES})
        ids = [row[0] for row in rows]
        if not ids:
            return 0, 0
        given = {"ids": ids, "age": age // MICROSECOND, "most": batch}
        gone = yield from self._dialect.run("schedule_prune", given)
        if len(gone) == batch:
            return batch, after
        return len(gone), ids[-1] if len(ids) == _SCHEDULES else 0

    def _try_lock(self, ids: set[int]) -> Generator[Statement, list[Row], set[int]]:
        """Lock those of the schedules that nobody else has locked; return the others. One that was
        deleted meanwhile is not among them: nobody needs to wait for it."""
        rows = yield from self._dialect.run("schedule_try_lock", sorted(ids))
        return {row[0] for row in rows}

    def _due(self) -> Step:
        return (yield from self._dialect.run("schedule_due", _PATIENCE))

    def _succeeded(
        self, names: Sequence[str]
    ) -> Generator[Statement, list[Row], dict[str, datetime]]:
        if not names:
            return {}
        rows = yield from self._dialect.run("schedule_success", list(names))
        return {row[0]: self._dialect.moment(row[1]) for row in rows if row[1] is not None}


def _mark(run: OpenRun, decision: Decision, worker: str) -> dict[str, Any]:
    return {
        "schedule_id": run.schedule_id,
        "tick": run.tick,
        "status": decision.status,
        "runs_as": decision.status if decision.action == "run" else decision.runs_as,
        "reason": decision.reason,
        "run_at": decision.run_at,
        "worker": worker,
        "done": decision.action == "skip",
    }


def _tick(run: ClaimedRun) -> datetime:
    return run.tick
