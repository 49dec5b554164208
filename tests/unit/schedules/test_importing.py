"""What others have, translated: the same times, by their own reckoning (see tests/recorded)."""

from __future__ import annotations

import doctest
import pickle
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duetime.domain.schedules.timetable import Timetable, timetable
from duetime.errors import InvalidInput
from duetime.integrations.importing import apscheduler, celery_beat, crontab, django_celery_beat
from duetime.integrations.importing.fields import every, read_numbers, write_cron
from duetime.integrations.importing.found import Found, Tasks, Untranslatable
from duetime.integrations.importing.pickled import read_pickle
from tests.recorded import beat
from tests.recorded.objects import HERE, read

START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)
TASKS = Tasks(arguments={"shop.add": ("a", "b"), "shop.send": ("item_id",)})
JOBS = Tasks(arguments={"shop_jobs.send": ("item_id",)})


def by_name(found: list[Found]) -> dict[str, Found]:
    named = {one.name: one for one in found if one.reason is None}
    return named | {one.name: one for one in found if one.name not in named}


def times(found: Found) -> Timetable:
    assert found.reason is None
    return timetable(
        *found.specs,
        tz=found.tz,
        exclude=found.exclude,
        start=found.start,
        end=found.end,
        jitter=found.jitter,
    )


def says(found: Found) -> str:
    return times(found).describe()


def runs(found: Found, count: int, after: datetime) -> list[datetime]:
    ticks = (tick.at for tick in times(found).ticks(after) if tick.excluded is None)
    return list(islice(ticks, count))


def test_examples_run() -> None:
    names = ("apscheduler", "crontab", "fields", "found")
    modules = [import_module(f"duetime.integrations.importing.{name}") for name in names]

    results = [doctest.testmod(module) for module in modules]

    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 5


# A crontab


def test_lines_become_schedules_of_one_task() -> None:
    text = "# nightly\n\n30  2 * * *\t/usr/bin/backup --full\n@weekly /usr/bin/clean\n"

    [nightly, weekly] = crontab.translate(text, task="run", tz="Europe/Berlin")

    assert (nightly.name, nightly.task, nightly.where) == ("backup", "run", "line 3")
    assert nightly.args == {"command": "/usr/bin/backup --full"}
    assert says(nightly) == "cron 30 2 * * * (Europe/Berlin)"
    assert nightly.notes == ()
    assert says(weekly) == "cron 0 0 * * 0 (Europe/Berlin)"


def test_zones_of_a_crontab_hold_from_their_line_on() -> None:
    text = (
        "0 1 * * * a\nTZ=Asia/Tokyo\n0 1 * * * b\n"
        'CRON_TZ = "America/New_York"\n0 1 * * * c\nCRON_TZ=Nowhere\n0 1 * * * d\n'
    )

    a, b, c, d = crontab.translate(text)

    assert [a.tz, b.tz, c.tz] == ["UTC", "Asia/Tokyo", "America/New_York"]
    assert "give --tz" in a.notes[0]
    assert "TZ=Asia/Tokyo is taken for the zone" in b.notes[0]
    with pytest.raises(InvalidInput, match="no time zone 'Nowhere'"):
        times(d)


def test_variables_and_users_are_told() -> None:
    text = "SHELL=/bin/bash\nMAILTO=''\n17 * * * * www-data cd / && run-parts /etc/cron.hourly\n"

    [hourly] = crontab.translate(text, tz="UTC", system=True)
    [mistaken] = crontab.translate("17 * * * * root run-parts /etc/cron.hourly", tz="UTC")

    assert hourly.args == {"command": "cd / && run-parts /etc/cron.hourly"}
    assert hourly.name == "run-parts-cron.hourly"
    told = " ".join(hourly.notes)
    assert "user www-data" in told
    assert "SHELL=/bin/bash is left out" in told
    assert "MAILTO= is left out" in told
    assert "--system" in mistaken.notes[0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("@reboot /usr/bin/warm", "when the machine starts"),
        ("0 6 * * * mail -s hi ann%Hello", "standard input"),
        ("0 7 * *", "no command"),
        ("@daily", "no command"),
    ],
)
def test_lines_that_have_no_translation(line: str, reason: str) -> None:
    [found] = crontab.translate(line)

    assert reason in (found.reason or "")


def test_an_escaped_percent_sign_is_one() -> None:
    [found] = crontab.translate(r"0 5 * * * date +\%F > /tmp/day", tz="UTC")

    assert found.args == {"command": "date +%F > /tmp/day"}
    assert "became %" in found.notes[0]


def test_names_do_not_depend_on_the_line() -> None:
    lines = ["0 1 * * * backup a", "0 2 * * * backup a", "0 3 * * * other"]

    first = crontab.translate("\n".join(lines))
    later = crontab.translate("\n".join(["# moved", "", *lines, "0 1 * * * backup a"]))

    names = [found.name for found in first]
    assert names[0] == "backup-a"
    assert names[1].startswith("backup-a-")
    assert [found.name for found in later[:3]] == names
    assert "the same as 'backup-a'" in (later[3].reason or "")


# Celery


def test_crontabs_run_when_celery_would_run_them() -> None:
    found = by_name(celery_beat.translate(celery_beat.read_app(beat.app), tasks=TASKS))
    fires = {name: when for name, when in beat.recorded["fires"].items() if when is not None}
    translated = {name: when for name, when in fires.items() if found[name].reason is None}

    assert len(translated) >= 10
    for name, when in translated.items():
        assert runs(found[name], len(when), START) == when, name


def test_celery_counts_weekdays_from_sunday() -> None:
    found = by_name(celery_beat.translate(celery_beat.read_app(beat.app), tasks=TASKS))

    assert says(found["sunday"]) == "cron 0 1,3 * * SUN (Europe/Berlin)"
    assert says(found["saturday"]) == "cron 0 4 * * SAT (Europe/Berlin)"
    assert says(found["office"]) == "cron */15 8-18 * * MON-FRI (Europe/Berlin)"
    assert says(found["weekend"]) == "cron 0 0-2,22,23 * * SUN,MON,FRI,SAT (Europe/Berlin)"


def test_celery_wants_the_day_and_the_weekday() -> None:
    found = by_name(celery_beat.translate(celery_beat.read_app(beat.app), tasks=TASKS))

    assert says(found["first-monday"]) == "cron 30 7 * * MON#1 (Europe/Berlin)"
    assert "except * * 1-12,14-31 * *" in says(found["friday-13"])


def test_calls_of_celery_keep_their_arguments_and_options() -> None:
    found = by_name(celery_beat.translate(celery_beat.read_app(beat.app), tasks=TASKS))

    assert found["office"].args == {"item_id": 7}
    assert found["office"].queue == "mail"
    assert found["office"].policy == {"expires": timedelta(minutes=1)}
    assert any("priority 3" in note for note in found["office"].notes)
    assert found["options"].policy == {"expires": timedelta(minutes=2)}
    assert "option countdown" in found["options"].notes[0]
    assert found["added"].args == {"a": 1, "b": 2}
    assert says(found["added"]) == "every 1m30s"
    assert "counted from 1970" in found["relative"].notes[0]


def test_what_celery_has_and_a_timetable_cannot_say() -> None:
    found = by_name(celery_beat.translate(celery_beat.read_app(beat.app), tasks=Tasks()))

    assert "solar times" in (found["sunset"].reason or "")
    assert "internal maintenance task of Celery" in (found["cleanup"].reason or "")
    assert "nowfun" in (found["own-clock"].reason or "")
    assert "no names: (1,)" in (found["added"].reason or "")
    with pytest.raises(InvalidInput, match="at least 1s"):
        times(found["too-often"])


def test_an_app_without_a_zone_takes_the_one_given() -> None:
    entries = {"a": beat.app.conf.beat_schedule["sunday"]}

    [given] = celery_beat.translate(celery_beat.Beat(entries, None), tasks=TASKS, tz="Asia/Tokyo")
    [none] = celery_beat.translate(celery_beat.Beat(entries, None), tasks=TASKS)

    assert (given.tz, given.notes) == ("Asia/Tokyo", ())
    assert none.tz == "UTC"
    assert "give --tz" in none.notes[0]


# Django's tables


def tables(tmp_path: Path) -> django_celery_beat.Tables:
    file = tmp_path / "django.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript((HERE / "django_celery_beat.sqlite.sql").read_text())
    return django_celery_beat.read_database(f"sqlite:///{file}")


def test_rows_of_django_celery_beat(tmp_path: Path) -> None:
    found = by_name(django_celery_beat.translate(tables(tmp_path), now=NOW, tasks=TASKS))

    nightly = found["Nightly in New York"]
    assert says(nightly) == "cron 30 2 * * * (America/New_York)"
    assert (nightly.args, nightly.queue) == ({"item_id": 7}, "mail")
    assert nightly.policy == {"expires": timedelta(minutes=2)}
    assert says(found["Sundays"]) == "cron 0 9 * * SUN (UTC)"
    assert says(found["First Monday"]) == "cron 0 9 * * MON#1 (UTC)"
    assert found["Turned off"].paused == "not enabled in django-celery-beat"
    assert found["Sundays"].paused is None
    assert found["Bounded"].notes == ()
    assert runs(found["Bounded"], 2, NOW) == [
        datetime(2026, 11, 18, 6, 30, tzinfo=UTC),
        datetime(2026, 11, 21, 6, 30, tzinfo=UTC),
    ]
    assert found["Bounded"].end == datetime(2098, 1, 1, tzinfo=UTC)
    assert found["By position"].args == {"item_id": 3}


def test_one_off_rows_run_at_their_next_time(tmp_path: Path) -> None:
    found = by_name(django_celery_beat.translate(tables(tmp_path), now=NOW, tasks=TASKS))

    assert says(found["The next nine o'clock"]) == "at 2026-11-16T09:00:00Z"
    assert says(found["Once, in 2099"]) == "at 2099-01-01T09:00:00Z"
    assert "has passed" in (found["Once, in 2020"].reason or "")
    assert "has run or was turned off" in (found["Ran once"].reason or "")


def test_rows_that_have_no_translation(tmp_path: Path) -> None:
    rows = tables(tmp_path)
    [solar] = rows["django_celery_beat_solarschedule"]
    missing = {**rows, "django_celery_beat_solarschedule": [{**solar, "id": 99}]}

    found = by_name(django_celery_beat.translate(rows, now=NOW, tasks=Tasks()))
    without = by_name(django_celery_beat.translate(missing, now=NOW, tasks=Tasks()))

    assert "it has ended" in (found["Over"].reason or "")
    assert "not JSON" in (found["Broken"].reason or "")
    assert "solar times" in (found["Sunset"].reason or "")
    assert "internal maintenance task of Celery" in (found["Housekeeping"].reason or "")
    assert "give --app" in (found["By position"].reason or "")
    assert "not in the database" in (without["Sunset"].reason or "")


def test_tables_of_an_older_version_are_read(tmp_path: Path) -> None:
    """Before 1.4 there were no clocked times, no start, no priority, no zone of a crontab."""
    file = tmp_path / "old.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            """
            create table django_celery_beat_periodictask (id integer, name text, task text,
                args text, kwargs text, enabled bool, crontab_id integer, interval_id integer);
            create table django_celery_beat_crontabschedule (id integer, minute text, hour text,
                day_of_week text, day_of_month text, month_of_year text);
            insert into django_celery_beat_periodictask values
                (1, 'old', 'shop.send', '[]', '{}', 1, 1, null);
            insert into django_celery_beat_crontabschedule values (1, '0', '9', '*', '*', '*');
            """
        )

    [found] = django_celery_beat.translate(
        django_celery_beat.read_database(str(file)), now=NOW, tasks=TASKS, tz="Europe/Berlin"
    )

    assert says(found) == "cron 0 9 * * * (Europe/Berlin)"


# APScheduler


@pytest.mark.parametrize("version", ["3", "4"])
def test_triggers_fire_when_apscheduler_would_fire_them(version: str) -> None:
    recorded = read(f"apscheduler{version}.json")
    found = by_name(apscheduler.translate(recorded["jobs"], now=START, tasks=JOBS))
    translated = [name for name in recorded["fires"] if found[name].reason is None]

    assert len(translated) >= 13
    for name in translated:
        real = recorded["fires"][name]
        assert runs(found[name], len(real), START - timedelta(microseconds=1)) == real, name


def test_apscheduler_counts_weekdays_from_monday() -> None:
    """In version 3, `day_of_week=0` is a Monday; in 4, as in cron, a Sunday."""
    three, four = (
        by_name(apscheduler.translate(read(f"apscheduler{n}.json")["jobs"], now=NOW, tasks=JOBS))
        for n in "34"
    )

    for found in (three, four):
        assert found["monday"].specs == ("0 9 * * MON",)
        assert found["sunday"].specs == ("0 9 * * SUN",)
        assert found["stars"].specs == ("0 3 * * SUN,MON,WED,FRI",)


def test_special_days_of_apscheduler() -> None:
    found = by_name(apscheduler.translate(read("apscheduler3.json")["jobs"], now=NOW, tasks=JOBS))

    specs = {name: one.specs for name, one in found.items()}
    assert specs["second-friday"] == ("0 6 * * FRI#2",)
    assert specs["last-sunday"] == ("0 6 * * 0L",)
    assert specs["month-end"] == ("0 23 L * *",)
    assert specs["either"] == ("0 12 15,L * MON#1",)
    assert specs["seconds"] == ("*/20 * * * * *",)
    assert says(found["in-2027"]).endswith(
        "starting 2026-12-31T23:00:00Z, ending 2027-12-31T23:00:00Z"
    )


def test_options_of_apscheduler() -> None:
    three, four = (
        by_name(apscheduler.translate(read(f"apscheduler{n}.json")["jobs"], now=NOW, tasks=JOBS))
        for n in "34"
    )

    late = {"catch_up": "all", "max_age": timedelta(minutes=5)}
    assert three["paused"].policy == late | {"max_concurrent_runs": 3}
    assert four["paused"].policy == late
    for found in (three, four):
        assert found["paused"].paused == "paused in APScheduler"
        assert found["paused"].jitter == timedelta(minutes=2)
        assert found["monday"].paused is None
        assert found["monday"].policy == {}
        assert found["monday"].task == "shop_jobs.send"
        assert found["monday"].args == {"item_id": 7}


def test_jobs_without_an_id_have_the_same_name_each_time() -> None:
    """Their ids are random, and their starts the moment at which the program made them."""
    jobs = [job for job in read("apscheduler3.json")["jobs"] if len(job.id) == 32]
    others = read("apscheduler3.json")["jobs"]
    for job in others:
        job.id = job.id.replace("a", "b") if len(job.id) == 32 else job.id
        if type(job.trigger).__name__ == "IntervalTrigger" and job.trigger.start_date.microsecond:
            job.trigger.start_date += timedelta(minutes=3)

    first = apscheduler.translate(jobs, now=NOW, tasks=JOBS)
    again = by_name(apscheduler.translate(others, now=NOW, tasks=JOBS))

    assert [found.name for found in first[:2]] == ["send", "send"]
    assert "the same as 'send'" in (first[1].reason or "")
    assert first[2].name.startswith("send-")
    for found in (first[0], first[2]):
        assert times(again[found.name]) == times(found)


def test_what_apscheduler_has_and_a_timetable_cannot_say() -> None:
    found = by_name(apscheduler.translate(read("apscheduler3.json")["jobs"], now=NOW, tasks=JOBS))

    reasons = {name: one.reason or "" for name, one in found.items()}
    assert "weeks of the year" in reasons["weeks"]
    assert "has passed" in reasons["over"]
    assert "combines triggers" in reasons["both"]
    assert "RRULE" in reasons["calendar"]
    assert "no name" in reasons["nameless"]


def test_a_zone_without_a_name_needs_one() -> None:
    job = next(job for job in read("apscheduler3.json")["jobs"] if job.id == "monday")
    job.trigger.timezone = SimpleNamespace()

    [refused] = apscheduler.translate([job], now=NOW, tasks=JOBS)
    [given] = apscheduler.translate([job], now=NOW, tasks=JOBS, tz="Europe/Berlin")

    assert "give --tz" in (refused.reason or "")
    assert given.tz == "Europe/Berlin"


def test_a_job_store_is_read_without_running_its_code(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript((HERE / "apscheduler_jobs.sql").read_text())

    jobs = apscheduler.read_database(f"sqlite:///{file}")
    found = by_name(apscheduler.translate(jobs, now=NOW, tasks=JOBS))

    assert found["monday"].specs == ("0 9 * * MON",)
    assert found["first-monday"].specs == ("30 7 * * MON#1",)
    assert found["once"].args == {"item_id": 3}
    assert found["paused"].paused == "paused in APScheduler"
    assert "shop_jobs.Shop" in (found["method"].reason or "")
    [daily] = found["daily"].specs
    assert isinstance(daily, dict)
    assert daily["start"].microsecond == 0


class Harm:
    """What a pickle may be made to do."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_harmful_pickle_does_no_harm(tmp_path: Path, protocol: int) -> None:
    file = tmp_path / "harm"

    with pytest.raises(Untranslatable, match="is not allowed"):
        read_pickle(pickle.dumps({"trigger": Harm(file)}, protocol), library="apscheduler")

    assert not file.exists()


@pytest.mark.parametrize("data", [b"", b"nonsense", b"cbuiltins\neval\n(S'1'\ntR."])
def test_a_broken_pickle_has_a_reason(data: bytes) -> None:
    with pytest.raises(Untranslatable):
        read_pickle(data, library="apscheduler")


@pytest.mark.parametrize("name", ["now", "_unpickle"])
def test_getattr_in_a_pickle_reaches_nothing(name: str) -> None:
    data = f"cbuiltins\ngetattr\n(cdatetime\ndatetime\nS'{name}'\ntR.".encode()

    with pytest.raises(Untranslatable, match=f"attribute '{name}'"):
        read_pickle(data, library="apscheduler")


# The pieces


@pytest.mark.parametrize(
    ("value", "field", "numbers"),
    [
        ("7", "weekday", {0}),
        ("5-7", "weekday", {5, 6, 0}),
        ("monday,WED", "weekday", {1, 3}),
        ("[1, 15]", "day", {1, 15}),
        ({2, 4}, "hour", {2, 4}),
        ("nov-feb", "month", {11, 12, 1, 2}),
        ("50-10/10", "minute", {50, 0, 10}),
    ],
)
def test_fields_as_celery_writes_them(value: Any, field: str, numbers: set[int]) -> None:
    assert read_numbers(value, field).values == numbers


@pytest.mark.parametrize("value", ["", "60", "-1", "5/10", "*/0", "a", "1-", "1,,2", 1.5, None])
def test_fields_that_cannot_be_read(value: Any) -> None:
    with pytest.raises(Untranslatable):
        read_numbers(value, "minute")


def test_a_day_that_no_month_has() -> None:
    with pytest.raises(Untranslatable, match="never runs"):
        write_cron(
            minute=every("minute"),
            hour=every("hour"),
            day=read_numbers("30", "day"),
            month=read_numbers("2", "month"),
            weekday=read_numbers("1", "weekday"),
        )


def test_arguments_are_bound_by_name() -> None:
    tasks = Tasks(names={"old": "shop.add"}, arguments={"shop.add": ("a", "b")})

    assert tasks.rename("old") == "shop.add"
    assert tasks.rename("shop.jobs:send") == "shop.jobs.send"
    assert tasks.bind("shop.add", (1,), {"b": 2}) == {"a": 1, "b": 2}
    for args, kwargs in (((1, 2, 3), {}), ((1,), {"a": 2})):
        with pytest.raises(Untranslatable, match=r"do not fit shop\.add\(a, b\)"):
            tasks.bind("shop.add", args, kwargs)
