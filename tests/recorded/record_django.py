"""Record the tables of a real django-celery-beat, on SQLite and PostgreSQL. See README.md."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import urlsplit

from tests.recorded.objects import HERE

FILE = Path(mkdtemp()) / "django.db"
URL = sys.argv[1] if len(sys.argv) > 1 else None


def database() -> dict[str, Any]:
    if URL is None:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(FILE)}
    parts = urlsplit(URL)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


import_module("django.conf").settings.configure(
    DATABASES={"default": database()},
    INSTALLED_APPS=["django_celery_beat"],
    USE_TZ=True,
    TIME_ZONE="UTC",
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
)
import_module("django").setup()
import_module("django.core.management").call_command("migrate", verbosity=0)
models = import_module("django_celery_beat.models")


def crontab(**fields: Any) -> dict[str, Any]:
    return {"crontab": models.CrontabSchedule.objects.create(**fields)}


def interval(every: int, period: str) -> dict[str, Any]:
    return {"interval": models.IntervalSchedule.objects.create(every=every, period=period)}


def clocked(year: int) -> dict[str, Any]:
    at = datetime(year, 1, 1, 9, tzinfo=UTC)
    return {"clocked": models.ClockedSchedule.objects.create(clocked_time=at), "one_off": True}


def task(name: str, **fields: Any) -> None:
    models.PeriodicTask.objects.create(**{"name": name, "task": "shop.send", **fields})


task(
    "Nightly in New York",
    **crontab(minute="30", hour="2", timezone="America/New_York"),
    kwargs='{"item_id": 7}',
    queue="mail",
    expire_seconds=120,
    priority=4,
)
task("Sundays", **crontab(minute="0", hour="9", day_of_week="0", timezone="UTC"))
task("First Monday", **crontab(minute="0", hour="9", day_of_week="1", day_of_month="1-7"))
task("Turned off", **interval(10, "minutes"), enabled=False)
task("Bounded", **interval(3, "days"), start_time=datetime(2026, 5, 4, 6, 30, tzinfo=UTC),
     expires=datetime(2098, 1, 1, tzinfo=UTC))  # fmt: skip
task("Over", **interval(1, "hours"), expires=datetime(2020, 1, 1, tzinfo=UTC))
task("Too often", **interval(500, "microseconds"))
task("Once, in 2099", **clocked(2099))
task("Once, in 2020", **clocked(2020))
task("The next nine o'clock", **crontab(minute="0", hour="9", timezone="UTC"), one_off=True)
task("Ran once", **interval(5, "minutes"), one_off=True, enabled=False)
task("By position", **interval(30, "seconds"), args="[3]")
task("Broken", **interval(31, "seconds"), kwargs="{item_id: 7}")
task("Housekeeping", task="celery.backend_cleanup", **crontab(minute="0", hour="4"))
task(
    "Sunset",
    solar=models.SolarSchedule.objects.create(event="sunset", latitude=-37.8, longitude=144.9),
)

if URL is None:
    tables = [
        line
        for line in sqlite3.connect(FILE).iterdump()
        if re.match(r'(CREATE TABLE|INSERT INTO)\W+(IF NOT EXISTS\W+)?"?django_celery_beat_', line)
    ]
    (HERE / "django_celery_beat.sqlite.sql").write_text("\n".join(tables) + "\n")
else:
    dump = subprocess.run(
        ["pg_dump", "--inserts", "--no-owner", "--table", "django_celery_beat_*", URL],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    # Settings and psql's own commands belong to whoever restores it.
    kept = [
        line for line in dump.splitlines() if line and not re.match(r"--|SET |SELECT |\\", line)
    ]
    (HERE / "django_celery_beat.postgres.sql").write_text("\n".join(kept) + "\n")
