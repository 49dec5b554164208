"""Celery's `beat_schedule`. Celery itself is not imported: its objects are known by what they have.

Django's tables hold the same calls and fields, so `django_celery_beat` uses these pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from duetime.errors import InvalidInput
from duetime.integrations.importing.fields import read_numbers, write_cron
from duetime.integrations.importing.found import (
    Found,
    Tasks,
    Untranslatable,
    interval_notes,
    translate_each,
    zone_name,
)

OWN_TASKS = ("celery.backend_cleanup",)
"""What Celery schedules for itself."""
_CRON_FIELDS = {
    "minute": "minute",
    "hour": "hour",
    "day": "day_of_month",
    "month": "month_of_year",
    "weekday": "day_of_week",
}
_MILLISECOND = timedelta(milliseconds=1)


class Beat(NamedTuple):
    """What an app schedules, and the zone in which its crontabs are read."""

    entries: Mapping[str, Mapping[str, Any]]
    tz: str | None


def read_app(app: Any) -> Beat:
    """Return the schedule of a Celery app, with all that its modules add to it.

    Like beat, it loads the app's task modules: they may add to the schedule.
    """
    conf = getattr(app, "conf", None)
    if conf is None or not hasattr(conf, "beat_schedule"):
        raise InvalidInput(f"A {type(app).__name__} has no conf.beat_schedule. Give a Celery app.")
    app.loader.import_default_modules()
    app.finalize()
    entries = {str(name): dict(entry) for name, entry in conf.beat_schedule.items()}
    zone = conf.timezone or ("UTC" if conf.enable_utc else None)
    return Beat(entries, zone_name(zone))


def translate(beat: Beat, *, tasks: Tasks, tz: str | None = None) -> list[Found]:
    """Translate the entries of a `beat_schedule`; `tz` is for an app that has no zone."""

    def name_of(item: tuple[str, Mapping[str, Any]]) -> tuple[str, str, str | None]:
        return item[0], "beat_schedule", item[1].get("task")

    def one(item: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
        entry = item[1]
        times = read_schedule(entry.get("schedule"), beat.tz, tz)
        options, notes = read_options(entry.get("options") or {})
        call = read_call(tasks, entry.get("task"), entry.get("args"), entry.get("kwargs"))
        return call | times | options | {"notes": (*times.get("notes", ()), *notes)}

    return translate_each(beat.entries.items(), name_of, one)


def read_schedule(schedule: Any, app_tz: str | None, tz: str | None) -> dict[str, Any]:
    """Return the times of a schedule as fields of `Found`."""
    if isinstance(schedule, int | float):
        schedule = timedelta(seconds=schedule)
    if hasattr(schedule, "_orig_minute"):
        return _read_crontab(schedule, app_tz, tz)
    every = schedule if isinstance(schedule, timedelta) else getattr(schedule, "run_every", None)
    if isinstance(every, timedelta):
        return read_interval(every)
    kind = type(schedule).__name__
    if hasattr(schedule, "lat"):
        raise Untranslatable(solar_reason(getattr(schedule, "event", "solar")))
    raise Untranslatable(f"it is a schedule of the unknown class {kind}")


def read_cron_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of Celery's five fields; the keys are Celery's."""
    fields = {ours: read_numbers(given[theirs], ours) for ours, theirs in _CRON_FIELDS.items()}
    spec, exclude = write_cron(**fields)
    return {"specs": (spec,), "exclude": exclude}


def read_interval(every: timedelta) -> dict[str, Any]:
    whole = every // _MILLISECOND * _MILLISECOND or every
    return {"specs": (whole,), "notes": interval_notes(whole)}


def read_call(tasks: Tasks, origin: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return task and arguments as fields of `Found`."""
    if not isinstance(origin, str) or not origin:
        raise Untranslatable("it has no task")
    if origin in OWN_TASKS:
        raise Untranslatable(
            "it is an internal maintenance task of Celery, which Duetime does not need"
        )
    if not isinstance(args or (), Sequence) or not isinstance(kwargs or {}, Mapping):
        raise Untranslatable(
            "its arguments are not a list, or its keyword arguments are not a mapping"
        )
    task = tasks.rename(origin)
    return {"task": task, "args": tasks.bind(task, args or (), kwargs or {})}


def read_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return Celery's options of a call as fields of `Found`, and what is to be said of them."""
    fields: dict[str, Any] = {}
    notes = []
    for name, value in options.items():
        if value is None or value == {}:
            continue
        if name == "queue":
            fields["queue"] = str(getattr(value, "name", value))
            notes.append(f"it runs on the queue {fields['queue']}: let a worker serve it")
        elif name == "expires" and isinstance(value, int | float | timedelta):
            span = value if isinstance(value, timedelta) else timedelta(seconds=value)
            fields["policy"] = {"expires": span}
        elif name == "expires" and isinstance(value, datetime) and value.tzinfo is not None:
            fields["end"] = value
        elif name == "priority":
            notes.append(
                f"its priority {value} is left out: brokers count it differently; here 0 is first"
            )
        else:
            notes.append(f"its option {name} is left out: give the task what it needs of it")
    return fields, notes


def solar_reason(event: Any) -> str:
    return (
        f"solar times ({event}) are not supported. Enqueue each day's run at "
        "its time, from a daily task"
    )


def _read_crontab(schedule: Any, app_tz: str | None, tz: str | None) -> dict[str, Any]:
    own = vars(schedule).get("tz")
    if getattr(schedule, "nowfun", None) is not None and own is None:
        raise Untranslatable("it has a clock of its own (nowfun), whose time zone is unknown")
    fields = {name: getattr(schedule, f"_orig_{name}") for name in _CRON_FIELDS.values()}
    zone = zone_name(own) if own is not None else app_tz
    if own is not None and zone is None:
        raise Untranslatable(f"its zone {own!r} has no IANA name")
    notes = []
    if zone is None and tz is None:
        notes.append("the app has no zone (enable_utc is off), so it is read as UTC: give --tz")
    return read_cron_fields(fields) | {"tz": zone or tz or "UTC", "notes": tuple(notes)}
