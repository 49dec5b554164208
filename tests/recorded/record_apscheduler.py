"""Record real schedulers of APScheduler, version 3 or 4. See README.md."""

from __future__ import annotations

import sqlite3
import sys
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

from tests.recorded.objects import HERE, write

VERSION = version("apscheduler")[0]
START = datetime(2026, 1, 1, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
date_trigger = import_module("apscheduler.triggers.date").DateTrigger
interval = import_module("apscheduler.triggers.interval").IntervalTrigger
cron = import_module("apscheduler.triggers.cron").CronTrigger
combining = import_module("apscheduler.triggers.combining")
calendar = import_module("apscheduler.triggers.calendarinterval").CalendarIntervalTrigger

# The jobs need functions that can be imported.
jobs = sys.modules["shop_jobs"] = ModuleType("shop_jobs")
exec("def send(item_id=0): ...\nclass Shop:\n    def open(self): ...", vars(jobs))
FIRST, LAST = ("start_date", "end_date") if VERSION == "3" else ("start_time", "end_time")


def crons() -> dict[str, Any]:
    begin = {} if VERSION == "3" else {"start_time": START.astimezone(BERLIN)}
    given: dict[str, dict[str, Any]] = {
        "monday": {"day_of_week": 0 if VERSION == "3" else 1, "hour": 9},
        "sunday": {"day_of_week": "6" if VERSION == "3" else "0", "hour": 9},
        "office": {"day_of_week": "mon-fri", "hour": "8-18", "minute": "*/15"},
        "stars": {"day_of_week": "*/2", "hour": 3},
        "first-monday": {"day": "1-7", "day_of_week": "mon", "hour": 7, "minute": 30},
        "friday-13": {"day": 13, "day_of_week": "fri"},
        "second-friday": {"day": "2nd fri", "hour": 6},
        "last-sunday": {"day": "last sun", "hour": 6},
        "month-end": {"day": "last", "hour": 23},
        "either": {"day": "15,last,1st mon", "hour": 12},
        "named": {"month": "jan-mar", "day": 1},
        "seconds": {"second": "*/20"},
        "in-2027": {"year": 2027, "month": 6, "day": 1},
        "weeks": {"week": "1-10", "day_of_week": "mon"},
    }
    return {
        name: cron(**{"timezone": "Europe/Berlin", **begin, **fields})
        for name, fields in given.items()
    } | {
        "bounded": cron(
            hour=9,
            timezone="Europe/Berlin",
            **{
                FIRST: datetime(2026, 2, 1, tzinfo=BERLIN),
                LAST: datetime(2026, 2, 3, 9, tzinfo=BERLIN),
            },
        ),
    }


def others() -> dict[str, Any]:
    anchor = datetime(2026, 1, 5, 6, 30, tzinfo=UTC)
    return {
        "every": interval(minutes=10),
        "every-week": interval(weeks=1, **{FIRST: anchor}),
        "once": date_trigger(datetime(2099, 1, 1, 9, tzinfo=BERLIN)),
        "over": date_trigger(datetime(2020, 1, 1, 9, tzinfo=BERLIN)),
        "both": combining.OrTrigger([cron(hour=1), cron(hour=2)]),
        "calendar": calendar(months=1),
    }


def fires(trigger: Any) -> list[datetime]:
    """When it fires from START on, by its own reckoning."""
    found: list[datetime] = []
    previous = None
    while len(found) < 8:
        if VERSION == "3":
            previous = trigger.get_next_fire_time(previous, previous or START)
        else:
            previous = trigger.next()
        if previous is None:
            break
        found.append(previous.astimezone(UTC))
    return found


def record_jobs() -> None:
    background = import_module("apscheduler.schedulers.background").BackgroundScheduler
    scheduler = background(timezone="Europe/Berlin")
    for name, trigger in (crons() | others()).items():
        scheduler.add_job("shop_jobs:send", trigger, id=name, kwargs={"item_id": 7})
    scheduler.add_job("shop_jobs:send", "interval", minutes=1, args=[3])
    scheduler.add_job("shop_jobs:send", "interval", minutes=1, args=[3])
    scheduler.add_job("shop_jobs:send", "interval", minutes=2, args=[3])
    scheduler.add_job(
        "shop_jobs:send", "cron", hour=1, id="paused", next_run_time=None, jitter=120,
        coalesce=False, misfire_grace_time=300, max_instances=3, executor="processes",
    )  # fmt: skip
    scheduler.add_job(lambda: None, "cron", hour=1, id="nameless")
    pending = scheduler.get_jobs()
    write(
        "apscheduler3.json", {"jobs": pending, "fires": {n: fires(t) for n, t in crons().items()}}
    )


def record_store() -> None:
    background = import_module("apscheduler.schedulers.background").BackgroundScheduler
    with TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.db"
        scheduler = background(timezone="Europe/Berlin")
        scheduler.add_jobstore("sqlalchemy", url=f"sqlite:///{file}")
        scheduler.start(paused=True)
        soon = crons()
        for name in ("monday", "first-monday", "month-end", "bounded"):
            if name != "bounded":
                scheduler.add_job("shop_jobs:send", soon[name], id=name, kwargs={"item_id": 7})
        scheduler.add_job("shop_jobs:send", interval(days=1), id="daily", kwargs={"item_id": 7})
        scheduler.add_job("shop_jobs:send", others()["once"], id="once", args=[3])
        scheduler.add_job("shop_jobs:send", "cron", hour=1, id="paused", next_run_time=None)
        scheduler.add_job(jobs.Shop().open, "cron", hour=1, id="method")
        scheduler.shutdown()
        connection = sqlite3.connect(file)
        (HERE / "apscheduler_jobs.sql").write_text("\n".join(connection.iterdump()) + "\n")


def record_schedules() -> None:
    structures = import_module("apscheduler")
    schedules = [
        structures.Schedule(
            id=name, task_id="shop_jobs:send", trigger=trigger, kwargs={"item_id": 7},
            job_executor="default",
        )
        for name, trigger in (crons() | others()).items()
    ]  # fmt: skip
    schedules.append(
        structures.Schedule(
            id="paused", task_id="shop_jobs:send", trigger=cron(hour=1, timezone="UTC"),
            paused=True, coalesce=structures.CoalescePolicy.all, max_jitter=timedelta(minutes=2),
            misfire_grace_time=timedelta(minutes=5), job_executor="processpool",
        )
    )  # fmt: skip
    write(
        "apscheduler4.json",
        {"jobs": schedules, "fires": {name: fires(t) for name, t in crons().items()}},
    )


if VERSION == "3":
    record_jobs()
    record_store()
else:
    record_schedules()
