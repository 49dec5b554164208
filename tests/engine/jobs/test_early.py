"""Jobs that are claimed ahead of their time, and held: what may happen until they are due."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Context, Duetime, JobState
from duetime.domain.schedules.schedule import TickStatus
from duetime.engine.pace import DatabaseClock
from duetime.errors import DatabaseUnreachable
from duetime.storage.store import Store
from tests.conftest import Backend, query
from tests.waiting import until, until_true

HOUR = timedelta(hours=1)

on_two = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
pytestmark = [on_two, pytest.mark.usefixtures("lead")]


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims come a second ahead: time to do something between claim and start."""
    monkeypatch.setattr("duetime.engine.pace.Pace.lead", 1.0)


class Notes:
    """When a job began, by this machine's clock, which is also the database's."""

    def __init__(self, app: Duetime) -> None:
        self.at: list[float] = []

        @app.task(name="note")
        async def note(ctx: Context) -> None:
            self.at.append(time.time())

        self.task = note


@pytest.fixture
def notes(app: Duetime) -> Notes:
    return Notes(app)


def soon(seconds: float = 1.3) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def claimed(app: Duetime, job_id: int, *, before: datetime) -> None:
    await reaches(app, job_id, JobState.RUNNING)
    assert datetime.now(UTC) < before, "this machine is too slow for the test"


async def reaches(app: Duetime, job_id: int, state: JobState) -> None:
    async def there() -> bool:
        return (await app.jobs.get(job_id)).state is state

    await until(there)


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "backward"])
async def test_the_databases_clock_jumps_between_the_look_at_it_and_the_claim(
    app: Duetime, notes: Notes, jump: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held starts at its time by the clock that claimed it: not early, not an hour late."""
    store: Store = await app.store()
    next_run_at = store.next_run_at
    looks: list[datetime] = []

    async def before_the_jump(queues: Sequence[str]) -> tuple[datetime, datetime | None]:
        moment, first = await next_run_at(queues)
        looks.append(moment - jump)
        return looks[-1], first and first - jump

    async with app.worker():
        monkeypatch.setattr(store, "next_run_at", before_the_jump)
        moment = soon()
        handle = await notes.task.using(at=moment).enqueue()
        await reaches(app, handle.id, JobState.COMPLETED)
    [attempt] = (await handle.get()).history

    assert looks, "it was claimed ahead"
    assert 0 <= notes.at[0] - moment.timestamp() < 20
    assert attempt.claimed_at is not None
    assert attempt.started_at is not None
    assert attempt.claimed_at < moment <= attempt.started_at


async def test_a_worker_whose_estimate_of_the_clock_is_a_moment_ahead_still_claims_ahead(
    app: Duetime, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks a moment too soon, finds that nothing is due so soon, and must not sleep past it."""
    seconds_until = DatabaseClock.seconds_until

    def a_moment_less(clock: DatabaseClock, moment: datetime) -> float:
        return max(0.0, seconds_until(clock, moment) - 0.02)

    monkeypatch.setattr(DatabaseClock, "seconds_until", a_moment_less)
    async with app.worker():
        moment = soon()
        handle = await notes.task.using(at=moment).enqueue()
        await reaches(app, handle.id, JobState.COMPLETED)
    [attempt] = (await handle.get()).history

    assert attempt.claimed_at is not None
    assert moment - attempt.claimed_at > timedelta(seconds=0.3), "long before it was due"
    assert notes.at[0] >= moment.timestamp()


async def test_a_loop_that_is_blocked_past_the_due_time_runs_it_once_it_is_free(
    app: Duetime, notes: Notes
) -> None:
    async with app.worker():
        moment = soon()
        handle = await notes.task.using(at=moment).enqueue()
        await claimed(app, handle.id, before=moment)
        time.sleep(1.5)  # noqa: ASYNC251 - a handler that blocks the loop
        await reaches(app, handle.id, JobState.COMPLETED)
        free = time.time()

    assert len(notes.at) == 1
    assert moment.timestamp() <= notes.at[0] <= free
    assert (await handle.get()).attempts == 1


async def test_a_fenced_worker_does_not_start_what_it_held(
    app: Duetime, notes: Notes, backend: Backend
) -> None:
    """Its lease is gone before the job is due: it gives the job back, as it has not begun."""
    never = "timestamptz '1999-01-01'" if backend.is_postgres else "0"
    async with app.worker(heartbeat="50ms"):
        moment = soon()
        handle = await notes.task.using(at=moment).enqueue()
        await claimed(app, handle.id, before=moment)
        query(backend, f"update duetime.worker set lease_until = {never}")
        await reaches(app, handle.id, JobState.COMPLETED)
        await until_true(lambda: datetime.now(UTC) > moment + timedelta(seconds=0.1))
    history = (await handle.get()).history

    assert [attempt.outcome for attempt in history] == ["completed"]
    assert len(notes.at) == 1


async def test_a_run_that_is_given_back_has_not_begun(app: Duetime, notes: Notes) -> None:
    """The ledger says so, and the next worker decides on it anew: by then it is far too late."""

    async def row() -> Any:
        return (await app.schedules["s"].history())[0]

    async with app.worker():
        moment = soon()
        await app.schedules.put("s", "note", moment, grace="100ms", catch_up="skip")
        await claimed(app, (await row()).job_id, before=moment)
    await until_true(lambda: datetime.now(UTC) > moment + timedelta(seconds=0.3))
    given_back = await row()
    async with app.worker():

        async def closed() -> bool:
            return (await row()).finished_at is not None

        await until(closed)
    late = await row()

    assert given_back.status is TickStatus.ARMED
    assert late.status is TickStatus.SKIPPED
    assert notes.at == []


async def test_a_quarantined_job_whose_claim_was_not_answered_is_not_held_for_ever(
    app: Duetime, notes: Notes, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Store = await app.store()
    lose_one_answer(monkeypatch, store, "claim_quarantined")
    handle = await notes.task.enqueue()
    query(backend, "update duetime.due set priority = 10")
    async with app.worker():
        await reaches(app, handle.id, JobState.COMPLETED)

    assert len(notes.at) == 1
    assert (await handle.get()).attempts == 1


def lose_one_answer(monkeypatch: pytest.MonkeyPatch, store: Store, method: str) -> None:
    """The first call that returns something is done; the connection breaks before the answer."""
    do: Callable[..., Awaitable[Any]] = getattr(store, method)
    lost: list[Any] = []

    async def call(*args: Any, **kwargs: Any) -> Any:
        answer = await do(*args, **kwargs)
        if answer and not lost:
            lost.append(answer)
            raise DatabaseUnreachable("the connection broke")
        return answer

    monkeypatch.setattr(store, method, call)
