"""The network breaks while PostgreSQL still works on what was asked of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from duetime import Duetime, JobState
from duetime.storage.postgres.store import PostgresStore
from tests.waiting import until, until_true


class Cable:
    """What lies between a worker and its database. Cut, only the worker notices."""

    def __init__(self, url: str) -> None:
        there = conninfo_to_dict(url)
        self._there = (str(there["host"]), int(str(there["port"])))
        self._near: list[socket.socket] = []
        self._far: list[socket.socket] = []
        self._plug = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._plug.getsockname()[1]
        # On threads: a driver may block the event loop until it has an answer.
        _start(self._connect)

    def cut(self) -> None:
        near, self._near = self._near, []
        for end in near:
            _end(end)

    def remove(self) -> None:
        self.cut()
        for end in (self._plug, *self._far):
            _end(end)

    def _connect(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._plug.accept()
                far = socket.create_connection(self._there)
                self._near.append(near)
                self._far.append(far)
                _start(_pump, near, far)
                _start(_pump, far, near)


def _start(work: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=work, args=args, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@pytest.fixture
def cable(pg_url: str) -> Iterator[Cable]:
    cable = Cable(pg_url)
    yield cable
    cable.remove()


SLOW = """
create function slow() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock_shared(42); return new; end $$;
create trigger slow before insert on duetime.claim for each row execute function slow();
"""


def through(cable: Cable, url: str) -> str:
    return url.replace(f":{conninfo_to_dict(url)['port']}/", f":{cable.port}/")


async def waits(admin: psycopg.AsyncConnection[Any]) -> bool:
    """Whether a claim waits for the lock of `SLOW`."""
    sql = "select from pg_stat_activity where wait_event = 'advisory'"
    return bool(await (await admin.execute(sql)).fetchall())


async def completed(app: Duetime, job_id: int) -> bool:
    return (await app.jobs.get(job_id)).state is JobState.COMPLETED


async def test_a_claim_that_is_made_after_its_connection_broke_is_given_back(
    pg_url: str, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was slow. By the time it is made, the worker has looked for it in vain."""
    monkeypatch.setattr("duetime.engine.loop._RECONCILE_AGAIN_SECONDS", 1.0)
    here = Duetime(pg_url, migrate=True)
    far = Duetime(through(cable, pg_url))
    ran: list[int] = []

    @far.task(name="note", max_attempts=1)
    async def note() -> None:
        ran.append(1)

    await here.store()
    async with (
        await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as admin,
        far.worker() as worker,
    ):
        await admin.execute(SLOW)
        await admin.execute("select pg_advisory_lock(42)")
        [handle] = await here.enqueue_many([note.job()])
        await until(lambda: waits(admin))
        cable.cut()
        await until_true(lambda: worker.loop.unsure)
        await until_true(lambda: not worker.loop.unsure)
        assert await waits(admin)
        await admin.execute("select pg_advisory_unlock(42)")
        await until(lambda: completed(here, handle.id))
    await far.close()
    await here.close()

    assert ran == [1]


async def test_a_claim_that_is_made_long_after_its_connection_broke_is_given_back(
    pg_url: str, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late: the worker goes on looking for what it does not know of."""
    monkeypatch.setattr("duetime.engine.loop._RECONCILE_AGAIN_SECONDS", 0.2)
    here = Duetime(pg_url, migrate=True)
    far = Duetime(through(cable, pg_url))

    @far.task(name="note", max_attempts=1)
    async def note() -> None: ...

    await here.store()
    store = await far.store()
    disown = store.disown
    looks: list[int] = []

    async def look(*args: Any, **options: Any) -> int:
        looks.append(await disown(*args, **options))
        return looks[-1]

    monkeypatch.setattr(store, "disown", look)
    async with (
        await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as admin,
        far.worker(),
    ):
        await admin.execute(SLOW)
        await admin.execute("select pg_advisory_lock(42)")
        [handle] = await here.enqueue_many([note.job()])
        await until(lambda: waits(admin))
        cable.cut()
        await until_true(lambda: len(looks) >= 3)
        assert await waits(admin)
        await admin.execute("select pg_advisory_unlock(42)")
        await until(lambda: completed(here, handle.id))
    await far.close()
    await here.close()

    assert sum(looks) == 1


async def test_the_server_soon_notices_that_we_are_gone(pg_url: str) -> None:
    """Else what a dead machine's sessions have locked stays locked for hours."""
    app = Duetime(pg_url, migrate=True)
    store = await app.store()
    assert isinstance(store, PostgresStore)
    async with store._connection() as connection:
        cursor = await connection.execute("show tcp_keepalives_idle")
        idle = await cursor.fetchone()
    await app.close()

    assert idle == ("10",)
