"""The example applications run, as they are, and what comes out of them is right."""

from __future__ import annotations

import re
import runpy
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.command import ROOT, environment
from tests.conftest import Backend
from tests.rabbitmq import RabbitMQServer, find_rabbitmq
from tests.servers import free_port
from tests.waiting import until

EXAMPLES = ROOT / "examples"
# One PostgreSQL is enough here: what differs between its versions, other tests try.
both = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)


def tell(story: str, url: str, cwd: Path, **variables: str) -> tuple[list[str], list[str]]:
    """Run a story to its end; return the lines that it printed and logged."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / story)],
        capture_output=True,
        text=True,
        env=environment(url, **variables),
        cwd=cwd,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def matching(pattern: str, lines: list[str]) -> list[str]:
    return [line for line in lines if re.search(pattern, line)]


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQServer]:
    if find_rabbitmq() is None:
        pytest.skip("RabbitMQ is not installed: sudo apt-get install rabbitmq-server")
    with RabbitMQServer() as server:
        yield server


@both
def test_game_scheduler_publishes_what_is_true(
    backend: Backend, broker: RabbitMQServer, tmp_path: Path
) -> None:
    lines, logged = tell("game_scheduler/story.py", backend.url, tmp_path, AMQP_URL=broker.url)

    assert logged == []
    event = r"bot: (\w+) begins at [\d:]+ \(game.reminder_due of game:\d, (\S+)\)"
    check_game_story(lines, event, {("Chess", "-1m"), ("Chess", "-58s"), ("Go", "-59s")})
    assert len(matching("was sent by rabbitmq", lines)) == 3


def test_game_scheduler_runs_without_a_broker(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'games.db'}"
    lines, logged = tell("game_scheduler/story.py", database, tmp_path)

    assert logged == []
    event = r"^\S+ (\w+) \| .*\((\S+) of game:\d\) \[dtr_"
    check_game_story(lines, event, {("Chess", "-1m"), ("Chess", "-58s"), ("Go", "-59s")})
    assert len(matching("was sent by console", lines)) == 3


def test_game_tables_remind_as_the_nearest_level_says(tmp_path: Path) -> None:
    lines, logged = tell("game_scheduler/tables.py", "", tmp_path)

    assert lines == [
        "The guild says 60 and 15: 60, 15 minutes before, by guild:1",
        "The guild says 120: 120 minutes before, by guild:1",
        "The channel says 30: 30 minutes before, by channel:9",
        "The game says -1d and -5m: 1440, 5 minutes before, by game:42",
        "The game says nothing: 30 minutes before, by channel:9",
        "The channel says nonsense: 120 minutes before, by guild:1",
        (
            "channel:9: the rule 'soon' cannot be read and is left out: write minutes before "
            "the due time, such as 60, or a text such as '-1h'"
        ),
    ]
    assert not matching("Traceback|ERROR", logged)


def check_game_story(lines: list[str], event: str, wanted: set[tuple[str, str]]) -> None:
    """What was true went out, once each; what fell due while no worker ran, afterwards."""
    restarted = lines.index("A worker starts: what is due goes out")
    got = re.findall(event, "\n".join(lines), re.MULTILINE)
    late = re.findall(event, "\n".join(lines[restarted:]), re.MULTILINE)
    assert sorted(got) == sorted(wanted)
    assert wanted - set(late) <= {one for one in wanted if one[1].endswith("1m")}
    assert len(matching(r"Go: .*not sent: superseded, the subject moved", lines)) == 2
    assert len(matching(r"Go: .*not sent: superseded, the rules changed", lines)) == 2
    assert len(matching(r"Catan: .*not sent: cancelled", lines)) == 2


@both
def test_call_reminder_calls_everybody_once(backend: Backend, tmp_path: Path) -> None:
    lines, logged = tell("call_reminder/story.py", backend.url, tmp_path)

    told = dict(re.findall(r"to (\w+)\) (was sent .*)", "\n".join(lines)))
    for name in ("ann", "bob", "cleo", "dora"):
        assert re.search(
            r"sent by phone at .* under the id CA000\d\..* It was delivered", told[name]
        )
    assert "phone failed 2 times: the provider answered 503" in told["bob"]
    assert "no answer: ReadTimeout" in told["cleo"]
    assert "no answer: RemoteProtocolError" in told["dora"]
    assert "sent by letter" in told["egon"]
    assert "no-answer" in told["egon"]
    assert "sent by letter" in told["fay"]
    assert "this is not a phone number" in told["fay"]
    letters = [line.split()[1] for line in matching(r"Your appointment is due", lines)]
    assert sorted(letters) == ["egon:", "fay:"]
    # Requests were repeated; calls were not.
    calls = re.findall(r"CA\d+ to (\S+), asked for (\d+)", "\n".join(lines))
    asked = {number: int(count) for number, count in calls}
    assert len(calls) == len(asked) == 5
    assert asked["+15550503"] >= 3
    assert asked["+15550504"] >= 2
    assert asked["+15550444"] >= 2
    assert len(matching("WARNING job_failed .* will_retry=yes", logged)) >= 4
    assert not matching("Traceback|ERROR", logged)


@both
async def test_task_app_reminds_once_whoever_writes(backend: Backend, tmp_path: Path) -> None:
    async with task_app(backend.url, tmp_path) as api:
        taxes = await add(api, "Taxes", timedelta(hours=10))
        dishes = await add(api, "Dishes", timedelta(hours=24, seconds=5), assignee="bob")
        bins = await add(api, "Bins", timedelta(hours=24, seconds=5))
        later = await add(api, "Later", timedelta(days=30))
        await until_reminders(api, bins, "armed")
        await change(api, bins, done=True)
        await until_reminders(api, bins, "cancelled")
        await until_reminders(api, taxes, "sent")
        await change(api, taxes, due=moment(timedelta(hours=12)))
        await until_reminders(api, taxes, "sent", "skipped")
        await until_reminders(api, dishes, "sent")

    # Nobody runs, and somebody else writes.
    insert_task(backend, "Mail", timedelta(hours=5))
    async with task_app(backend.url, tmp_path) as api:
        tasks = (await api.get("/tasks")).json()
        [mail] = [task["id"] for task in tasks if task["title"] == "Mail"]
        await until_reminders(api, mail, "sent")
        assert (await api.delete(f"/tasks/{later}")).status_code == 204
        assert (await api.get(f"/tasks/{later}")).status_code == 404
        await until_reminders(api, later)
        [changed, sent, added] = (await history(api, taxes))["audit"]
        [deleted, _] = (await history(api, later))["audit"]
        [mailed, _] = (await history(api, mail))["audit"]
        [first, second] = (await history(api, taxes))["reminders"]

    assert (changed["action"], added["action"]) == ("subject.put", "subject.put")
    assert (sent["action"], mailed["action"]) == ("reminder.sent", "reminder.sent")
    assert sent["by"] != mailed["by"]  # Another run of the worker.
    assert deleted["action"] == "subject.delete"
    assert (first["to"], first["status"]) == ("ann", "sent")
    assert second["reason"] == "reminded of it in the last 24 h"
    log = (tmp_path / "server.log").read_text()
    told = re.findall(r"^To (\w+: \w+)", log, re.MULTILINE)
    assert sorted(told) == ["ann: Taxes", "bob: Dishes", "eve: Mail"]
    assert "Traceback" not in log


async def test_task_app_reminds_again_of_what_is_postponed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUETIME_DATABASE", f"sqlite:///{tmp_path / 'tasks.db'}")
    tasks = runpy.run_path(str(EXAMPLES / "task_app" / "tasks.py"))
    app, rule = tasks["app"], tasks["A_DAY_BEFORE"]
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    sent = []
    async with app.testing(now=start) as world:

        async def put(hours: int) -> None:
            due = start + timedelta(hours=hours)
            data = {"title": "Taxes"}
            await app.subjects.put("tasks:1", due=due, remind=[rule], recipients=["ann"], data=data)

        await put(20)
        await world.advance("1h")
        sent.append(len(await app.reminders.list(status="sent")))
        await put(40)
        await world.advance("22h")
        sent.append(len(await app.reminders.list(status="sent")))
        await world.advance("2h")
        sent.append(len(await app.reminders.list(status="sent")))
        await put(41)
        await world.advance("20h")
        sent.append(len(await app.reminders.list(status="sent")))

    assert sent == [1, 1, 2, 2]


@asynccontextmanager
async def task_app(url: str, cwd: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The app on a real server, which is stopped as people stop it."""
    with server("task_app", "tasks:api", url, cwd) as (process, address):
        async with httpx.AsyncClient(base_url=address, timeout=20) as client:

            async def up() -> bool:
                assert process.poll() is None, (cwd / "server.log").read_text()
                try:
                    return (await client.get("/tasks")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(up, seconds=40)
            yield client


@contextmanager
def server(
    example: str, api: str, url: str, cwd: Path
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", api, "--port", str(port)]
    with (cwd / "server.log").open("a") as log:
        process = subprocess.Popen(
            [*command, "--app-dir", str(EXAMPLES / example)],
            env=environment(url),
            cwd=cwd,
            stdout=log,
            stderr=log,
        )
    try:
        yield process, f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(20) in (0, -15)
    finally:
        process.kill()
        process.wait()


def moment(ahead: timedelta) -> str:
    return (datetime.now(UTC) + ahead).isoformat()


async def add(
    api: httpx.AsyncClient, title: str, ahead: timedelta, *, assignee: str = "ann"
) -> int:
    new = {"title": title, "due": moment(ahead), "assignee": assignee}
    answer = await api.post("/tasks", json=new)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


async def change(api: httpx.AsyncClient, task: int, **values: Any) -> None:
    answer = await api.patch(f"/tasks/{task}", json=values)
    assert answer.status_code == 200, answer.text


async def history(api: httpx.AsyncClient, task: int) -> dict[str, list[dict[str, Any]]]:
    answer = await api.get(f"/tasks/{task}/history")
    assert answer.status_code == 200, answer.text
    found: dict[str, list[dict[str, Any]]] = answer.json()
    return found


async def until_reminders(api: httpx.AsyncClient, task: int, *statuses: str) -> None:
    """Wait until a task's reminders are so."""

    async def are_so() -> bool:
        found = (await history(api, task))["reminders"]
        return [reminder["status"] for reminder in found] == list(statuses)

    await until(are_so)


def insert_task(backend: Backend, title: str, ahead: timedelta) -> None:
    """Add a row as any program may, which knows nothing of Duetime."""
    due = f"{datetime.now(UTC) + ahead:%Y-%m-%d %H:%M:%S}"
    row = (
        f"insert into tasks (title, due, assignee, done) values ('{title}', '{due}', 'eve', false)"
    )
    if backend.is_postgres:
        with psycopg.connect(backend.url, options="-c timezone=UTC") as connection:
            connection.execute(row)
    else:
        with closing(sqlite3.connect(backend.url.removeprefix("sqlite:///"))) as file, file:
            file.execute(row)
