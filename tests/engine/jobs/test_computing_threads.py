"""A handler that computes in a thread leaves the interpreter to the event loop soon."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from duetime import Duetime
from duetime.interpreter import SWITCH_SECONDS, FrequentSwitches
from tests.conftest import Backend

DEFAULT = 0.005


@pytest.fixture(autouse=True)
def default_interval(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process in which nothing of Duetime is open, whatever other tests have left open."""
    switches = FrequentSwitches()
    monkeypatch.setattr("duetime.engine.worker.frequent_switches", switches)
    monkeypatch.setattr("duetime.storage.sqlite.thread.frequent_switches", switches)
    before = sys.getswitchinterval()
    sys.setswitchinterval(DEFAULT)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
async def test_threads_take_turns_often_while_a_worker_runs(backend: Backend) -> None:
    app = Duetime(backend.url)

    @app.task
    def read_interval() -> float:
        return sys.getswitchinterval()

    async with app.worker():
        found = await (await read_interval.enqueue()).result()
    await app.close()

    assert found == SWITCH_SECONDS
    assert sys.getswitchinterval() == DEFAULT


@pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
async def test_a_store_on_sqlite_takes_turns_often_without_a_worker(backend: Backend) -> None:
    app = Duetime(backend.url)
    await app.now()
    found = sys.getswitchinterval()
    await app.close()

    assert found == (DEFAULT if backend.is_postgres else SWITCH_SECONDS)
    assert sys.getswitchinterval() == DEFAULT
