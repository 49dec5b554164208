"""Schedules and their ledger as values, and as the rows and documents that statements take."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.keys import run_key
from duetime.domain.reasons import Reason, read_reason
from duetime.domain.schedules.plan import PlannedTick
from duetime.domain.schedules.schedule import Policy, Schedule, TickStatus, check_policy
from duetime.domain.schedules.timetable import Timetable
from duetime.errors import InvalidInput, MissingPackage
from duetime.storage.store import Row

Moment = Callable[[Any], datetime]
"""How a backend's time is read: see `Dialect`."""
MICROSECOND = timedelta(microseconds=1)


class ClaimedRun(msgspec.Struct, frozen=True):
    """A claimed job that is a schedule's run."""

    job_id: int
    schedule_id: int
    tick: datetime
    clear: bool
    """It may start at once; else `decide` decides."""
    unbegun: bool = False
    """It has not begun, even if its job was claimed before: `decide` decides, also on a retry."""
    status: TickStatus = TickStatus.ARMED
    start_by: datetime | None = None
    """Until when its start is on time."""
    previous_status: TickStatus | None = None
    """Its status before `decide` let it start."""


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it was requested."""

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
    owner: str | None = None
    """The service whose code declares it."""
    renamed_from: str | None = None
    """The name that it had before."""
    stored: bool = True
    """False: it lives in the memory of each worker, and only its jobs are stored."""


class Declarer(msgspec.Struct, frozen=True):
    """Whose code declares schedules, and which release of it."""

    service: str = "default"
    release: str = ""


class TickInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the ledger as people see it."""

    schedule: str
    tick: datetime
    run_at: datetime
    status: TickStatus
    reason: Reason | None
    job_id: int | None
    enqueued_at: datetime | None
    claimed_at: datetime | None
    claimed_by: str | None
    started_at: datetime | None
    finished_at: datetime | None
    duration: timedelta | None
    succeeded: bool | None
    error: str | None


# Rows


def read_schedule(row: Row, moment: Moment) -> Schedule:
    """A row of `schedule_lock` or `schedule_find`; what cannot be read is `broken`, or only in this
    process `unreadable`."""

    def maybe(value: Any) -> datetime | None:
        return None if value is None else moment(value)

    broken = None if row[20] is None else read_reason(row[20])
    unreadable = None
    timetable, policy, args = _NEVER, Policy(), "{}"
    try:
        policy = read_policy(row[10])
        args = read_args(row[4])
        timetable = read_timetable(row[9])
    except MissingPackage as error:
        unreadable = str(error)
    except InvalidInput as error:
        broken = broken or Reason.of("definition_unusable", text=str(error))
    return Schedule(
        id=row[0], name=row[1], kind=row[2], target=row[3], args=args, queue=row[5],
        priority=row[6], max_attempts=row[7],
        timeout=None if row[8] is None else row[8] * MICROSECOND,
        timetable=timetable, policy=policy, planned_until=moment(row[11]),
        next_run_at=maybe(row[12]), last_run_at=maybe(row[13]),
        last_enqueued_at=maybe(row[14]), paused_at=maybe(row[15]), paused_by=row[16],
        pause_reason=row[17], paused_until=maybe(row[18]), failures=row[19], broken=broken,
        declared=bool(row[21]), revision=row[22], created_at=moment(row[23]),
        updated_at=moment(row[24]), owner=row[26],
        unreadable=unreadable,
    )  # fmt: skip


def read_tick(row: Row, moment: Moment) -> TickInfo:
    def maybe(value: Any) -> datetime | None:
        return None if value is None else moment(value)

    started, finished = maybe(row[10]), maybe(row[11])
    return TickInfo(
        schedule=row[0], tick=moment(row[1]), run_at=moment(row[2]),
        status=TickStatus(row[3]), reason=read_reason(row[5]), job_id=row[6],
        enqueued_at=maybe(row[7]), claimed_at=maybe(row[8]), claimed_by=row[9],
        started_at=started, finished_at=finished,
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
    except Exception as error:  # noqa: BLE001 - whatever is stored, the others continue
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
        "owner": schedule.owner,
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


def wanted(given: NewSchedule | Schedule) -> tuple[Any, ...]:
    """What two schedules must have in common to be the same."""
    args = given.args if isinstance(given.args, str) else bytes(given.args)
    return (
        given.kind, given.target, msgspec.json.decode(args), given.queue, given.priority,
        given.max_attempts, given.timeout, given.timetable.to_json(), given.policy, given.declared,
    )  # fmt: skip


def schedule_document(given: NewSchedule | Schedule, planned_until: datetime) -> dict[str, Any]:
    args = given.args.encode() if isinstance(given.args, str) else bytes(given.args)
    return {
        "kind": given.kind,
        "target": given.target,
        "args": msgspec.Raw(args),
        "queue": given.queue,
        "priority": given.priority,
        "max_attempts": given.max_attempts,
        "timeout": None if given.timeout is None else given.timeout // MICROSECOND,
        "timetable": given.timetable.to_json(),
        "policy": msgspec.to_builtins(given.policy),
        "owner": given.owner,
        "declared": given.declared,
        "planned_until": planned_until,
    }


def tick_document(schedule: Schedule, tick: PlannedTick) -> dict[str, Any]:
    expires = schedule.policy.expires
    expires_from = tick.expires_from or tick.run_at
    return {
        "schedule_id": schedule.id,
        "tick": tick.tick,
        "run_at": tick.run_at,
        "status": tick.status,
        "runs_as": tick.runs_as,
        "reason": tick.reason,
        "has_job": tick.status is TickStatus.ARMED,
        "key": run_key(schedule.name, tick.tick),
        "again": tick.again,
        "expires_from": expires_from,
        "expires_at": None if expires is None else expires_from + expires,
    }
