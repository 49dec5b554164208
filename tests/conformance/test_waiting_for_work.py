"""`app.listen()` on every backend: sync code that waits until a queue has something to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from duetime import Duetime, DuetimeError, WakeUp
from tests.conftest import Backend

NOTIFIED = WakeUp(queue="default", reason="notified")


@pytest.fixture
def app(backend: Backend) -> Iterator[Duetime]:
    app = Duetime(backend.url, migrate=True)
    yield app
    app.sync(app.close())


def enqueue(url: str, queue: str = "default") -> None:
    """As another process does: by an app of its own."""
    other = Duetime(url)

    @other.task(queue=queue)
    def work() -> None: ...

    work.enqueue_sync()
    other.sync(other.close())


def test_a_wait_returns_what_it_was_told(app: Duetime, backend: Backend) -> None:
    with app.listen() as events:
        producer = threading.Thread(target=enqueue, args=[backend.url])
        producer.start()
        event = events.wait("30s")
        producer.join()

    assert event == NOTIFIED


def test_what_came_between_two_waits_counts(app: Duetime, backend: Backend) -> None:
    with app.listen() as events:
        enqueue(backend.url)
        first = events.wait("30s")
        enqueue(backend.url)
        second = events.wait("30s")

    assert (first, second) == (NOTIFIED, NOTIFIED)


def test_a_wait_ends_after_its_time_out(app: Duetime, backend: Backend) -> None:
    with app.listen("mail") as events:
        assert events.wait("50ms") is None
        assert events.wait(0) is None

    with pytest.raises(DuetimeError, match="Listen first"):
        events.wait()


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
def test_a_lost_connection_comes_back_by_itself(app: Duetime, backend: Backend) -> None:
    with app.listen() as events:
        with psycopg.connect(backend.url, autocommit=True) as connection:
            ended = connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where pid <> pg_backend_pid()"
                " and (query ilike 'listen%' or query like '%fall_asleep%')"
            ).fetchall()
        back = events.wait("30s")
        enqueue(backend.url)
        event = events.wait("30s")

    assert ended
    assert back == WakeUp(queue="default", reason="reconnected")
    assert event == NOTIFIED
