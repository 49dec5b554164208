"""`duetime top`, on a real terminal."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator

import msgspec
import pytest

from duetime import Duetime
from duetime.cli.output import columns
from duetime.domain.jobs.job import NewJob
from tests.acceptance.command import duetime, enqueue, new_job
from tests.acceptance.terminal import Terminal
from tests.conftest import Backend
from tests.servers import PostgresServer
from tests.waiting import until

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e名前"


def in_queue(queue: str, task: str = "shop.send") -> NewJob:
    return msgspec.structs.replace(new_job(task, item_id=1), queue=queue)


@pytest.fixture
async def busy(app: Duetime) -> AsyncIterator[Duetime]:
    """An app whose worker runs three jobs, and which has queues of every state."""
    release = asyncio.Event()

    @app.task(name="shop.wait")
    async def wait() -> None:
        await release.wait()

    await app.queues.pause("slow", by="ann")
    await enqueue(app, *[new_job("shop.wait")] * 3, in_queue("slow"), in_queue("nobody"))

    async def all_run() -> bool:
        return len(await app.jobs.list(state="running")) == 3

    async with app.worker(name="web-1", queues=["default", "slow"]):
        await until(all_run)
        yield app
        release.set()


def row(screen: list[str], name: str) -> list[str]:
    """The cells of the row that begins with this name."""
    [line] = [line for line in screen if line.startswith(f"{name} ")]
    return line.split()


async def test_one_frame_for_scripts(backend: Backend, busy: Duetime) -> None:
    text = await asyncio.to_thread(duetime, backend.url, "top", "--once")
    data = await asyncio.to_thread(duetime, backend.url, "top", "--json")

    lines = text.out.splitlines()
    assert text.code == data.code == 0
    assert "\x1b" not in text.out
    assert "running 3 of 50" in text.out
    assert row(lines, "nobody")[-2:] == ["no", "worker"]
    assert row(lines, "slow")[-3:] == ["paused", "by", "ann"]
    assert row(lines, "shop.wait") == ["shop.wait", "3", "1"]
    assert row(lines, "web-1")[-2:] == ["shop.wait", "×3"]
    names = [queue["name"] for queue in data.json["stats"]["queues"]]
    assert names == ["default", "nobody", "slow"]


async def test_rates_of_what_was_done(backend: Backend, app: Duetime) -> None:
    await enqueue(app, *[new_job("shop.send", item_id=1)] * 5, new_job("shop.fail"))

    async def all_done() -> bool:
        return not await app.jobs.list(state=["pending", "running"])

    async with app.worker():
        await until(all_done)
    lines = (await asyncio.to_thread(duetime, backend.url, "top", "--once")).out.splitlines()

    [rates] = [line for line in lines if "done " in line and "/s" in line]
    done = re.search(r"done (\d+\.\d)/s   failed (\d+\.\d)/s   started late by .* \(p99\)", rates)
    assert done is not None
    assert row(lines, "shop.send") == ["shop.send", "5"]
    assert row(lines, "shop.fail") == ["shop.fail", "1"]


async def test_the_screen_changes_with_the_numbers_and_ends_with_q(
    backend: Backend, busy: Duetime
) -> None:
    def watch() -> tuple[list[str], bool, int]:
        with Terminal(backend.url, "top", "--every", "100ms") as terminal:
            terminal.until("shop.wait ×3")
            duetime(backend.url, "queues", "resume", "slow")
            screen = terminal.until("shop.wait ×3", gone="paused by ann")
            terminal.type("q")
            code = terminal.exit_code()
            return screen, terminal.restored, code

    screen, restored, code = await asyncio.to_thread(watch)

    assert code == 0
    assert restored
    assert len(screen) == 24
    assert max(map(columns, screen)) <= 80
    assert screen[-1].startswith("q quit  p pause  s sort: name")


async def test_keys_pause_and_sort(backend: Backend, busy: Duetime) -> None:
    def watch() -> tuple[list[str], list[str]]:
        with Terminal(backend.url, "top", "--every", "100ms") as terminal:
            terminal.until("shop.wait ×3")
            terminal.type("s")
            terminal.until("sort: due")
            terminal.type("p")
            paused = terminal.until("paused", gone="every 100ms")
            duetime(backend.url, "queues", "pause", "new-one")
            terminal.type("s")
            still = terminal.until("sort: running")
            terminal.type("p")
            terminal.until("new-one")
            terminal.type("q")
            assert terminal.exit_code() == 0
            return paused, still

    paused, still = await asyncio.to_thread(watch)

    assert "p go on" in paused[-1]
    assert not any("new-one" in line for line in still)


async def test_it_fits_a_small_terminal_and_follows_its_size(
    backend: Backend, busy: Duetime
) -> None:
    def watch() -> list[list[str]]:
        with Terminal(backend.url, "top", columns=120, lines=40) as terminal:
            wide = terminal.until("shop.wait ×3")
            terminal.resize(44, 12)
            narrow = terminal.until("QUEUE", gone="shop.wait ×3")
            terminal.type("q")
            terminal.exit_code()
            return [wide, narrow]

    wide, narrow = await asyncio.to_thread(watch)

    assert (len(wide), len(narrow)) == (40, 12)
    assert max(map(columns, narrow)) <= 44
    assert narrow[-1].startswith("q quit")


async def test_without_colour_nothing_is_lost(backend: Backend, busy: Duetime) -> None:
    def watch(variables: dict[str, str]) -> Terminal:
        with Terminal(backend.url, "top", variables=variables) as terminal:
            terminal.until("paused by ann")
            terminal.type("q")
            terminal.exit_code()
            return terminal

    coloured = await asyncio.to_thread(watch, {})
    plain = await asyncio.to_thread(watch, {"NO_COLOR": "1"})

    assert "\x1b[1;31m" in coloured.written
    assert not re.search(r"\x1b\[[0-9;]*m", plain.written)
    assert "no worker" in "\n".join(plain.screen)


async def test_stored_text_cannot_control_the_terminal(backend: Backend, app: Duetime) -> None:
    await app.queues.pause("slow", by=f"ann{HOSTILE}")
    await app.enqueue_many([in_queue("slow", task=f"evil{HOSTILE}")])

    def watch() -> Terminal:
        with Terminal(backend.url, "top", columns=150) as terminal:
            terminal.until("evil")
            terminal.type("q")
            terminal.exit_code()
            return terminal

    terminal = await asyncio.to_thread(watch)

    assert "\x1b[2J" not in terminal.written
    assert "\x1b]0" not in terminal.written
    assert "\u202e" not in terminal.written
    assert "\\x1b[2J" in "\n".join(terminal.screen)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_signal_restores_the_terminal(
    backend: Backend, app: Duetime, number: signal.Signals
) -> None:
    def watch() -> tuple[int, bool]:
        with Terminal(backend.url, "top") as terminal:
            terminal.until("q quit")
            terminal.process.send_signal(number)
            return terminal.exit_code(), terminal.restored

    assert await asyncio.to_thread(watch) == (0, True)


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_it_is_suspended_and_continued(backend: Backend, app: Duetime) -> None:
    def watch() -> bool:
        with Terminal(backend.url, "top") as terminal:
            terminal.until("q quit")
            terminal.process.send_signal(signal.SIGTSTP)
            os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED | os.WNOWAIT)
            terminal.drain()
            restored = terminal.restored
            terminal.written = ""
            terminal.process.send_signal(signal.SIGCONT)
            terminal.until("q quit")
            terminal.type("q")
            terminal.exit_code()
            return restored and terminal.restored

    assert await asyncio.to_thread(watch)


async def test_while_the_database_is_away_the_numbers_stay(own_postgres: PostgresServer) -> None:
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True)
    await app.queues.pause("slow", by="ann")
    await app.close()

    def watch() -> list[str]:
        impatient = {"DUETIME_DATABASE_TIMEOUT": "1s"}
        with Terminal(url, "top", "--every", "100ms", variables=impatient) as terminal:
            terminal.until("paused by ann")
            own_postgres.stop("immediate")
            away = terminal.until("The numbers are old")
            own_postgres.start()
            terminal.until("paused by ann", gone="The numbers are old")
            terminal.type("q")
            terminal.exit_code()
            return away

    away = await asyncio.to_thread(watch)

    assert any("paused by ann" in line for line in away)


def test_without_a_terminal_it_says_what_to_use(backend: Backend) -> None:
    duetime(backend.url, "db", "init")
    answer = duetime(backend.url, "top")

    assert answer.code == 2
    assert "--once" in answer.error
