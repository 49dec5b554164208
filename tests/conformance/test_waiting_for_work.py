"""`app.listen()` on every backend: sync code that waits until a queue has something to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

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


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


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


def test_a_job_for_later_wakes_when_it_is_enqueued(app: Duetime) -> None:
    @app.task
    def work() -> None: ...

    with app.listen() as events:
        work.using(delay="5m").enqueue_sync()

        assert events.wait("30s") == NOTIFIED


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
def test_an_open_transaction_that_enqueues_holds_up_nothing(app: Duetime, backend: Backend) -> None:
    @app.task
    def work() -> None: ...

    app.sync(app.store())
    answers: list[WakeUp | None] = []
    committed = threading.Event()

    def listen() -> None:
        with app.listen() as events:
            answers.append(events.wait("50ms"))
            committed.wait(60)
            answers.append(events.wait("30s"))

    with psycopg.connect(backend.url) as connection:
        work.using(tx=connection).enqueue_sync()
        listener = threading.Thread(target=listen)
        listener.start()
        in_time = wait_until(lambda: bool(answers))
        connection.commit()
    committed.set()
    listener.join(60)

    assert in_time
    assert answers == [None, NOTIFIED], "it did not wake us, but is there now"


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
