"""What people do to schedules: declare, change, operate, list.

Statements without I/O, for every backend.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.audit import make_event
from duetime.domain.jobs.release import is_older
from duetime.domain.reasons import Reason
from duetime.domain.schedules.plan import PlannedTick, plan_past_moments
from duetime.domain.schedules.schedule import (
    OpenRun,
    Schedule,
    TickStatus,
    check_order,
    paused_reason,
)
from duetime.domain.schedules.timetable import Timetable
from duetime.errors import (
    InvalidInput,
    InvalidSchedule,
    MissingPackage,
    OlderRelease,
    StorageError,
)
from duetime.storage.schedules.planning import CHANGED, PARTS, Planning, event
from duetime.storage.schedules.rows import (
    MICROSECOND,
    Declarer,
    NewSchedule,
    read_schedule,
    read_tick,
    schedule_document,
    summary,
    wanted,
)
from duetime.storage.store import Row, Statement, Statements, run_many

_TRIES = 5


class ScheduleStatements(Planning):
    """Every method is one transaction."""

    def find(self, names: Sequence[str] | None) -> Statements:
        """Return schedules by name, or all; sorted by name."""
        given = None if names is None else list(names)
        rows = yield from self._dialect.run("schedule_find", {"names": given})
        return [read_schedule(row, self._dialect.moment) for row in rows]

    def list_schedules(self, *, after: str | None, limit: int) -> Statements:
        """Return schedules by name, those after one of them."""
        rows = yield from self._dialect.run("schedule_list", {"after": after or "", "limit": limit})
        return [read_schedule(row, self._dialect.moment) for row in rows]

    def apply(
        self,
        new: Sequence[NewSchedule],
        *,
        actor: str,
        prune: bool,
        declarer: Declarer | None = None,
    ) -> Statements:
        """Add and change schedules; return what became of each name: `added`, `changed`, `same`,
        `renamed`, `removed`.

        A pause stays. `prune` removes what the declarer declared before and no longer does. Raises
        `OlderRelease` if a newer release of its service has declared its schedules.
        """
        now = yield from self._dialect.now()
        answer: dict[str, str] = {}
        _check_names(new)
        if declarer is not None:
            yield from self._enter_release(declarer)
            new = [_owned(given, declarer) for given in new]
        names = [given.name for given in new]
        old_names = {
            given.renamed_from: given.name for given in new if given.renamed_from is not None
        }
        gone: list[str] = []
        if prune and declarer is not None:
            rows = yield from self._dialect.run("schedule_find", {"names": None})
            kept = {*names, *old_names}
            mine = [row[1] for row in rows if row[21] and row[26] == declarer.service]
            gone = [name for name in mine if name not in kept]
        locked = yield from self._lock(names=[*names, *gone, *old_names])
        stored = {schedule.name: schedule for schedule in locked.values()}
        yield from self._check_order(new, stored, gone, old_names)
        answer |= yield from self._rename(old_names, stored, declarer, actor)
        added: set[int] = set()
        for _ in range(_TRIES):
            fresh = [given for given in new if given.name not in stored]
            if not fresh:
                break
            documents = [schedule_document(given, now) | {"name": given.name} for given in fresh]
            rows = yield from run_many(self._dialect, "schedule_insert", documents)
            added |= {row[0] for row in rows}
            # One that another has just added is locked, and changed if it differs.
            locked = yield from self._lock(names=[given.name for given in fresh])
            stored |= {schedule.name: schedule for schedule in locked.values()}
        gone = [name for name in gone if name in stored]
        changed = []
        news: list[dict[str, Any]] = []
        for given in new:
            if given.name not in stored:
                raise StorageError(
                    f"The schedule {given.name!r} was removed by another transaction each time it "
                    "was added. Try again."
                )
            schedule = stored[given.name]
            _check_owner(schedule, given.owner)
            if schedule.id in added:
                answer[given.name] = "added"
                news.append(event(actor, "schedule.add", schedule, None, summary(schedule)))
                continue
            if wanted(given) == wanted(schedule) and schedule.readable:
                answer.setdefault(given.name, "same")
                continue
            answer.setdefault(given.name, "changed")
            changed.append((schedule, given))
        yield from run_many(self._dialect, "audit_write", news)
        yield from self._change(changed, actor)
        for name in gone:
            answer[name] = "removed"
            yield from self._delete(stored[name], actor, why=Reason("schedule_undeclared"))
        yield from self._plan(
            {
                schedule.id: schedule
                for schedule in stored.values()
                if answer.get(schedule.name) in ("added", "changed", "renamed")
            },
            parts=PARTS,
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
            if schedule.unreadable is not None:
                raise MissingPackage(schedule.unreadable)
            yield from self._resume(schedule, missed=missed, actor=actor)
            yield from self._plan({schedule.id: schedule}, parts=PARTS)
            return True
        return False

    def trigger(self, name: str, *, actor: str, reason: str | None) -> Statements:
        """Run it once now, beside its timetable; return the job's id, or None."""
        for schedule in (yield from self._lock(names=[name])).values():
            now = yield from self._dialect.now()
            rows: list[Row] = []
            at, why = now, Reason.of("triggered", by=actor)
            while not rows:
                tick = PlannedTick(at, now, runs_as=TickStatus.TRIGGERED, reason=why)
                rows = yield from self._write({schedule.id: (schedule, [tick])}, {})
                at += MICROSECOND
            yield from self._audit(actor, "schedule.trigger", schedule, None, None, reason)
            return rows[0][2]
        return None

    def reschedule(self, name: str, at: datetime, *, actor: str) -> Statements:
        """Move the next run; the runs after it stay. Returns its tick; None: there is none.

        The next run is the one that is shown as such: one that is overdue is moved only if there
        is no other.
        """
        for schedule in (yield from self._lock(names=[name])).values():
            opened = (yield from self._open({schedule.id: schedule}))[schedule.id]
            shown = schedule.next_run_at
            for run in sorted(
                opened, key=lambda run: (shown is not None and run.run_at < shown, run.run_at)
            ):
                if run.begun or run.runs_as is not TickStatus.FIRED:
                    continue
                if (yield from self._move(schedule, run, at, actor)):
                    return run.tick
        return None

    def reschedule_job(self, job_id: int, at: datetime, *, actor: str) -> Statements:
        """Move a run by its job. Returns whether that is a run that waits, and has not begun."""
        schedules = yield from self._lock(ids=(yield from self._owners([job_id])))
        opened = yield from self._open(schedules)
        for schedule in schedules.values():
            for run in opened[schedule.id]:
                if run.job_id == job_id and not run.begun:
                    return (yield from self._move(schedule, run, at, actor))
        return False

    def lock_owners(self, jobs: Sequence[int]) -> Statements:
        """Lock the schedules of which these jobs are runs, in the order of their ids."""
        if ids := (yield from self._owners(jobs)):
            yield from self._dialect.run("schedule_lock", {"ids": sorted(ids), "names": []})

    def _owners(self, jobs: Sequence[int]) -> Generator[Statement, list[Row], set[int]]:
        rows = yield from self._dialect.run("schedule_gate", list(jobs))
        return {row[1] for row in rows}

    def backfill(
        self, name: str, ticks: Sequence[datetime], *, failed: bool, actor: str
    ) -> Statements:
        """Run past ticks that have not run; return how many. The ledger knows the others.

        `failed`: also those whose run ended without success.
        """
        for schedule in (yield from self._lock(names=[name])).values():
            now = yield from self._dialect.now()
            why = Reason.of("backfilled", by=actor)
            planned = [
                PlannedTick(tick, now, runs_as=TickStatus.BACKFILLED, reason=why, again=failed)
                for tick in ticks
            ]
            rows = yield from self._write({schedule.id: (schedule, planned)}, {})
            span = {"from": ticks[0], "to": ticks[-1], "runs": len(rows)} if ticks else None
            if span is not None and failed:
                span["failed"] = True
            yield from self._audit(actor, "schedule.backfill", schedule, None, span)
            return len(rows)
        return None

    def delete(self, name: str, *, actor: str, reason: str | None) -> Statements:
        for schedule in (yield from self._lock(names=[name])).values():
            yield from self._check_order([], {}, [name], {})
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
        return [read_tick(row, self._dialect.moment) for row in rows]

    def put_preset(
        self, name: str, timetable: Timetable, description: str, *, actor: str
    ) -> Statements:
        """Return `added`, `changed` or `same`."""
        new = {"name": name, "timetable": timetable.to_json(), "description": description}
        before = yield from self._preset(name)
        if before == new:
            return "same"
        yield from self._dialect.run("preset_put", new)
        event = make_event(actor, "preset.put", f"preset:{name}", before=before, after=new)
        yield from self._dialect.run("audit_write", [event])
        return "added" if before is None else "changed"

    def delete_preset(self, name: str, *, actor: str) -> Statements:
        """Return whether it was there."""
        before = yield from self._preset(name)
        if before is None:
            return False
        yield from self._dialect.run("preset_delete", {"name": name})
        event = make_event(actor, "preset.delete", f"preset:{name}", before=before)
        yield from self._dialect.run("audit_write", [event])
        return True

    def _preset(self, name: str) -> Generator[Statement, list[Row], dict[str, Any] | None]:
        for row in (yield from self._dialect.run("preset_lock", {"name": name})):
            timetable = msgspec.json.decode(row[1])
            return {"name": row[0], "timetable": timetable, "description": row[2]}
        return None

    def presets(self) -> Statements:
        """Return (name, timetable as JSON, description)."""
        rows = yield from self._dialect.run("preset_find", {})
        return [(row[0], msgspec.json.decode(row[1]), row[2]) for row in rows]

    # Pieces

    def _enter_release(self, declarer: Declarer) -> Statements:
        """Lock the service, so that releases take turns; its newest one is this or a later one."""
        document = msgspec.to_builtins(declarer)
        document["name"] = document.pop("service")
        [[newest]] = yield from self._dialect.run("service_lock", document)
        if is_older(declarer.release, newest):
            raise OlderRelease(declarer.service, declarer.release, newest)
        if declarer.release != newest:
            yield from self._dialect.run("service_release", document)

    def _check_order(
        self,
        new: Sequence[NewSchedule],
        stored: Mapping[str, Schedule],
        gone: Sequence[str],
        old_names: Mapping[str, str],
    ) -> Statements:
        """Refuse what comes after an unknown schedule or after itself; and to remove a schedule
        that others come after."""
        dependent = [
            given.name
            for given in new
            if given.policy.after is not None
            and (given.name not in stored or wanted(given) != wanted(stored[given.name]))
        ]
        if not dependent and not gone:
            return
        rows = yield from self._dialect.run("schedule_find", {"names": None})
        known = [read_schedule(row, self._dialect.moment) for row in rows]
        after = {
            old_names.get(schedule.name, schedule.name): old_names.get(
                schedule.policy.after or "", schedule.policy.after
            )
            for schedule in known
            if schedule.name not in gone
        }
        after |= {given.name: given.policy.after for given in new}
        check_order(after, dependent)
        for name, before in after.items():
            if before in gone:
                raise InvalidInput(
                    f"The schedule {before!r} cannot be removed because {name!r} depends on it "
                    "(after=). Change or remove that one first."
                )

    def _rename(
        self,
        old_names: Mapping[str, str],
        stored: dict[str, Schedule],
        declarer: Declarer | None,
        actor: str,
    ) -> Generator[Statement, list[Row], dict[str, str]]:
        """Rename schedules, with their ledgers; one whose new name is taken is removed."""
        answer: dict[str, str] = {}
        for old, name in old_names.items():
            schedule = stored.pop(old, None)
            if schedule is None:
                continue
            _check_owner(schedule, None if declarer is None else declarer.service)
            yield from self._dialect.run("schedule_follow", {"old": old, "new": name})
            if name in stored:
                answer[old] = "removed"
                why = Reason.of("schedule_renamed", name=name)
                yield from self._delete(schedule, actor, why=why)
                continue
            now = yield from self._dialect.now()
            # What is armed has the old name in its key.
            yield from self._supersede([schedule], CHANGED)
            schedule.planned_until = min(schedule.planned_until, now)
            schedule.name = name
            yield from self._dialect.run("schedule_rename", {"id": schedule.id, "name": name})
            was, now_named = {"name": old}, {"name": name}
            yield from self._audit(actor, "schedule.rename", schedule, was, now_named)
            stored[name] = schedule
            answer[name] = "renamed"
        return answer

    def _change(self, changed: Sequence[tuple[Schedule, NewSchedule]], actor: str) -> Statements:
        """Give schedules what is declared now; what is armed under the old is superseded."""
        now = yield from self._dialect.now()
        schedules = [schedule for schedule, _ in changed]
        before = [summary(schedule) for schedule in schedules]
        moved = {
            schedule.id
            for schedule, given in changed
            if schedule.timetable != given.timetable or not schedule.readable
        }
        yield from self._plan_before_change([s for s in schedules if s.readable], moved)
        yield from self._supersede(schedules, CHANGED)
        moments = {schedule.id: schedule.timetable.moments for schedule in schedules}
        for schedule, given in changed:
            for field in ("kind", "target", "queue", "priority", "max_attempts", "timeout",
                          "timetable", "policy", "declared"):  # fmt: skip
                setattr(schedule, field, getattr(given, field))
            schedule.args = bytes(given.args).decode()
            schedule.owner = given.owner or schedule.owner
            schedule.broken = schedule.unreadable = None
            planned = now if schedule.id in moved else min(schedule.planned_until, now)
            schedule.planned_until = planned
        yield from self._update(*schedules)
        past = {
            schedule.id: (
                schedule,
                plan_past_moments(schedule, now=now, before=moments[schedule.id]),
            )
            for schedule in schedules
            if schedule.paused_at is None
        }
        if any(ticks for _, ticks in past.values()):
            yield from self._write(past, {})
        events = [
            event(actor, "schedule.change", schedule, was, summary(schedule))
            for schedule, was in zip(schedules, before, strict=True)
        ]
        yield from run_many(self._dialect, "audit_write", events)

    def _plan_before_change(self, schedules: Sequence[Schedule], moved: set[int]) -> Statements:
        """What was missed under the old times is judged by them, and in a pause skipped."""
        going = {schedule.id: schedule for schedule in schedules if schedule.paused_at is None}
        behind = yield from self._plan(going, parts=PARTS)
        for schedule in schedules:
            if schedule.id not in moved:
                continue
            if schedule.paused_at is not None:
                yield from self._plan_missed(schedule, paused_reason(schedule))
            elif schedule.id in behind:
                yield from self._plan_missed(schedule, CHANGED)

    def _move(self, schedule: Schedule, run: OpenRun, at: datetime, actor: str) -> Statements:
        """Move one run; the others stay. False: it has begun meanwhile."""
        at = max(at, (yield from self._dialect.now()))
        expires = schedule.policy.expires
        moved = yield from self._dialect.run(
            "schedule_move",
            {
                "schedule_id": schedule.id,
                "tick": run.tick,
                "run_at": at,
                "expires_at": None if expires is None else at + expires,
            },
        )
        if moved:
            yield from self._plan({schedule.id: schedule}, parts=PARTS)
            before = {"tick": run.tick, "run_at": run.run_at}
            after = {"tick": run.tick, "run_at": at}
            yield from self._audit(actor, "schedule.reschedule", schedule, before, after)
        return bool(moved)

    def _delete(
        self, schedule: Schedule, actor: str, reason: str | None = None, why: Reason | None = None
    ) -> Statements:
        """`reason`: a person's words; `why`: the reason, if nobody requested it."""
        yield from self._supersede([schedule], Reason("schedule_deleted"), due_too=True)
        yield from self._dialect.run("schedule_delete", [schedule.id])
        after = None if why is None else {"why": why}
        yield from self._audit(actor, "schedule.delete", schedule, summary(schedule), after, reason)


def _check_names(given: Sequence[NewSchedule]) -> None:
    """Raise `InvalidInput` if a name is given twice, or is the former name of another."""
    names = [schedule.name for schedule in given]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(f"The schedule {min(twice)!r} is given twice. Names must be unique.")
    former = [schedule.renamed_from for schedule in given if schedule.renamed_from is not None]
    if taken := {name for name in former if name in names or former.count(name) > 1}:
        raise InvalidInput(
            f"Two schedules use the name {min(taken)!r}, one of them as renamed_from=. Remove "
            "renamed_from= from one of them."
        )


def _owned(given: NewSchedule, declarer: Declarer) -> NewSchedule:
    return msgspec.structs.replace(given, owner=declarer.service) if given.declared else given


def _check_owner(schedule: Schedule, service: str | None) -> None:
    if service is not None and schedule.owner not in (None, service):
        raise InvalidSchedule(
            f"The schedule {schedule.name!r} belongs to the service {schedule.owner!r}, and "
            f"{service!r} declares it, too. Give it another name, or remove it there first: "
            f"duetime schedules delete {schedule.name}"
        )
