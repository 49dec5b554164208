"""What an import would do, for people to review; and doing it, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.app import Duetime
from duetime.domain.checks import check_name
from duetime.domain.schedules.schedule import Schedule
from duetime.errors import InvalidInput
from duetime.integrations.importing.found import Found, plain_end
from duetime.storage.schedules.changes import ScheduleStatements
from duetime.storage.schedules.rows import NewSchedule
from duetime.storage.store import Statements

NO_TASK = "?"


class Planned(msgspec.Struct, frozen=True):
    """A schedule that can be stored, and what becomes of it: `added`, `changed` or `same`."""

    found: Found
    schedule: NewSchedule
    becomes: str
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """What can be stored, and what could not be translated."""

    schedules: list[Planned]
    untranslated: list[Found]

    def count(self, becomes: str) -> int:
        return sum(planned.becomes == becomes for planned in self.schedules)


async def make_plan(
    app: Duetime, found: Iterable[Found], *, prefix: str = "", shadow: bool = False
) -> Plan:
    """Check what was found, and compare it with what is stored. Writes nothing.

    `prefix` comes before each name. `shadow`: as canaries, which are recorded and not run.
    """
    named = [msgspec.structs.replace(one, name=prefix + one.name) for one in found]
    store = await app.store()
    names = sorted({one.name for one in named})
    stored: list[Schedule] = await store.transact(
        ScheduleStatements(store.dialect).find(names), reads=True
    )
    known = {schedule.name: schedule for schedule in stored}
    now = await app.now()
    plan = Plan([], [])
    taken: set[str] = set()
    for one in named:
        try:
            planned = _plan(app, one, known.get(one.name), shadow=shadow, taken=taken)
            _check_to_come(planned.schedule, now)
        except InvalidInput as error:
            plan.untranslated.append(msgspec.structs.replace(one, reason=plain_end(error)))
        else:
            plan.schedules.append(planned)
            taken.add(one.name)
    return plan


async def apply_plan(app: Duetime, plan: Plan, *, by: str) -> Plan:
    """Store what the plan has, in one transaction; return it with what became of each.

    What is not enabled in the source is paused when it is added; later, a pause stays as it is.
    """
    actor = check_name(by, what="actor (by=)")
    store = await app.store()
    statements = ScheduleStatements(store.dialect)
    answer: dict[str, str] = await store.transact(_write(statements, plan.schedules, actor))
    done = [
        msgspec.structs.replace(planned, becomes=answer[planned.schedule.name])
        for planned in plan.schedules
    ]
    return msgspec.structs.replace(plan, schedules=done)


def _write(statements: ScheduleStatements, schedules: Sequence[Planned], actor: str) -> Statements:
    new = [planned.schedule for planned in schedules]
    answer = yield from statements.apply(new, actor=actor, prune=False)
    for planned in schedules:
        name, reason = planned.schedule.name, planned.found.paused
        if reason is not None and answer[name] == "added":
            yield from statements.pause(name, actor=actor, reason=reason, until=None)
    return answer


def _plan(
    app: Duetime, found: Found, stored: Schedule | None, *, shadow: bool, taken: set[str]
) -> Planned:
    """Return what becomes of it, or raise `InvalidInput` with the reason for which nothing does."""
    if found.reason is not None:
        raise InvalidInput(found.reason)
    if found.name in taken:
        raise InvalidInput("another schedule of the source has the same name")
    if stored is not None and stored.declared:
        raise InvalidInput("the code declares a schedule with this name; use --prefix")
    _check_json(found.args)
    policy = {**found.policy, "shadow": True} if shadow else dict(found.policy)
    new = app.schedules.define(
        found.name,
        found.task or NO_TASK,
        *found.specs,
        args=found.args,
        tz=found.tz,
        exclude=found.exclude,
        start=found.start,
        end=found.end,
        jitter=found.jitter,
        queue=found.queue,
        **policy,
    )
    notes = _notes(app, found, stored)
    if found.task is None:
        return Planned(found, new, "needs --task", notes=notes)
    if stored is None:
        return Planned(found, new, "added", notes=notes)
    differences = tuple(_differences(new, stored))
    return Planned(found, new, "changed" if differences else "same", differences, notes)


def _check_to_come(schedule: NewSchedule, now: datetime) -> None:
    if next(schedule.timetable.ticks(now), None) is None:
        raise InvalidInput(f"it has ended: '{schedule.timetable.describe()}' has no further tick")


def _notes(app: Duetime, found: Found, stored: Schedule | None) -> tuple[str, ...]:
    notes = found.notes
    if found.task is not None and app.tasks and found.task not in app.tasks:
        note = f"the app has no task {found.task!r}: its jobs wait until a worker knows it;"
        notes += (f"{note} --task-map gives it another name",)
    if found.paused is not None and stored is not None and stored.paused_at is None:
        notes += (f"it is {found.paused}, but goes on here: pause it, if it should not",)
    return notes


def _differences(new: NewSchedule, stored: Schedule) -> list[str]:
    pairs: dict[str, tuple[Any, Any]] = {
        "task": ((new.kind, new.target), (stored.kind, stored.target)),
        "args": (msgspec.json.decode(bytes(new.args)), msgspec.json.decode(stored.args)),
        "times": (new.timetable.to_json(), stored.timetable.to_json()),
        "policy": (new.policy, stored.policy),
        "queue": ((new.queue, new.priority), (stored.queue, stored.priority)),
        "limits": ((new.max_attempts, new.timeout), (stored.max_attempts, stored.timeout)),
        "broken": (None, stored.broken),
    }
    return [name for name, (ours, theirs) in pairs.items() if ours != theirs]


def _check_json(args: Any) -> None:
    try:
        msgspec.json.encode(args)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"its arguments cannot be encoded as JSON: {error}") from None
