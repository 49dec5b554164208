"""`app.stats.series()` and `samples()`: what workers counted of their attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from duetime import Constant, Duetime
from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.engine.followers import WorkerView
from duetime.errors import InvalidInput
from duetime.stats.recorder import Recorder
from tests.conftest import Backend

NOW = datetime(2026, 3, 8, 9, 30, tzinfo=UTC)
Attempt = tuple[str, timedelta, timedelta]


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


@pytest.fixture
async def recorder(app: Duetime) -> Recorder:
    return await make_recorder(app, NOW)


async def make_recorder(app: Duetime, now: datetime) -> Recorder:
    store = await app.store()
    await store.drive_clock(now)
    view = WorkerView("one", store, app._events, {})
    return Recorder(view, Random(7))


def attempt(
    number: int = 1,
    *,
    task: str = "fine",
    due: datetime = NOW,
    late: float = 0.0,
    took: float = 0.001,
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED,
) -> FinishedJob:
    """An attempt that was claimed the moment it was due."""
    job = ClaimedJob(
        id=number, token=number, task=task, queue="default", priority=5, args="{}", attempt=1,
        max_attempts=3, run_at=due, claimed_at=due,
    )  # fmt: skip
    return FinishedJob(job, outcome, int(late * 1e6), int((late + took) * 1e6))


async def test_a_series_has_a_point_for_each_minute(app: Duetime, recorder: Recorder) -> None:
    early = NOW - timedelta(minutes=10)
    recorder.attempted([attempt(n, due=early, late=0.002, took=0.02) for n in range(99)])
    recorder.attempted([attempt(99, late=5, took=1), attempt(100, outcome=AttemptOutcome.DEAD)])
    await recorder.repair()

    series = await app.stats.series()

    assert (series.completed, series.dead, series.retried) == (100, 1, 0)
    assert (series.since, series.until) == (NOW - timedelta(hours=1), NOW)
    assert len(series.points) == 61
    by_time = {point.at: point for point in series.points}
    assert by_time[early].completed == 99
    assert by_time[early].lateness_p99 == pytest.approx(0.002, rel=0.09)
    assert by_time[early].duration_p50 == pytest.approx(0.02, rel=0.09)
    assert by_time[early].busy == pytest.approx(99 * 0.02 / 60, rel=0.01)
    assert by_time[NOW].dead == 1
    assert by_time[NOW - timedelta(minutes=5)].lateness_p50 is None
    assert series.lateness_p50 == pytest.approx(0.002, rel=0.09)
    assert series.lateness_max == pytest.approx(5, rel=0.09)
    assert series.lateness_max_at == NOW
    assert series.duration_max == pytest.approx(1, rel=0.09)


async def test_workers_add_to_the_same_counts(app: Duetime, recorder: Recorder) -> None:
    other = await make_recorder(app, NOW)
    for one in (recorder, other, recorder):
        one.attempted([attempt(task="fine"), attempt(task="mail")])
        await one.repair()

    assert (await app.stats.series()).completed == 6
    assert (await app.stats.series(task="mail")).completed == 3
    assert (await app.stats.series(task="unknown")).completed == 0
    now = await app.stats.now()
    assert now.completed_last_hour == 6
    assert {task.name: task.completed_last_hour for task in now.tasks} == {"fine": 3, "mail": 3}


async def test_longer_windows_have_longer_buckets(app: Duetime, recorder: Recorder) -> None:
    for hours in range(30):
        recorder.attempted([attempt(due=NOW - timedelta(hours=hours))])
        await recorder.repair()

    day = await app.stats.series(window="24h")
    week = await app.stats.series(window="7d")

    assert (day.bucket, day.completed) == (timedelta(minutes=10), 25)
    assert (week.bucket, week.completed) == (timedelta(hours=1), 30)
    assert len(week.points) == 169


async def test_of_a_large_batch_some_are_measured_and_all_are_counted(
    app: Duetime, recorder: Recorder
) -> None:
    recorder.attempted([attempt(n, took=0.05) for n in range(500)])
    await recorder.repair()

    series = await app.stats.series()

    assert series.completed == 500
    assert series.duration_p50 == pytest.approx(0.05, rel=0.09)
    assert series.points[-1].busy == pytest.approx(500 * 0.05 / 60, rel=0.05)


async def test_samples_have_the_latest_attempt_and_others(app: Duetime, recorder: Recorder) -> None:
    lates = [0.1 + n / 1000 for n in range(50)]
    recorder.attempted([attempt(n, late=late, took=1) for n, late in enumerate(lates)])
    recorder.attempted([attempt(77, task="rare", late=0.2)])
    await recorder.repair()

    samples = await app.stats.samples()
    rare = await app.stats.samples(task="rare")

    assert len(samples) == 4
    assert samples == sorted(samples, key=lambda one: one.started_at)
    assert max(one.lateness for one in samples if one.task == "fine") == timedelta(
        microseconds=int(lates[-1] * 1e6)
    )
    [one] = rare
    assert (one.job_id, one.outcome, one.run_at) == (77, "completed", NOW)
    assert one.started_at == NOW + timedelta(seconds=0.2)


async def test_at_most_so_many_samples_are_read(app: Duetime, recorder: Recorder) -> None:
    for minute in range(50):
        due = NOW - timedelta(minutes=minute)
        recorder.attempted([attempt(minute * 10 + n, due=due) for n in range(3)])
        await recorder.repair()

    assert len(await app.stats.samples()) == 150
    few = await app.stats.samples(limit=100)
    assert 50 <= len(few) <= 100


async def test_old_counts_are_pruned(app: Duetime, recorder: Recorder) -> None:
    recorder.attempted([attempt()])
    await recorder.repair()
    store = await app.store()
    await store.drive_clock(NOW + timedelta(days=2))
    assert (await app.stats.series(window="3d")).completed == 1

    await recorder.prune()
    assert (await app.stats.series(window="7d")).completed == 1
    assert (await app.stats.samples(window="2h")) == []

    await store.drive_clock(NOW + timedelta(days=37))
    await recorder.prune()
    await store.drive_clock(NOW)
    assert (await app.stats.series()).completed == 0
    assert (await app.stats.samples()) == []


async def test_what_could_not_be_written_is_written_later(app: Duetime, recorder: Recorder) -> None:
    store = await app.store()
    recorder.attempted([attempt()])
    await store.close()
    with pytest.raises(Exception, match=r".*"):
        await recorder.repair()
    await store.open()
    await store.drive_clock(NOW)

    await recorder.repair()

    assert (await app.stats.series()).completed == 1


async def test_a_worker_reports_what_it_did_when_it_stops(app: Duetime) -> None:
    @app.task(name="fine")
    async def fine() -> None: ...

    @app.task(name="flaky", retry=Constant("0s", max_attempts=2))
    async def flaky() -> None:
        raise ConnectionError("no route")

    async with app.worker():
        await (await fine.enqueue()).result(timeout="20s")
        with pytest.raises(Exception, match="no route"):
            await (await flaky.enqueue()).result(timeout="20s")

    series = await app.stats.series()
    assert (series.completed, series.retried, series.dead) == (1, 1, 1)
    assert series.lateness_p50 is not None
    assert {one.task for one in await app.stats.samples()} == {"fine", "flaky"}


@pytest.mark.parametrize("window", ["10s", "36d", "99999d", "soon"])
async def test_a_window_has_bounds(app: Duetime, window: str) -> None:
    with pytest.raises(InvalidInput, match=r"window (must be (1m to|at most) 35d|'soon')"):
        await app.stats.series(window=window)
    with pytest.raises(InvalidInput, match="window"):
        await app.stats.samples(window=window)
