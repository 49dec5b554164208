"""`duetime import`: a plan first, nothing written without --apply, the same when it is repeated."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duetime import Duetime
from tests.acceptance.command import ROOT, Answer, duetime
from tests.recorded.objects import HERE

CRONTAB = """\
CRON_TZ=Europe/Berlin
MAILTO=ops@example.com
*/15 9-17 * * mon-fri cd /srv/shop && ./manage.py sync >> /var/log/sync.log 2>&1
@daily /usr/local/bin/backup.sh
30 2 1,15 * * /usr/local/bin/backup.sh --full
@reboot /usr/local/bin/warm-up
61 * * * * oops
"""
NEW_SHOP = """\
from duetime import Duetime

app = Duetime()


@app.task(name="shop.send", queue="mail")
async def send(item_id: int = 0) -> None: ...


@app.task(name="shop.add")
async def add(a: int, b: int) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the command runs: with a crontab, and the app that will run the tasks."""
    (tmp_path / "crontab").write_text(CRONTAB)
    (tmp_path / "new_shop.py").write_text(NEW_SHOP)
    return tmp_path


@pytest.fixture
async def app(folder: Path) -> AsyncIterator[Duetime]:
    app = Duetime(url(folder), migrate=True)
    await app.store()
    yield app
    await app.close()


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'duetime.db'}"


def import_(folder: Path, *arguments: str, given: str = "") -> Answer:
    return duetime(url(folder), "import", *arguments, given=given, cwd=folder, PYTHONPATH=str(ROOT))


def becomes(answer: Answer) -> dict[str, str]:
    return {one["name"]: one["becomes"] for one in answer.json["schedules"]}


async def names(app: Duetime) -> list[str]:
    return [schedule.name for schedule in await app.schedules.list()]


async def test_a_plan_is_shown_and_nothing_written(folder: Path, app: Duetime) -> None:
    plan = import_(folder, "crontab", "crontab", "--task", "run_command")

    heading, *rows = plan.out.split("\n\n")[0].splitlines()
    assert plan.code == 0
    assert heading.split() == ["NAME", "TASK", "WHEN", "BECOMES"]
    assert rows[0].split()[:2] == ["manage.py-sync", "run_command"]
    assert "cron */15 9-17 * * MON-FRI (Europe/Berlin)" in rows[0]
    assert all(row.endswith("added") for row in rows)
    assert "MAILTO=ops@example.com is left out" in plan.out
    assert "warm-up (line 6): @reboot" in plan.out
    assert "oops (line 7): Cron expression '61 * * * *' has a bad minute field" in plan.out
    assert "3 schedules: 3 added, 0 changed, 0 the same; 2 not imported." in plan.out
    assert "Add --apply to apply it." in plan.out
    assert await names(app) == []


async def test_what_is_applied_is_the_same_afterwards(folder: Path, app: Duetime) -> None:
    again = ("crontab", "crontab", "--task", "run_command", "--by", "ann")

    done = import_(folder, *again, "--apply")
    same = import_(folder, *again, "--apply", "--json")
    moved = CRONTAB.replace("@daily", "@weekly")
    changed = import_(folder, "crontab", "-", "--task", "run_command", given=moved)

    assert done.out.endswith("3 schedules: 3 added, 0 changed, 0 the same; 2 not imported.\n")
    assert set(becomes(same).values()) == {"same"}
    assert same.json["applied"]
    assert [one["where"] for one in same.json["untranslated"]] == ["line 6", "line 7"]
    assert "changed (times)" in changed.out
    info = await app.schedules.get("backup.sh")
    assert (info.target, info.args) == ("run_command", {"command": "/usr/local/bin/backup.sh"})
    assert (info.when, info.revision) == ("cron 0 0 * * * (Europe/Berlin)", 1)
    assert {event.actor for event in await app.audit.list(kind="schedule")} == {"ann"}


async def test_without_a_task_the_plan_says_how_to_write_one(folder: Path, app: Duetime) -> None:
    plan = import_(folder, "crontab", "crontab")
    plain = import_(folder, "crontab", "crontab", "--json")
    refused = import_(folder, "crontab", "crontab", "--apply")

    assert plan.code == 0
    assert "def run_command(command: str) -> None:" in plan.out
    assert "needs --task" in plan.out
    assert plain.json["schedules"][0]["task"] is None
    assert refused.code == 2
    assert "--apply requires --task" in refused.error
    assert await names(app) == []


def test_a_system_crontab_has_users(folder: Path, app: Duetime) -> None:
    line = "17 * * * * root run-parts /etc/cron.hourly\n"

    plan = import_(
        folder, "crontab", "-", "--system", "--tz", "UTC", "--task", "run", "--json", given=line
    )

    [found] = plan.json["schedules"]
    assert found["args"] == {"command": "run-parts /etc/cron.hourly"}
    assert "user root" in found["notes"][0]


async def test_a_beat_schedule_is_taken_over(folder: Path, app: Duetime) -> None:
    beat = ("celery-beat", "tests.recorded.beat:app", "--app", "new_shop:app", "--prefix", "beat.")

    done = import_(folder, *beat, "--apply", "--json")
    same = import_(folder, *beat, "--json")

    assert done.code == 0
    assert set(becomes(done).values()) == {"added"}
    assert set(becomes(same).values()) == {"same"}
    office = await app.schedules.get("beat.office")
    assert office.when == "cron */15 8-18 * * MON-FRI (Europe/Berlin)"
    assert (await app.schedules.get("beat.added")).args == {"a": 1, "b": 2}
    refused = {one["name"]: one["reason"] for one in done.json["untranslated"]}
    assert set(refused) == {"beat.sunset", "beat.cleanup", "beat.own-clock", "beat.too-often"}


def test_tasks_are_checked_against_the_app(folder: Path, app: Duetime) -> None:
    beat = ("celery-beat", "tests.recorded.beat:app", "--app", "new_shop:app", "--only", "office")

    unknown = import_(folder, *beat, "--task-map", "shop.send=shop.mail", "--json")
    unfit = import_(folder, *beat, "--task-map", "shop.send=shop.add")

    [office] = unknown.json["schedules"]
    assert (office["task"], office["becomes"]) == ("shop.mail", "added")
    assert any("no task 'shop.mail'" in note for note in office["notes"])
    assert unfit.code == 1
    assert "The signature is shop.add" in unfit.out
    assert "No schedule in tests.recorded.beat:app could be imported" in unfit.error


async def test_canary_cut_over_and_rollback(folder: Path, app: Duetime) -> None:
    beat = ("celery-beat", "tests.recorded.beat:app", "--apply", "--json")

    async def shadows() -> dict[str, bool]:
        return {one.name: one.policy.shadow for one in await app.schedules.list()}

    canary = import_(folder, *beat, "--shadow")
    before = await shadows()
    cut_over = import_(folder, *beat, "--only", "sunday")
    during = await shadows()
    back = import_(folder, *beat, "--only", "sunday", "--shadow")

    assert canary.json["shadow"]
    assert len(before) > 10
    assert all(before.values())
    assert cut_over.json["schedules"][0]["differences"] == ["policy"]
    assert [name for name, shadow in during.items() if not shadow] == ["sunday"]
    assert becomes(back) == {"sunday": "changed"}
    assert await shadows() == before


async def test_what_is_not_enabled_is_paused_once(folder: Path, app: Duetime) -> None:
    source = folder / "django.db"
    with closing(sqlite3.connect(source)) as connection:
        connection.executescript((HERE / "django_celery_beat.sqlite.sql").read_text())
    name = "Turned off"

    plan = import_(folder, "django-celery-beat", "django.db")
    done = import_(folder, "django-celery-beat", f"sqlite:///{source}", "--apply", "--by", "ann")
    added = await app.schedules.get(name)
    await app.schedules[name].resume(by="bob")
    again = import_(folder, "django-celery-beat", "django.db", "--apply", "--json")

    assert "added, paused" in plan.out
    assert done.code == 0
    assert (added.enabled, added.paused_by) == (False, "ann")
    assert added.pause_reason == "not enabled in django-celery-beat"
    assert added.next_run_at is None
    assert set(becomes(again).values()) == {"same"}
    [told] = [one for one in again.json["schedules"] if one["name"] == name]
    assert "goes on here" in told["notes"][0]
    assert (await app.schedules.get(name)).enabled


async def test_django_celery_beat_on_postgresql(pg_url: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute((HERE / "django_celery_beat.postgres.sql").read_text().encode())
    duetime(pg_url, "db", "init")
    source = ("import", "django-celery-beat", pg_url.replace("://", "+psycopg2://", 1))

    done = duetime(pg_url, *source, "--apply", "--json")
    same = duetime(pg_url, *source, "--json")

    assert done.code == 0
    assert becomes(done).keys() == becomes(same).keys()
    assert set(becomes(same).values()) == {"same"}
    when = {one["name"]: one["when"] for one in done.json["schedules"]}
    assert when["Nightly in New York"] == "cron 30 2 * * * (America/New_York)"
    assert when["Bounded"].startswith("every 3d, starting 2026-05-04T06:30:00Z, ending 2098")
    assert len(done.json["untranslated"]) == 8
    paused = duetime(pg_url, "schedules", "get", "Turned off", "--json").json
    assert paused["pause_reason"] == "not enabled in django-celery-beat"


async def test_jobs_of_a_scheduler(folder: Path, app: Duetime) -> None:
    source = ("apscheduler", "tests.recorded.scheduler", "--task-map", "shop_jobs.send=shop.send")

    done = import_(folder, *source, "--app", "new_shop:app", "--apply", "--json")
    same = import_(folder, *source, "--app", "new_shop:app", "--json")

    assert done.code == 0
    assert set(becomes(same).values()) == {"same"}
    monday = await app.schedules.get("monday")
    assert (monday.target, monday.when) == ("shop.send", "cron 0 9 * * MON (Europe/Berlin)")
    assert not (await app.schedules.get("paused")).enabled
    refused = {one["name"]: one["reason"] for one in done.json["untranslated"]}
    assert "it has ended" in refused["bounded"]


async def test_a_job_store_is_read_only_if_it_is_trusted(folder: Path, app: Duetime) -> None:
    with closing(sqlite3.connect(folder / "jobs.db")) as connection:
        connection.executescript((HERE / "apscheduler_jobs.sql").read_text())

    refused = import_(folder, "apscheduler", "jobs.db")
    trusted = import_(folder, "apscheduler", "sqlite:///jobs.db", "--trust-pickle", "--apply")

    assert refused.code == 2
    assert "MODULE:SCHEDULER" in refused.error
    assert trusted.code == 0
    assert "shop_jobs.Shop" in trusted.out
    assert "first-monday" in await names(app)


async def test_what_the_code_declares_is_left_alone(folder: Path, app: Duetime) -> None:
    await app.schedules.apply([app.schedules.define("sunday", "shop.send", "@daily")], prune=True)

    answer = import_(
        folder, "celery-beat", "tests.recorded.beat:app", "--only", "sunday", "--apply"
    )

    assert answer.code == 1
    assert "the code declares a schedule with this name" in answer.out
    assert (await app.schedules.get("sunday")).when == "cron 0 0 * * * (UTC)"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("crontab", "nowhere"), 1, "nowhere cannot be read: No such file"),
        (("crontab", "empty"), 1, "There are no schedules in empty."),
        (("crontab", "crontab", "--tz", "Europe/Berln"), 2, "Did you mean 'Europe/Berlin'"),
        (
            ("crontab", "crontab", "--only", "x"),
            2,
            "--only has the unknown schedule 'x'. The source has:",
        ),
        (("celery-beat", "nowhere:app"), 1, "There is no module 'nowhere'"),
        (("celery-beat", "new_shop:nothing"), 1, "'new_shop' has no nothing"),
        (("celery-beat", "new_shop:app"), 1, "has no conf.beat_schedule"),
        (
            ("celery-beat", "tests.recorded.beat", "--task-map", "x=y"),
            2,
            "--task-map has the unknown task 'x'. The source has: celery.backend_cleanup, shop.add",
        ),
        (
            ("celery-beat", "tests.recorded.beat", "--task-map", "x"),
            2,
            "'x' must have the form OLD=NEW",
        ),
        (("django-celery-beat", "nowhere.db"), 1, "There is no database at 'nowhere.db'"),
        (("django-celery-beat", "duetime.db"), 1, "no table django_celery_beat_periodictask"),
        (("django-celery-beat", "crontab"), 1, "'crontab' cannot be read: file is not a database"),
        (("django-celery-beat", "mysql://a:b@c/d"), 1, "must begin with postgresql://"),
        (("django-celery-beat", "postgresql://x@127.0.0.1:1/x"), 1, "database cannot be read"),
        (("apscheduler", "new_shop:app"), 1, "neither get_jobs() nor get_schedules()"),
    ],
)
async def test_bad_input(
    folder: Path, app: Duetime, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (folder / "empty").write_text("# nothing\n")

    answer = import_(folder, *arguments)

    assert answer.code == code
    assert message in answer.error
    assert await names(app) == []


def test_the_tables_must_be_there(folder: Path) -> None:
    answer = import_(folder, "crontab", "crontab", "--task", "run")

    assert answer.code == 1
    assert "duetime db init" in answer.error
    assert not (folder / "duetime.db").exists()


def test_nothing_translated_is_a_failure(folder: Path, app: Duetime) -> None:
    answer: Any = import_(folder, "crontab", "-", "--task", "run", given="@reboot start\n")

    assert answer.code == 1
    assert "@reboot" in answer.out
    assert "No schedule in standard input could be imported" in answer.error
