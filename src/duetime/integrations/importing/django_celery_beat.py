"""The tables of django-celery-beat: calls as Celery's, whose times are rows of other tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from duetime.domain.schedules.timetable import timetable
from duetime.errors import InvalidInput
from duetime.integrations.importing.celery_beat import (
    read_call,
    read_cron_fields,
    read_interval,
    read_options,
    solar_reason,
)
from duetime.integrations.importing.database import read_tables
from duetime.integrations.importing.found import (
    Found,
    Tasks,
    Untranslatable,
    plain_end,
    translate_each,
)

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

_TASKS = "django_celery_beat_periodictask"
_QUERIES = {
    _TASKS: "select * from django_celery_beat_periodictask order by name",
    "django_celery_beat_crontabschedule": "select * from django_celery_beat_crontabschedule",
    "django_celery_beat_intervalschedule": "select * from django_celery_beat_intervalschedule",
    "django_celery_beat_clockedschedule": "select * from django_celery_beat_clockedschedule",
    "django_celery_beat_solarschedule": "select * from django_celery_beat_solarschedule",
}
_PERIODS = ("days", "hours", "minutes", "seconds", "microseconds")


def read_database(url: str) -> Tables:
    """Read the tables, of whatever version: what a version does not have is empty."""
    return read_tables(url, _QUERIES, needed=_TASKS)


def translate(tables: Tables, *, now: datetime, tasks: Tasks, tz: str | None = None) -> list[Found]:
    """Translate the rows. What is not enabled is added paused; what is over is left out."""

    def name_of(row: Row) -> tuple[str, str, str | None]:
        return str(row["name"]), f"row {row['id']}", row.get("task")

    def one(row: Row) -> dict[str, Any]:
        times = _read_times(row, tables, tz)
        start, end = _moment(row.get("start_time")), _moment(row.get("expires"))
        if end is not None and end <= now:
            raise Untranslatable(f"it has ended: it expired at {end.isoformat()}")
        options, notes = read_options(_options(row))
        args, kwargs = _json(row, "args", "[]"), _json(row, "kwargs", "{}")
        call = read_call(tasks, row.get("task"), args, kwargs)
        found = call | times | options | {"start": start, "end": end}
        found["notes"] = (*(() if start else times.get("notes", ())), *notes)
        if row.get("one_off") and row.get("clocked_id") is None:
            found = _once(found, row, now)
        _check_to_come(found, now)
        if not row.get("enabled", True):
            found["paused"] = "not enabled in django-celery-beat"
        return found

    return translate_each(tables[_TASKS], name_of, one)


def _read_times(row: Row, tables: Tables, tz: str | None) -> dict[str, Any]:
    for kind in ("crontab", "interval", "clocked", "solar"):
        if row.get(f"{kind}_id") is not None:
            wanted = row[f"{kind}_id"]
            others = tables[f"django_celery_beat_{kind}schedule"]
            found = [other for other in others if other["id"] == wanted]
            if not found:
                raise Untranslatable(f"its {kind} {wanted} is not in the database")
            return _READERS[kind](found[0], tz)
    raise Untranslatable("it has no crontab, interval or clocked time")


def _read_crontab(row: Row, tz: str | None) -> dict[str, Any]:
    zone = str(row.get("timezone") or "")
    notes = () if zone or tz else ("its crontab has no zone, so it is read as UTC: give --tz",)
    return read_cron_fields(row) | {"tz": zone or tz or "UTC", "notes": notes}


def _read_interval(row: Row, tz: str | None) -> dict[str, Any]:
    if row["period"] not in _PERIODS:
        raise Untranslatable(f"its interval has the unknown unit {row['period']!r}")
    return read_interval(timedelta(**{row["period"]: int(row["every"])}))


def _read_clocked(row: Row, tz: str | None) -> dict[str, Any]:
    return {"specs": (_moment(row["clocked_time"]),)}


def _read_solar(row: Row, tz: str | None) -> dict[str, Any]:
    raise Untranslatable(solar_reason(row.get("event")))


_READERS = {
    "crontab": _read_crontab,
    "interval": _read_interval,
    "clocked": _read_clocked,
    "solar": _read_solar,
}


def _options(row: Row) -> dict[str, Any]:
    names = ("queue", "exchange", "routing_key", "priority")
    options = {name: row[name] for name in names if row.get(name) not in (None, "")}
    if row.get("expire_seconds") is not None:
        options["expires"] = row["expire_seconds"]
    if _json(row, "headers", "{}"):
        options["headers"] = row["headers"]
    return options


def _once(found: dict[str, Any], row: Row, now: datetime) -> dict[str, Any]:
    """A task that runs one time, at the next time of a crontab or an interval."""
    if not row.get("enabled", True) or row.get("total_run_count"):
        raise Untranslatable("it runs only once (one_off), and has run or was turned off")
    [spec] = found["specs"]
    if isinstance(spec, timedelta):
        begun = _moment(row.get("last_run_at")) or _moment(row["date_changed"]) or now
        at = found["start"] if found["start"] and found["start"] > now else begun + spec
    else:
        try:
            times = timetable(spec, tz=found["tz"], exclude=found["exclude"], start=found["start"])
            at = next(times.runs(now))
        except InvalidInput as error:
            raise Untranslatable(plain_end(error)) from None
    note = "it runs only once (one_off), at the next of its times"
    return found | {
        "specs": (at,), "exclude": (), "start": None, "end": None, "notes": (*found["notes"], note)
    }  # fmt: skip


def _check_to_come(found: dict[str, Any], now: datetime) -> None:
    [spec] = found["specs"]
    if isinstance(spec, datetime) and spec <= now:
        raise Untranslatable(f"its only time has passed: {spec.isoformat()}")


def _moment(value: Any) -> datetime | None:
    """A stored time. SQLite has them as text in UTC."""
    if value in (None, ""):
        return None
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _json(row: Row, column: str, empty: str) -> Any:
    try:
        return json.loads(row.get(column) or empty)
    except ValueError:
        raise Untranslatable(f"its {column} are not JSON: {row[column]!r:.80}") from None
