"""What is done to schedules, as statements without I/O: one text for every backend.

A backend brings its SQL under the same names, each taking one JSON document, and a `Dialect`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.schedule import (
    Decision,
    OpenRun,
    Plan,
    PlannedTick,
    Policy,
    Schedule,
    TickStatus,
    check_policy,
    decide,
    paused_reason,
    plan_ticks,
    run_key,
)
from duetime.domain.timetable import Timetable
from duetime.errors import InvalidInput, StorageError
from duetime.storage.store import Dialect, Row, Statement, Statements

Step = Generator[Statement, list[Row], list[Row]]

_PATIENCE = timedelta(seconds=1)
_TRIES = 5
_MICROSECOND = timedelta(microseconds=1)


class ClaimedRun(msgspec.Struct, frozen=True):
    """A claimed job that is a schedule's run."""

    job_id: int
    schedule_id: int
    tick: datetime
    clear: bool
    """It may start at once; else `decide` says."""


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it was asked for."""

    name: str
    kind: str = "task"
    target: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    timeout: timedelta | None = None
    timetable: Timetable
    policy: Policy = Policy()
    declared: bool = False
    stored: bool = True
    """False: it lives in the memory of each worker, and only its jobs are stored."""


class OccurrenceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the ledger as people see it."""

    schedule: str
    tick: datetime
    run_at: datetime
    status: TickStatus
    reason: str | None
    job_id: int | None
    enqueued_at: datetime | None
    claimed_at: datetime | None
    claimed_by: str | None
    started_at: datetime | None
    finished_at: datetime | None
    duration: timedelta | None
    succeeded: bool | None
    error: str | None


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed what."""

    id: int
    at: datetime
    actor: str
    action: str
    entity: str
    before: Any
    after: Any
    reason: str | None


class ScheduleStatements:
    """Every method is one transaction. Schedules are locked in the order of their ids."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    # A worker's side

    def gate(self, jobs: Sequence[int]) -> Statements:
        """Return `[ClaimedRun]` for those of the jobs that are runs. Reads only."""
        rows = yield from self._dialect.run("schedule_gate", list(jobs))
        moment = self._dialect.moment
        return [ClaimedRun(row[0], row[1], moment(row[2]), bool(row[3])) for row in rows]

    def decide(self, runs: Sequence[ClaimedRun], worker: str) -> Statements:
        """Decide on runs that are not clear; return `{job_id: Decision}`."""
        now = yield from self._dialect.now()
        schedules = yield from self._lock(ids={run.schedule_id for run in runs})
        opened = yield from self._open(schedules)
        after = {s.policy.after for s in schedules.values() if s.policy.after is not None}
        succeeded = yield from self._succeeded(sorted(after))
        decisions: dict[int, Decision] = {}
        marks = []
        mine = {run.job_id for run in runs}
        for schedule in schedules.values():
            if schedule.broken is not None:
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
                )
                decisions[job_id] = decision
                if decision.action != "skip":
                    others[job_id] = msgspec.structs.replace(
                        run, status=decision.status, begun=decision.action == "run"
                    )
                marks.append(_mark(run, decision, worker))
        if marks:
            yield from self._dialect.run("schedule_mark", marks)
        gone = Decision("skip", TickStatus.SKIPPED, "its schedule was set aside or removed")
        return {run.job_id: decisions.get(run.job_id, gone) for run in runs}

    def advance(
        self, begun: Sequence[ClaimedRun], worker: str, *, decided: Iterable[int] = ()
    ) -> Statements:
        """Record runs that have begun, and arm what follows; also of schedules `decided` on."""
        ids = {run.schedule_id for run in begun} | set(decided)
        schedules = yield from self._lock(ids=ids)
        yield from self._dialect.run(
            "schedule_mark",
            [
                {
                    "schedule_id": run.schedule_id,
                    "tick": run.tick,
                    "expect": TickStatus.ARMED,
                    "worker": worker,
                    "begun": True,
                }
                for run in begun
            ],
        )
        return (yield from self._plan(schedules, in_parts=True))

    def due(self) -> Statements:
        """Return whether `repair` has something to do. Reads only."""
        return bool((yield from self._due()))

    def unsettled(self) -> Statements:
        """Return jobs that ended, and of which the ledger does not know. Reads only."""
        rows = yield from self._dialect.run("schedule_unsettled", {})
        return [row[0] for row in rows]

    def repair(self) -> Statements:
        """Plan on where nobody has; return how many schedules that were."""
        rows = yield from self._due()
        if not rows:
            return 0
        schedules = yield from self._lock(ids={row[0] for row in rows})
        now = yield from self._dialect.now()
        for schedule in schedules.values():
            if schedule.paused_until is not None and schedule.paused_until <= now:
                yield from self._resume(schedule, missed=True, actor="duetime")
        yield from self._plan(schedules, in_parts=True)
        return len(rows)

    def settle(self, jobs: Sequence[int]) -> Statements:
        """Record how runs ended; pause schedules that fail too often, and return their names."""
        # Schedules before their ledger, in the order of their ids, as everyone does.
        owners = yield from self._dialect.run("schedule_gate", list(jobs))
        locks = {"ids": sorted({row[1] for row in owners}), "names": []}
        yield from self._dialect.run("schedule_lock", locks)
        rows = yield from self._dialect.run("schedule_settle", list(jobs))
        failing = {row[0]: row[1] for row in rows if row[1]}
        paused = []
        if failing:
            schedules = yield from self._lock(ids=set(failing))
            for schedule in schedules.values():
                most = schedule.policy.pause_after
                if most is not None and schedule.failures >= most and schedule.paused_at is None:
                    reason = f"{schedule.failures} runs failed in a row"
                    yield from self._pause(schedule, "duetime", reason, None)
                    paused.append(schedule.name)
        return paused

    def nudge(self, schedule_ids: Sequence[int]) -> Statements:
        """Let runs look again that went back to wait for something that has ended."""
        yield from self._dialect.run("schedule_nudge", list(schedule_ids))

    # People's side

    def find(self, names: Sequence[str] | None) -> Statements:
        """Return schedules by name, or all; sorted by name."""
        given = None if names is None else list(names)
        rows = yield from self._dialect.run("schedule_find", {"names": given})
        return [self._read(row) for row in rows]

    def apply(self, new: Sequence[NewSchedule], *, actor: str, prune: bool) -> Statements:
        """Add and change schedules; return `{name: "added" | "changed" | "same" | "removed"}`.

        A pause stays. `prune` removes what was declared before and no longer is.
        """
        now = yield from self._dialect.now()
        answer: dict[str, str] = {}
        names = [given.name for given in new]
        gone: list[str] = []
        if prune:
            rows = yield from self._dialect.run("schedule_find", {"names": None})
            gone = [row[1] for row in rows if row[21] and row[1] not in names]
        stored = {s.name: s for s in (yield from self._lock(names=[*names, *gone])).values()}
        added: set[int] = set()
        for _ in range(_TRIES):
            fresh = [given for given in new if given.name not in stored]
            if not fresh:
                break
            documents = [_document(given, now) | {"name": given.name} for given in fresh]
            rows = yield from self._dialect.run("schedule_insert", documents)
            added |= {row[0] for row in rows}
            # One that another has just added is locked, and changed if it differs.
            locked = yield from self._lock(names=[given.name for given in fresh])
            stored |= {schedule.name: schedule for schedule in locked.values()}
        gone = [name for name in gone if name in stored]
        changed = []
        for given in new:
            if given.name not in stored:
                raise StorageError(
                    f"The schedule {given.name!r} is removed as fast as it is added."
                )
            schedule = stored[given.name]
            if schedule.id in added:
                answer[given.name] = "added"
                yield from self._audit(actor, "schedule.add", schedule, None, summary(schedule))
                continue
            wanted = _wanted(given)
            if wanted == _wanted(schedule) and schedule.broken is None:
                answer[given.name] = "same"
                continue
            answer[given.name] = "changed"
            changed.append((schedule, given))
        for schedule, given in changed:
            before = summary(schedule)
            if schedule.broken is None and schedule.paused_at is None:
                # What was missed under the old times is judged by them.
                yield from self._plan({schedule.id: schedule})
            yield from self._supersede([schedule], "superseded: the schedule was changed")
            moved = schedule.timetable != given.timetable or schedule.broken is not None
            for field in ("kind", "target", "queue", "priority", "max_attempts", "timeout",
                          "timetable", "policy", "declared"):  # fmt: skip
                setattr(schedule, field, getattr(given, field))
            schedule.args = bytes(given.args).decode()
            schedule.broken = None
            schedule.planned_until = now if moved else min(schedule.planned_until, now)
            yield from self._update(schedule)
            yield from self._audit(actor, "schedule.change", schedule, before, summary(schedule))
        for name in gone:
            answer[name] = "removed"
            yield from self._delete(stored[name], actor, "no longer declared")
        yield from self._plan(
            {
                schedule.id: schedule
                for schedule in stored.values()
                if answer.get(schedule.name) in ("added", "changed")
            }
        )
        return answer

    def pause(self, name: str, *, actor: str, reason: str, until: datetime | None) -> Statements:
        """Arm nothing more, until it is resumed. Returns whether the schedule is there."""
        for schedule in (yield from self._lock(names=[name])).values():
            yield from self._pause(schedule, actor, reason, until)
            return True
        return False

    def resume(self, name: str, *, actor: str, missed: bool) -> Statements:
        for schedule in (yield from self._lock(names=[name])).values():
            yield from self._resume(schedule, missed=missed, actor=actor)
            yield from self._plan({schedule.id: schedule})
            return True
        return False

    def trigger(self, name: str, *, actor: str, reason: str | None) -> Statements:
        """Run it once now, beside its timetable; return the job's id, or None."""
        for schedule in (yield from self._lock(names=[name])).values():
            now = yield from self._dialect.now()
            rows: list[Row] = []
            at = now
            while not rows:
                tick = PlannedTick(at, now, runs_as=TickStatus.TRIGGERED, reason=f"by {actor}")
                rows = yield from self._write({schedule.id: (schedule, [tick])}, {})
                at += _MICROSECOND
            yield from self._audit(actor, "schedule.trigger", schedule, None, None, reason)
            return rows[0][2]
        return None

    def reschedule(self, name: str, at: datetime, *, actor: str) -> Statements:
        """Move the next run; the runs after it stay. Returns its tick; None: there is none."""
        for schedule in (yield from self._lock(names=[name])).values():
            at = max(at, (yield from self._dialect.now()))
            opened = (yield from self._open({schedule.id: schedule}))[schedule.id]
            for run in sorted(opened, key=lambda run: run.run_at):
                if run.begun or run.runs_as is not TickStatus.FIRED:
                    continue
                moved = yield from self._dialect.run(
                    "schedule_move", {"schedule_id": schedule.id, "tick": run.tick, "run_at": at}
                )
                if moved:
                    yield from self._plan({schedule.id: schedule})
                    before = {"tick": run.tick, "run_at": run.run_at}
                    after = {"tick": run.tick, "run_at": at}
                    yield from self._audit(actor, "schedule.reschedule", schedule, before, after)
                    return run.tick
        return None

    def backfill(self, name: str, ticks: Sequence[datetime], *, actor: str) -> Statements:
        """Run past ticks that have not run; return how many. The ledger knows the others."""
        for schedule in (yield from self._lock(names=[name])).values():
            now = yield from self._dialect.now()
            planned = [
                PlannedTick(tick, now, runs_as=TickStatus.BACKFILLED, reason=f"by {actor}")
                for tick in ticks
            ]
            rows = yield from self._write({schedule.id: (schedule, planned)}, {})
            span = {"from": ticks[0], "to": ticks[-1], "runs": len(rows)} if ticks else None
            yield from self._audit(actor, "schedule.backfill", schedule, None, span)
            return len(rows)
        return None

    def delete(self, name: str, *, actor: str, reason: str | None) -> Statements:
        for schedule in (yield from self._lock(names=[name])).values():
            yield from self._delete(schedule, actor, reason)
            return True
        return False

    def history(
        self,
        name: str,
        *,
        since: datetime | None,
        before: datetime | None,
        status: str | None,
        limit: int,
    ) -> Statements:
        """Return the ledger's rows, newest first."""
        rows = yield from self._dialect.run(
            "schedule_history",
            {"name": name, "since": since, "before": before, "status": status, "most": limit},
        )
        return [self._occurrence(row) for row in rows]

    def audit(self, entity: str | None, *, before_id: int | None) -> Statements:
        rows = yield from self._dialect.run(
            "audit_find", {"entity": entity, "before_id": before_id}
        )
        return [
            AuditEvent(
                id=row[0], at=self._dialect.moment(row[1]), actor=row[2], action=row[3],
                entity=row[4], before=_from_json(row[5]), after=_from_json(row[6]), reason=row[7],
            )
            for row in rows
        ]  # fmt: skip

    def prune(self, name: str, age: timedelta) -> Statements:
        """Remove old rows, some at a time: `name` is `schedule_prune` or `audit_prune`."""
        rows = yield from self._dialect.run(name, {"age": age // _MICROSECOND})
        return len(rows)

    def put_template(self, name: str, timetable: Timetable, description: str) -> Statements:
        yield from self._dialect.run(
            "template_put",
            {"name": name, "timetable": timetable.to_json(), "description": description},
        )

    def delete_template(self, name: str) -> Statements:
        return bool((yield from self._dialect.run("template_delete", {"name": name})))

    def templates(self) -> Statements:
        """Return (name, timetable as JSON, description)."""
        rows = yield from self._dialect.run("template_find", {})
        return [(row[0], msgspec.json.decode(row[1]), row[2]) for row in rows]

    # Pieces

    def _due(self) -> Step:
        patience = _PATIENCE // _MICROSECOND
        return (yield from self._dialect.run("schedule_due", {"patience": patience}))

    def _lock(
        self, *, ids: Sequence[int] | set[int] = (), names: Sequence[str] = ()
    ) -> Generator[Statement, list[Row], dict[int, Schedule]]:
        """Lock schedules. One that cannot be read is set aside, and left out."""
        rows = yield from self._dialect.run(
            "schedule_lock", {"ids": sorted(ids), "names": list(names)}
        )
        found: dict[int, Schedule] = {}
        for row in rows:
            schedule = self._read(row)
            if schedule.broken is not None and row[20] is None:
                yield from self._set_aside(schedule, schedule.broken)
            if row[25] is None and schedule.broken is None and row[22] > 1 and row[15] is None:
                # Changed by plain SQL, or just resumed: what is armed may be out of date.
                yield from self._supersede([schedule], "superseded: the schedule was changed")
                now = yield from self._dialect.now()
                schedule.planned_until = min(schedule.planned_until, now)
            found[schedule.id] = schedule
        return found

    def _set_aside(self, schedule: Schedule, reason: str) -> Statements:
        """A schedule that cannot be followed stops, and says why; the others go on."""
        schedule.broken = reason
        schedule.next_run_at = None
        yield from self._supersede([schedule], f"set aside: {reason}", due_too=True)
        yield from self._update(schedule)
        yield from self._audit("duetime", "schedule.set_aside", schedule, None, None, reason)

    def _open(
        self, schedules: Mapping[int, Schedule]
    ) -> Generator[Statement, list[Row], dict[int, list[OpenRun]]]:
        opened: dict[int, list[OpenRun]] = {schedule_id: [] for schedule_id in schedules}
        if schedules:
            rows = yield from self._dialect.run("schedule_open", list(schedules))
            moment = self._dialect.moment
            for row in rows:
                opened[row[0]].append(
                    OpenRun(
                        row[0], moment(row[1]), moment(row[2]), TickStatus(row[3]),
                        TickStatus(row[4]), row[5], bool(row[6]),
                    )
                )  # fmt: skip
        return opened

    def _succeeded(
        self, names: Sequence[str]
    ) -> Generator[Statement, list[Row], dict[str, datetime]]:
        if not names:
            return {}
        rows = yield from self._dialect.run("schedule_success", list(names))
        return {row[0]: self._dialect.moment(row[1]) for row in rows if row[1] is not None}

    def _plan(
        self,
        schedules: Mapping[int, Schedule],
        *,
        missed: str | None = None,
        in_parts: bool = False,
    ) -> Statements:
        """Write what follows the last planned ticks; return how many jobs were armed.

        `in_parts`: after a long outage some ticks at a time; the next repair goes on.
        """
        schedules = {
            schedule.id: schedule
            for schedule in schedules.values()
            if schedule.paused_at is None and schedule.broken is None
        }
        count = 0
        caught_up: dict[int, int] = {}
        while schedules:
            now = yield from self._dialect.now()
            opened = yield from self._open(schedules)
            ticks: dict[int, tuple[Schedule, list[PlannedTick]]] = {}
            advanced: dict[int, tuple[Schedule, datetime | None]] = {}
            more: dict[int, Schedule] = {}
            for schedule in schedules.values():
                ahead = [
                    run
                    for run in opened[schedule.id]
                    if run.tick > now and not run.begun and run.runs_as is TickStatus.FIRED
                ]
                try:
                    plan = plan_ticks(
                        schedule,
                        now=now,
                        armed=len(ahead),
                        caught_up=caught_up.get(schedule.id, _paced(opened[schedule.id], now)),
                        missed=missed,
                    )
                except InvalidInput as error:
                    # Some rules show only as time goes on that they cannot be followed.
                    yield from self._set_aside(schedule, str(error))
                    continue
                schedule.planned_until = plan.planned_until
                caught_up[schedule.id] = plan.caught_up
                if plan.more and plan.planned_until <= now:
                    more[schedule.id] = schedule
                ticks[schedule.id] = (schedule, plan.ticks)
                advanced[schedule.id] = (schedule, _next_run_at(opened[schedule.id], plan, now))
            rows = yield from self._write(ticks, advanced)
            count += len(rows)
            schedules = {} if in_parts else more
        return count

    def _write(
        self,
        ticks: Mapping[int, tuple[Schedule, Sequence[PlannedTick]]],
        advanced: Mapping[int, tuple[Schedule, datetime | None]],
    ) -> Step:
        """Write ticks with their jobs; return (schedule, tick, job) of the jobs."""
        return (
            yield from self._dialect.run(
                "schedule_write",
                {
                    "ticks": [
                        _tick_document(schedule, tick)
                        for schedule, planned in ticks.values()
                        for tick in planned
                    ],
                    "schedules": [
                        {
                            "id": schedule.id,
                            "planned_until": schedule.planned_until,
                            "next_run_at": next_run_at,
                            "plain": schedule.policy.plain,
                            "at_once": schedule.policy.at_once,
                            "grace": schedule.policy.grace // _MICROSECOND,
                            "enqueued": any(
                                tick.status is TickStatus.ARMED for tick in ticks[schedule.id][1]
                            ),
                        }
                        for schedule, next_run_at in advanced.values()
                    ],
                },
            )
        )

    def _pause(
        self, schedule: Schedule, actor: str, reason: str, until: datetime | None
    ) -> Statements:
        now = yield from self._dialect.now()
        before = pause_summary(schedule)
        if schedule.paused_at is None:
            # What was missed before the pause is judged without it.
            yield from self._plan({schedule.id: schedule})
            schedule.paused_at = now
            schedule.planned_until = now
        schedule.paused_by, schedule.pause_reason, schedule.paused_until = actor, reason, until
        schedule.next_run_at = None
        yield from self._supersede([schedule], paused_reason(schedule))
        yield from self._update(schedule)
        after = pause_summary(schedule)
        yield from self._audit(actor, "schedule.pause", schedule, before, after, reason)

    def _resume(self, schedule: Schedule, *, missed: bool, actor: str) -> Statements:
        if schedule.paused_at is None:
            return
        before = pause_summary(schedule)
        reason = paused_reason(schedule)
        schedule.paused_at = schedule.paused_by = schedule.pause_reason = None
        schedule.paused_until = None
        schedule.failures = 0
        yield from self._update(schedule)
        if not missed:
            yield from self._plan({schedule.id: schedule}, missed=reason)
        yield from self._audit(actor, "schedule.resume", schedule, before, {"missed": missed})

    def _delete(self, schedule: Schedule, actor: str, reason: str | None) -> Statements:
        yield from self._supersede([schedule], "superseded: the schedule was removed", due_too=True)
        yield from self._dialect.run("schedule_delete", [schedule.id])
        yield from self._audit(actor, "schedule.delete", schedule, summary(schedule), None, reason)

    def _supersede(
        self, schedules: Sequence[Schedule], reason: str, *, due_too: bool = False
    ) -> Statements:
        """End what is armed ahead; `due_too`: and what is due already."""
        ids = [schedule.id for schedule in schedules]
        return len(
            (
                yield from self._dialect.run(
                    "schedule_supersede", {"ids": ids, "reason": reason, "all": due_too}
                )
            )
        )

    def _update(self, schedule: Schedule) -> Statements:
        document = _document(schedule, schedule.planned_until)
        if schedule.broken is not None:
            # What cannot be read stays as it was written, so that a person can mend it.
            document |= {"timetable": None, "policy": None, "args": None}
        document |= {
            field: getattr(schedule, field)
            for field in ("id", "next_run_at", "paused_at", "paused_by", "pause_reason",
                          "paused_until", "failures", "broken")
        }  # fmt: skip
        yield from self._dialect.run("schedule_update", [document])

    def _audit(
        self,
        actor: str,
        action: str,
        schedule: Schedule,
        before: Any,
        after: Any,
        reason: str | None = None,
    ) -> Statements:
        yield from self._dialect.run(
            "audit_write",
            [
                {
                    "actor": actor,
                    "action": action,
                    "entity": f"schedule:{schedule.name}",
                    "before": before and msgspec.to_builtins(before),
                    "after": after and msgspec.to_builtins(after),
                    "reason": reason,
                }
            ],
        )

    # Rows

    def _read(self, row: Row) -> Schedule:
        moment = self._dialect.moment

        def maybe(value: Any) -> datetime | None:
            return None if value is None else moment(value)

        broken = row[20]
        timetable, policy, args = _NEVER, Policy(), "{}"
        try:
            timetable = read_timetable(row[9])
            policy = read_policy(row[10])
            args = read_args(row[4])
        except InvalidInput as error:
            broken = broken or str(error)
        return Schedule(
            id=row[0], name=row[1], kind=row[2], target=row[3], args=args, queue=row[5],
            priority=row[6], max_attempts=row[7],
            timeout=None if row[8] is None else row[8] * _MICROSECOND,
            timetable=timetable, policy=policy, planned_until=moment(row[11]),
            next_run_at=maybe(row[12]), last_run_at=maybe(row[13]),
            last_enqueued_at=maybe(row[14]), paused_at=maybe(row[15]), paused_by=row[16],
            pause_reason=row[17], paused_until=maybe(row[18]), failures=row[19], broken=broken,
            declared=bool(row[21]), revision=row[22], created_at=moment(row[23]),
            updated_at=moment(row[24]),
        )  # fmt: skip

    def _occurrence(self, row: Row) -> OccurrenceInfo:
        def maybe(value: Any) -> datetime | None:
            return None if value is None else self._dialect.moment(value)

        started, finished = maybe(row[10]), maybe(row[11])
        return OccurrenceInfo(
            schedule=row[0], tick=self._dialect.moment(row[1]), run_at=self._dialect.moment(row[2]),
            status=TickStatus(row[3]), reason=row[5], job_id=row[6], enqueued_at=maybe(row[7]),
            claimed_at=maybe(row[8]), claimed_by=row[9], started_at=started, finished_at=finished,
            duration=finished - started if finished and started else None,
            succeeded=None if row[12] is None else bool(row[12]), error=row[13],
        )  # fmt: skip


def read_policy(text: str) -> Policy:
    """Return a stored policy; raise `InvalidInput`: a person may have written it."""
    try:
        policy = msgspec.json.decode(text, type=Policy)
    except (msgspec.DecodeError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"The stored policy cannot be read: {error}.") from None
    return check_policy(policy)


def read_args(text: str) -> str:
    """Return stored arguments, if they are a JSON object."""
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"The stored args cannot be read: {error}.") from None
    return text


def read_timetable(text: str) -> Timetable:
    try:
        return Timetable.from_json(msgspec.json.decode(text))
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is stored, the others go on
        raise InvalidInput(f"The stored times cannot be read: {error!r}.") from None


def summary(schedule: Schedule) -> dict[str, Any]:
    """What an audit event shows of a schedule."""
    return {
        "target": schedule.target,
        "args": msgspec.json.decode(schedule.args),
        "timetable": schedule.timetable.to_json(),
        "policy": msgspec.to_builtins(schedule.policy),
        "queue": schedule.queue,
        "priority": schedule.priority,
        "max_attempts": schedule.max_attempts,
        "timeout": schedule.timeout,
        "declared": schedule.declared,
    }


def pause_summary(schedule: Schedule) -> dict[str, Any]:
    return {
        "paused_at": schedule.paused_at,
        "paused_by": schedule.paused_by,
        "reason": schedule.pause_reason,
        "until": schedule.paused_until,
    }


_NEVER = Timetable.from_json({"specs": [{"at": "1970-01-01T00:00:00Z"}], "tz": "UTC"})


def _wanted(given: NewSchedule | Schedule) -> tuple[Any, ...]:
    args = given.args if isinstance(given.args, str) else bytes(given.args)
    return (
        given.kind, given.target, msgspec.json.decode(args), given.queue, given.priority,
        given.max_attempts, given.timeout, given.timetable.to_json(), given.policy, given.declared,
    )  # fmt: skip


def _document(given: NewSchedule | Schedule, planned_until: datetime) -> dict[str, Any]:
    args = given.args.encode() if isinstance(given.args, str) else bytes(given.args)
    return {
        "kind": given.kind,
        "target": given.target,
        "args": msgspec.Raw(args),
        "queue": given.queue,
        "priority": given.priority,
        "max_attempts": given.max_attempts,
        "timeout": None if given.timeout is None else given.timeout // _MICROSECOND,
        "timetable": given.timetable.to_json(),
        "policy": msgspec.to_builtins(given.policy),
        "declared": given.declared,
        "planned_until": planned_until,
    }


def _tick_document(schedule: Schedule, tick: PlannedTick) -> dict[str, Any]:
    expires = schedule.policy.expires
    return {
        "schedule_id": schedule.id,
        "tick": tick.tick,
        "run_at": tick.run_at,
        "status": tick.status,
        "runs_as": tick.runs_as,
        "reason": tick.reason,
        "has_job": tick.status is TickStatus.ARMED,
        "key": run_key(schedule.name, tick.tick),
        "expires_at": None if expires is None else tick.run_at + expires,
    }


def _mark(run: OpenRun, decision: Decision, worker: str) -> dict[str, Any]:
    return {
        "schedule_id": run.schedule_id,
        "tick": run.tick,
        "status": decision.status,
        "runs_as": decision.runs_as,
        "reason": decision.reason,
        "worker": worker,
        "begun": decision.action == "run",
        "done": decision.action == "skip",
    }


def _paced(opened: Sequence[OpenRun], now: datetime) -> int:
    """How many caught-up runs still lie ahead: those that follow keep their pace behind them."""
    return sum(
        run.runs_as is TickStatus.CAUGHT_UP and not run.begun and run.run_at >= now
        for run in opened
    )


def _next_run_at(opened: Sequence[OpenRun], plan: Plan, now: datetime) -> datetime | None:
    times = [run.run_at for run in opened if not run.begun]
    times += [tick.run_at for tick in plan.ticks if tick.status is TickStatus.ARMED]
    if plan.more and plan.planned_until <= now:
        return plan.planned_until
    first = min((at for at in times if at > now), default=None)
    # Everything that was looked at is excluded: look on from there when the time comes.
    return plan.planned_until if first is None and plan.more else first


def _from_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
