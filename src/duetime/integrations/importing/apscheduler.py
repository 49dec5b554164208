"""APScheduler: the jobs of a scheduler (3.x), its schedules (4.x), or the job store's table (3.x).

APScheduler itself is not imported: its objects are known by their classes' names and attributes.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from duetime.domain.schedules.cron import parse_zone, to_instant
from duetime.errors import InvalidInput
from duetime.integrations.importing.database import read_tables
from duetime.integrations.importing.fields import (
    BOUNDS,
    WEEKDAYS,
    Numbers,
    every,
    write_cron,
    write_field,
)
from duetime.integrations.importing.found import (
    Found,
    Tasks,
    Untranslatable,
    interval_notes,
    name_apart,
    translate_each,
    zone_name,
)
from duetime.integrations.importing.pickled import read_pickle

_QUERIES = {"apscheduler_jobs": "select id, job_state from apscheduler_jobs order by id"}
_RANDOM_ID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MICROSECOND = timedelta(microseconds=1)
_YEARS = (1970, 9999)
_MAX_YEARS = 8999


class Job(SimpleNamespace):
    """A job of the store: `stored` says that its trigger's start is the same each time."""


def read_database(source: str) -> list[Any]:
    """Read a job store's table, running no code: what cannot be read has an `unreadable`."""
    jobs = []
    for row in read_tables(source, _QUERIES, needed="apscheduler_jobs")["apscheduler_jobs"]:
        try:
            state = read_pickle(bytes(row["job_state"]), library="apscheduler")
            jobs.append(Job(**state, func_ref=state["func"], stored=True))
        except (Untranslatable, LookupError, TypeError) as error:
            jobs.append(Job(id=row["id"], unreadable=str(error)))
    return jobs


def read_scheduler(scheduler: Any) -> list[Any]:
    """Return the jobs of a scheduler, or a list of jobs as it is. It is not started."""
    if isinstance(scheduler, list | tuple):
        return list(scheduler)
    if hasattr(scheduler, "get_jobs") and not hasattr(scheduler, "get_schedules"):
        return list(scheduler.get_jobs())
    if not hasattr(scheduler, "get_schedules"):
        raise InvalidInput(
            f"A {type(scheduler).__name__} has neither get_jobs() nor get_schedules(). Give an "
            "APScheduler scheduler."
        )
    if not inspect.iscoroutinefunction(scheduler.get_schedules):
        with scheduler:
            return list(scheduler.get_schedules())

    async def read() -> list[Any]:
        async with scheduler:
            return list(await scheduler.get_schedules())

    return asyncio.run(read())


def translate(
    jobs: Iterable[Any], *, now: datetime, tasks: Tasks, tz: str | None = None
) -> list[Found]:
    """Translate jobs (3.x) or schedules (4.x); `tz` is for zones without an IANA name."""

    def one(job: Any) -> dict[str, Any]:
        if reason := getattr(job, "unreadable", None):
            raise Untranslatable(reason)
        origin = _origin(job)
        if origin is None:
            raise Untranslatable("its function has no name under which it can be imported")
        if inspect.ismethod(getattr(job, "func", None)):
            raise Untranslatable(f"it calls a method of an object ({origin}): write a task for it")
        task = tasks.rename(origin)
        times = _read_trigger(job.trigger, now, tz, stored=getattr(job, "stored", False))
        policy, jitter, notes = _read_options(job)
        return times | {
            "task": task,
            "args": tasks.bind(task, tuple(job.args), dict(job.kwargs)),
            "policy": policy,
            "jitter": jitter or times.get("jitter"),
            "paused": "paused in APScheduler" if _is_paused(job) else None,
            "notes": (*times.get("notes", ()), *notes),
        }

    def name_of(job: Any) -> tuple[str, str, str | None]:
        return _name(job), f"job {job.id}", _origin(job)

    return name_apart(translate_each(jobs, name_of, one))


def _name(job: Any) -> str:
    """Its id, unless that is random: then it is another one whenever the program starts."""
    if not _RANDOM_ID.fullmatch(str(job.id)):
        return str(job.id)
    return str(getattr(job, "name", None) or _origin(job) or job.id)


def _origin(job: Any) -> str | None:
    reference = getattr(job, "func_ref", None) or getattr(job, "task_id", None)
    return None if reference is None else str(reference)


def _is_paused(job: Any) -> bool:
    if hasattr(job, "paused"):
        return bool(job.paused)
    # A job that waits for its scheduler to start has no such attribute yet.
    return hasattr(job, "next_run_time") and job.next_run_time is None


def _read_options(job: Any) -> tuple[dict[str, Any], timedelta | None, list[str]]:
    """The policy for what differs from APScheduler's own defaults, and a schedule's jitter."""
    policy: dict[str, Any] = {}
    notes = []
    coalesce = getattr(job, "coalesce", True)
    if coalesce is False or getattr(coalesce, "name", "latest") == "all":
        policy["catch_up"] = "all"
    elif getattr(coalesce, "name", "latest") == "earliest":
        notes.append(
            "coalesce=earliest becomes the latest: one run is caught up, for the last tick"
        )
    most = getattr(job, "max_instances", 1)
    if isinstance(most, int) and most > 1:
        policy["max_concurrent_runs"] = most
    late = getattr(job, "misfire_grace_time", None)
    if isinstance(late, timedelta) or (isinstance(late, int) and late != 1):
        policy["max_age"] = late if isinstance(late, timedelta) else timedelta(seconds=late)
    if (executor := getattr(job, "executor", "default")) not in (None, "default"):
        notes.append(f"its executor {executor} is left out: the worker runs it")
    return policy, getattr(job, "max_jitter", None), notes


# Triggers


def _read_trigger(trigger: Any, now: datetime, tz: str | None, *, stored: bool) -> dict[str, Any]:
    kind = type(trigger).__name__
    jitter = getattr(trigger, "jitter", None)
    common = {"jitter": timedelta(seconds=jitter) if jitter else None}
    match kind:
        case "CronTrigger":
            return common | _read_cron(trigger, tz)
        case "IntervalTrigger":
            return common | _read_interval(trigger, stored)
        case "DateTrigger":
            at = getattr(trigger, "run_date", None) or trigger.run_time
            if at <= now:
                raise Untranslatable(f"its only time has passed: {at.isoformat()}")
            return common | {"specs": (at.astimezone(UTC),)}
        case "CalendarIntervalTrigger":
            raise Untranslatable("it counts days, weeks, months or years: write it as an RRULE")
        case "AndTrigger" | "OrTrigger":
            raise Untranslatable(
                f"it combines triggers ({kind}): give the times as several specs of one schedule"
            )
    raise Untranslatable(f"it has a trigger of the unknown class {kind}")


def _read_interval(trigger: Any, stored: bool) -> dict[str, Any]:
    span = getattr(trigger, "interval", None) or trigger._interval
    start = _bound(trigger, "start")
    end = _bound(trigger, "end")
    notes: tuple[str, ...] = ()
    spec: dict[str, Any] = {"every": span}
    if start is not None and (stored or not start.microsecond):
        spec["start"] = start.replace(microsecond=0)
    else:
        # Nobody wrote this start: it is the moment at which the program made the trigger.
        notes = interval_notes(span)
    return {"specs": (spec,), "end": end and end + _MICROSECOND, "notes": notes}


def _read_cron(trigger: Any, tz: str | None) -> dict[str, Any]:
    fields = getattr(trigger, "fields", None) or trigger._fields
    parts = {field.name: field.expressions for field in fields}
    if not _is_any(parts["week"]):
        raise Untranslatable("it names weeks of the year, which cron expressions cannot")
    zone = zone_name(trigger.timezone) or tz
    if zone is None or zone == "local":
        raise Untranslatable(f"its zone {trigger.timezone} has no IANA name: give --tz")
    spec, exclude = _write_fields(parts)
    start, end = _bound(trigger, "start"), _bound(trigger, "end")
    if start is not None and start.microsecond:
        start = None
    first, last = _years(parts["year"], zone)
    starts = [moment for moment in (start, first) if moment is not None]
    ends = [moment for moment in (end and end + _MICROSECOND, last) if moment is not None]
    return {
        "specs": (spec,),
        "exclude": exclude,
        "tz": zone,
        "start": max(starts, default=None),
        "end": min(ends, default=None),
    }


def _write_fields(parts: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    times = {name: _numbers(parts[name], name) for name in ("second", "minute", "hour", "month")}
    weekday = _numbers(parts["day_of_week"], "day_of_week")
    # Monday is 0 in APScheduler.
    weekday = Numbers(frozenset((day + 1) % 7 for day in weekday.values), weekday.starred)
    special = [part for part in parts["day"] if hasattr(part, "option_num") or _is_last(part)]
    plain = [part for part in parts["day"] if not any(part is other for other in special)]
    if not special:
        return write_cron(**times, day=_numbers(plain, "day"), weekday=weekday)
    if len(weekday.values) < 7:
        raise Untranslatable("it names a day such as 'last' or '2nd fri', and weekdays besides")
    # In cron, a date fits if its day does or its weekday does: just what a list of days means.
    days = [write_field(Numbers(_numbers(plain, "day").values), "day")] if plain else []
    days += ["L" for part in special if _is_last(part)]
    weekdays = [_position(part) for part in special if not _is_last(part)]
    spec, _ = write_cron(**times, day=every("day"), weekday=weekday)
    *first, _, month, _ = spec.split()
    return " ".join([*first, ",".join(days) or "*", month, ",".join(weekdays) or "*"]), ()


def _position(part: Any) -> str:
    number = (part.weekday + 1) % 7
    return f"{number}L" if part.option_num == 5 else f"{WEEKDAYS[number]}#{part.option_num + 1}"


def _numbers(parts: Iterable[Any], name: str) -> Numbers:
    low, high = _YEARS if name == "year" else BOUNDS.get(name, (0, 6))
    values: set[int] = set()
    starred = False
    for part in parts:
        first, last = getattr(part, "first", None), getattr(part, "last", None)
        starred = starred or first is None
        begin = low if first is None else first
        end = high if last is None else last
        values.update(range(begin, end + 1, part.step or 1))
    return Numbers(frozenset(values), starred)


def _years(parts: Any, zone: str) -> tuple[datetime | None, datetime | None]:
    """The first and the last moment of its years, None if there is no such bound."""
    if _is_any(parts):
        return None, None
    years = sorted(_numbers(parts, "year").values)
    if years[-1] - years[0] != len(years) - 1:
        raise Untranslatable("it names years with gaps between them")
    known = parse_zone(zone)
    begin, end = years[0], min(years[-1] + 1, _MAX_YEARS)
    return (
        to_instant(datetime(begin, 1, 1), known),  # noqa: DTZ001
        to_instant(datetime(end, 1, 1), known),  # noqa: DTZ001
    )


def _bound(trigger: Any, which: str) -> datetime | None:
    """`start_date` in 3.x, `start_time` in 4.x."""
    moment = getattr(trigger, f"{which}_date", None) or getattr(trigger, f"{which}_time", None)
    return None if moment is None else moment.astimezone(UTC)


def _is_any(parts: Any) -> bool:
    return any(not hasattr(part, "first") and not part.step for part in parts)


def _is_last(part: Any) -> bool:
    return type(part).__name__ == "LastDayOfMonthExpression"
