"""Record a real Celery app's beat_schedule. See README.md."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from tests.recorded.objects import write

celery, schedules = import_module("celery"), import_module("celery.schedules")
crontab = schedules.crontab
BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 1, 1, tzinfo=UTC)

app = celery.Celery("shop", broker="memory://")
app.conf.timezone = "Europe/Berlin"


@app.task(name="shop.add")
def add(a: int, b: int) -> int:
    return a + b


app.conf.beat_schedule = {
    "office": {
        "task": "shop.send",
        "schedule": crontab(minute="*/15", hour="8-18", day_of_week="mon-fri"),
        "kwargs": {"item_id": 7},
        "options": {"queue": "mail", "expires": 60.0, "priority": 3},
    },
    "sunday": {"task": "shop.send", "schedule": crontab(minute=0, hour={1, 3}, day_of_week=0)},
    "saturday": {"task": "shop.send", "schedule": crontab(minute=0, hour=4, day_of_week="6")},
    "days": {"task": "shop.send", "schedule": crontab(0, 1, day_of_week="sunday,3-5/2")},
    "weekend": {"task": "shop.send", "schedule": crontab(0, "22-2", day_of_week="fri-mon")},
    "even": {"task": "shop.send", "schedule": crontab(0, "*/6", day_of_week="*/2")},
    "first-monday": {"task": "shop.send", "schedule": crontab(30, 7, "1", day_of_month="1-7")},
    "friday-13": {"task": "shop.send", "schedule": crontab(0, 0, 5, day_of_month=13)},
    "odd-mondays": {"task": "shop.send", "schedule": crontab(0, 0, "mon", day_of_month="*/2")},
    "quarter": {
        "task": "shop.send",
        "schedule": crontab(0, 5, day_of_month="1", month_of_year="*/3"),
    },
    "named": {"task": "shop.send", "schedule": crontab(5, [6, 7], month_of_year="jan,march")},
    "seconds": {"task": "shop.send", "schedule": 30.0},
    "span": {"task": "shop.send", "schedule": timedelta(minutes=5)},
    "relative": {"task": "shop.send", "schedule": schedules.schedule(7200, relative=True)},
    "too-often": {"task": "shop.send", "schedule": 0.5},
    "sunset": {"task": "shop.send", "schedule": schedules.solar("sunset", -37.8, 144.9)},
    "cleanup": {"task": "celery.backend_cleanup", "schedule": crontab(0, 4)},
    "own-clock": {"task": "shop.send", "schedule": crontab(0, 4, nowfun=datetime.now)},
    "options": {
        "task": "shop.send",
        "schedule": 60,
        "options": {"expires": timedelta(minutes=2), "countdown": 5},
    },
}


@app.on_after_configure.connect
def add_more(sender: Any, **_: Any) -> None:
    sender.add_periodic_task(90.0, add.s(1, b=2), name="added")


def fires(schedule: Any) -> list[datetime] | None:
    """When Celery would run it next, by its own reckoning."""
    if not isinstance(schedule, crontab) or schedule.nowfun is not None:
        return None
    fields = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
    given = {name: getattr(schedule, f"_orig_{name}") for name in fields}

    def walk() -> Any:
        now = START.astimezone(BERLIN)
        while True:
            clock = crontab(**given, nowfun=lambda now=now: now, app=app)
            start, ahead, _ = clock.remaining_delta(now)
            now = start + ahead
            yield now.astimezone(UTC)

    return list(islice(walk(), 12))


entries = dict(app.conf.beat_schedule)
app.finalize()
write(
    "celery_beat.json",
    {
        "timezone": app.conf.timezone,
        "enable_utc": app.conf.enable_utc,
        "beat_schedule": {name: dict(entry) for name, entry in entries.items()},
        "fires": {name: fires(entry["schedule"]) for name, entry in entries.items()},
    },
)
