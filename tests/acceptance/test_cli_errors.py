"""Bad input: one clear line, an exit code, and nothing changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from duetime import Duetime, JobState
from duetime.settings import Settings
from duetime.storage.migrations import Migration, upgrade
from duetime.wiring import make_migrator
from tests.acceptance.command import SHOP, duetime, enqueue, new_job
from tests.conftest import Backend
from tests.servers import PostgresServer

UNREACHABLE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://root@host/shop", "must begin with postgresql:// or sqlite:///"),
        ("nonsense", "must begin with postgresql:// or sqlite:///"),
        ("postgresql://[bad", "The database URL cannot be parsed"),
        ("postgresql://host/shop?nonsense=1", "The database URL cannot be parsed"),
        ("sqlite://shop.db", "A SQLite URL must be sqlite:/// followed by a path"),
        (UNREACHABLE, "PostgreSQL cannot be reached"),
        (UNREACHABLE, "Check that the server runs, and the URL's host, port, user"),
    ],
)
def test_bad_database(url: str, message: str, tmp_path: Path) -> None:
    for arguments in (("jobs", "list"), ("db", "init")):
        answer = duetime(None, *arguments, "--database", url, cwd=tmp_path, started=True)

        assert answer.code == 1
        assert message in answer.error
        assert answer.out == ""
    assert list(tmp_path.iterdir()) == []


def test_database_that_is_not_there(postgres15: PostgresServer, tmp_path: Path) -> None:
    for arguments in (("jobs", "list"), ("db", "init")):
        answer = duetime(None, *arguments, "--database", postgres15.dsn("nowhere"), cwd=tmp_path)

        assert answer.code == 1
        assert 'database "nowhere" does not exist' in answer.error
        assert "Check that the server runs, and the URL's" in answer.error


@pytest.mark.parametrize(
    "arguments",
    [
        ("db", "init", "--database", ""),
        ("--database", "", "db", "init"),
        ("jobs", "list", "--app", ""),
    ],
)
def test_option_from_an_empty_variable(arguments: tuple[str, ...], tmp_path: Path) -> None:
    answer = duetime(None, *arguments, cwd=tmp_path)

    assert answer.code == 2
    assert "must not be empty" in answer.error
    assert list(tmp_path.iterdir()) == []


def test_password_is_not_shown(tmp_path: Path) -> None:
    answer = duetime("mysql://ann:secret@host/shop", "jobs", "list", cwd=tmp_path)

    assert answer.code == 1
    assert "secret" not in answer.err


def test_nothing_is_made_by_looking(backend: Backend, tmp_path: Path) -> None:
    before = list(tmp_path.iterdir())
    answers = [
        duetime(backend.url, *command.split(), cwd=tmp_path)
        for command in ("jobs list", "queues pause default", "workers list")
    ]

    assert {answer.code for answer in answers} == {1}
    assert all("duetime db init" in answer.error for answer in answers)
    assert list(tmp_path.iterdir()) == before
    assert make_migrator(Settings(database=backend.url)).version() == 0


async def test_schema_of_another_version(backend: Backend, app: Duetime) -> None:
    [job_id] = await enqueue(app, new_job("shop.send", item_id=1))
    migrator = make_migrator(Settings(database=backend.url))
    with migrator.session() as session:
        session.record(Migration(99, "from_the_future", "", ""))

    answers = [
        duetime(backend.url, *command.split())
        for command in (
            f"jobs cancel {job_id}",
            "db upgrade",
            "db downgrade --to 0 --yes",
            "db status",
        )
    ]
    work = duetime(backend.url, "worker", "--app", SHOP, "--log-format", "json")

    for answer in answers:
        assert answer.code == 1
        assert "version 99, newer than this Duetime knows" in answer.error
    assert work.code == 1
    assert "version 99, newer" in work.err
    assert migrator.version() == 99
    assert (await app.jobs.get(job_id)).state is JobState.PENDING


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.such.module:app", "There is no module 'no'"),
        ("tests.acceptance.shop:nothing", "Did you mean tests.acceptance.shop:app?"),
        ("tests.acceptance.shop:send", "shop:send must be a Duetime app, got <task"),
        ("tests.acceptance.shop:", "--app must be MODULE:APP"),
        (":app", "--app must be MODULE:APP"),
        ("shop.py:app", "--app takes a module, not a file. Write shop:app"),
        ("./shop/jobs.py", "--app takes a module, not a file. Write shop.jobs"),
        ("broken:app", "ZeroDivisionError: division by zero"),
        ("hungry:app", "No module named 'not_installed'"),
    ],
)
def test_unknown_app(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("app = 1 / 0\n")
    (tmp_path / "hungry.py").write_text("import not_installed\n")
    root = str(Path(__file__).parents[2])

    answer = duetime(None, "worker", "--app", path, cwd=tmp_path, PYTHONPATH=root)

    assert answer.code == 1
    assert message in answer.error


@pytest.mark.parametrize(
    "command",
    [
        "jobs get -- -1",
        "jobs get 99999999999999999999",
        "jobs get seven",
        "jobs list --limit -3",
        "jobs list --state asleep",
        "jobs requeue",
        "jobs requeue 1 --state dead",
        "jobs nothing",
        "queues limit default",
        "queues limit default --running 0",
        "queues limit default --running 1 --none",
        "queues limit default --rate 5",
        "queues limit default --period 1m",
        "jobs get 1_0",
        "jobs list --limit \u0663",
        "schedules history daily --since 999999d",
        "db downgrade --to -1",
        "worker",
        "serve",
        f"worker --app {SHOP} --processes 0",
    ],
)
def test_wrong_command_line(command: str, tmp_path: Path) -> None:
    answer = duetime(None, *command.split(), cwd=tmp_path)

    assert answer.code == 2
    assert "--help`." in answer.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--concurrency", "-1"), "concurrency must be at least 1"),
        (("--concurrency", "many"), "must be an integer"),
        (("--concurrency", "\u0663"), "must be an integer"),
        (("--concurrency", "99999999999"), "concurrency must be at most 10000"),
        (("--lease", "999999d"), "at most 100 years: write '36525d' or less"),
        (("--lease", "5 s"), "is not a duration"),
        (("--lease", "-5s"), "is not a duration"),
        (
            ("--lease", "5s", "--heartbeat", "3s"),
            "heartbeat (3s) must be at most half of the lease",
        ),
        (("--queues", ","), "at least one queue"),
    ],
)
def test_worker_settings_that_cannot_be_used(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    root = str(Path(__file__).parents[2])
    answer = duetime(None, "worker", "--app", SHOP, *options, cwd=tmp_path, PYTHONPATH=root)

    assert answer.code == 1
    assert message in answer.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    ["jobs get 4711", "jobs cancel 4711", "jobs retry 4711", "jobs requeue 4711"],
)
async def test_unknown_job(command: str, backend: Backend, app: Duetime) -> None:
    answer = duetime(backend.url, *command.split())

    assert answer.code == 1
    assert "There is no job 4711" in answer.error


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("jobs", "list", "--queue", ""), "The queue must not be empty"),
        (
            ("jobs", "requeue", "--state", "dead", "--task", "", "--yes"),
            "The task must not be empty",
        ),
        (("queues", "pause", " "), "The queue must have at least one visible character"),
        (
            ("schedules", "put", " ", "shop.send", "@every 1h"),
            "name must have at least one visible character",
        ),
        (("schedules", "trigger", " "), "There is no schedule named ' '"),
        (
            ("queues", "pause", "mail", "--by", " "),
            "The actor (--by) must have at least one visible character",
        ),
        (("schedules", "get", "a\udcff"), "is not valid text"),
        (("schedules", "put", "a\udcff", "shop.send", "@every 1h"), "is not valid text"),
        (("jobs", "list", "--queue", "a\udcff"), "is not valid text"),
        (("worker", "--app", SHOP, "--name", "a\udcff"), "is not valid text"),
        (
            ("worker", "--app", SHOP, "--name", " "),
            "worker's name must have at least one visible character",
        ),
        (("reminders", "deliveries", "999"), "There is no reminder 999"),
    ],
)
async def test_names_that_cannot_be(
    command: tuple[str, ...], message: str, backend: Backend, app: Duetime
) -> None:
    answer = duetime(backend.url, *command, started="\udcff" in "".join(command))

    assert answer.code == 1
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ("subjects", "put", "a", "--due", "none", "--scope", "nowhere"),
            "Create it first with app.scopes.put or `duetime scopes put REF`.",
        ),
        (
            ("subjects", "put", "a", "--repeats", "2030-01-01T09:00:00Z"),
            "A single time does not repeat. Use --due instead of --repeats.",
        ),
        (
            ("subjects", "complete", "a", "--occurrence", "2030-01-01T09:00Z", "--reason", "x"),
            "--reason applies to a whole subject and cannot be combined with --occurrence.",
        ),
        (
            ("schedules", "put", "n", "shop.send", "@hourly", "--wait", "5m"),
            "--within and --wait need --after, the schedule to come after.",
        ),
        (
            ("schedules", "put", "n", "shop.send", "@hourly", "--after", "n"),
            "The schedule 'n' cannot depend on itself: --after 'n'.",
        ),
        (
            ("schedules", "put", "n", "duetime.rearm", "@hourly"),
            "are used by Duetime. Choose another name.",
        ),
        (
            ("schedules", "put", "n", "shop.send", "FREQ=DAILY FREQ=WEEKLY"),
            "Give several rules as several specs, and dates to leave out as --exclude.",
        ),
        (("jobs", "list", "--after", "after=x"), "got 'after=x'."),
        (
            ("jobs", "list", "--after", "after=x"),
            "--after must be the cursor that an earlier page",
        ),
        (("jobs", "list", "--arg", "order"), "--arg must be written as"),
        (
            ("jobs", "list", "--state", "dead", "--due-since", "1h"),
            "Use --due-since and --due-before with the states pending, retrying and parked",
        ),
        (
            ("jobs", "cancel-all", "--yes"),
            "`duetime jobs cancel-all` needs at least one filter, such as --queue or --state.",
        ),
        (
            ("jobs", "cancel", "1", "--by", ""),
            "The actor (--by) must have 1 to 200 characters, got 0.",
        ),
        (
            ("tables", "put", "games", "--id", "id"),
            "such as channels or guilds, say --kind 'scopes'.",
        ),
    ],
)
async def test_errors_name_commands_and_options(
    command: tuple[str, ...], message: str, backend: Backend, app: Duetime
) -> None:
    """And not the calls and keywords of Python."""
    answer = duetime(backend.url, *command)

    assert answer.code == 1
    assert message in answer.error


async def test_bulk_commands_have_the_shared_options(backend: Backend, app: Duetime) -> None:
    for words in (("cancel-all",), ("requeue-all",), ("reschedule-all", "1h")):
        answer = duetime(
            None, "jobs", *words, "--queue", "none", "--yes", "--json", "--database", backend.url
        )
        shown = duetime(
            None, "jobs", "bulk", str(answer.json["id"]), "--json", "--database", backend.url
        )

        assert answer.code == shown.code == 0, (answer.err, shown.err)
        assert shown.json["action"] == words[0].removesuffix("-all")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("jobs", "cancel-all"), "needs at least one filter"),
        (("jobs", "reschedule-all", "1h"), "needs at least one filter"),
        (("jobs", "requeue-all", "--task", "duetime.remind"), "cannot change the jobs of"),
        (("jobs", "cancel-all", "--queue", "mail", "--by", ""), "must have 1 to 200 characters"),
        (("tables", "delete", "games"), "No tracked table is named 'games'"),
    ],
)
async def test_what_cannot_be_done_is_refused_without_a_question(
    command: tuple[str, ...], message: str, backend: Backend, app: Duetime
) -> None:
    answer = duetime(backend.url, *command, given="y\n")

    assert answer.code == 1
    assert message in answer.error
    assert answer.out == ""
    assert "[y/N]" not in answer.err


async def test_backfill_is_refused_before_it_asks(backend: Backend, app: Duetime) -> None:
    await app.schedules.put("often", "shop.send", "@every 1m", args={"item_id": 1})

    many = duetime(backend.url, "schedules", "backfill", "often", "--from", "30d")
    old = duetime(backend.url, "schedules", "backfill", "often", "--from", "36525d")

    assert many.code == old.code == 1
    assert "A backfill is limited to 10,000 runs" in many.error
    assert "must be between the years 1970 and 9000" in old.error


@pytest.mark.parametrize(
    "command",
    ["subjects put rent --due 999999d", "schedules reschedule daily 999999d"],
)
def test_span_that_is_too_long(command: str, tmp_path: Path) -> None:
    answer = duetime(None, *command.split(), cwd=tmp_path)

    assert answer.code == 2
    assert "must be at most 100 years: write '36525d' or less, got '999999d'" in answer.error


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    answer = duetime(f"sqlite:///{tmp_path}/new.db", "db", "init", powerless=True)
    tmp_path.chmod(0o755)

    assert answer.code == 1
    assert f"{tmp_path}/new.db cannot be created" in answer.error
    assert "directory" in answer.error


def test_read_only_sqlite_file(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    file = folder / "duetime.db"
    url = f"sqlite:///{file}"
    upgrade(make_migrator(Settings(database=url)))
    before = file.read_bytes()
    file.chmod(0o444)
    folder.chmod(0o555)

    answers = [
        duetime(url, *command.split(), powerless=True)
        for command in ("queues pause default", "db downgrade --to 0 --yes")
    ]

    folder.chmod(0o755)
    for answer in answers:
        assert answer.code == 1
        assert str(file) in answer.error
    assert file.read_bytes() == before


def test_corrupt_sqlite_file(tmp_path: Path) -> None:
    file = tmp_path / "duetime.db"
    file.write_bytes(b"This is a text, and not a database." * 100)
    before = file.read_bytes()

    for command in ("jobs list", "db init", "db status"):
        answer = duetime(f"sqlite:///{file}", *command.split())

        assert answer.code == 1
        assert "corrupted, or is not an SQLite database" in answer.error
    assert file.read_bytes() == before


def test_sqlite_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "theirs.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("create table thing (id integer)")
        connection.commit()

    answer = duetime(f"sqlite:///{file}", "jobs", "list")

    assert "duetime db init" in answer.error
    with closing(sqlite3.connect(file)) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master")]
    assert tables == ["thing"]


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    answer = duetime(f"sqlite:///{tmp_path}/nowhere/duetime.db", "db", "init")

    assert answer.code == 1
    assert "nowhere" in answer.error
    assert list(tmp_path.iterdir()) == []
