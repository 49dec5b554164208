"""The metrics of a worker and its database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duetime import Constant, Duetime, Snooze
from tests.conftest import Backend, query
from tests.waiting import until, until_true

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(app: Duetime) -> Samples:
    return samples_of(await app.metrics())


def samples_of(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"duetime_{name}", frozenset(labels.items())))


async def read_again(app: Duetime) -> Samples:
    """The database is read once a second at most: here, now."""
    app._metrics._next_at = 0.0
    return await scrape(app)


async def test_attempts_are_counted_by_task_and_outcome(app: Duetime) -> None:
    @app.task(name="pay")
    async def pay() -> None: ...

    @app.task(name="fail", retry=Constant("0s", max_attempts=2))
    async def fail() -> None:
        raise ValueError("no")

    jobs = [await pay.enqueue(), await pay.enqueue(), await fail.enqueue()]
    async with app.worker(name="w1"):
        await until(lambda: all_finished(app, [job.id for job in jobs]))
    seen = await scrape(app)

    assert value(seen, "job_claimed_total", job_type="pay", worker_id="w1") == 2
    assert value(seen, "job_claimed_total", job_type="fail", worker_id="w1") == 2
    assert value(seen, "job_completed_total", job_type="pay", status="completed") == 2
    assert value(seen, "job_completed_total", job_type="fail", status="retried") == 1
    assert value(seen, "job_completed_total", job_type="fail", status="dead") == 1
    assert value(seen, "job_retries_total", job_type="fail") == 1
    assert value(seen, "job_processing_seconds_count", job_type="pay") == 2
    assert value(seen, "job_queue_seconds_count", job_type="fail") == 2
    assert value(seen, "lateness_seconds_count", kind="job") == 3
    assert value(seen, "claim_seconds_count") is not None
    assert value(seen, "dead_jobs") == 1


async def all_finished(app: Duetime, jobs: list[int]) -> bool:
    return all([(await app.jobs.get(job)).state.finished for job in jobs])


async def test_run_time_and_queue_time_are_those_of_the_attempt(app: Duetime) -> None:
    @app.task(name="slow")
    async def slow() -> None:
        await asyncio.sleep(0.06)

    job = await slow.enqueue()
    due = time.monotonic()
    await asyncio.sleep(0.06)
    async with app.worker():
        await job.result()
    most = time.monotonic() - due
    seen = await scrape(app)

    assert 0.05 < (value(seen, "job_processing_seconds_sum", job_type="slow") or 0) < most
    assert 0.05 < (value(seen, "job_queue_seconds_sum", job_type="slow") or 0) < most
    assert value(seen, "job_processing_seconds_bucket", job_type="slow", le="0.05") == 0
    assert value(seen, "job_processing_seconds_bucket", job_type="slow", le="+Inf") == 1


async def test_depth_tells_due_jobs_from_later_ones(app: Duetime) -> None:
    @app.task(name="pay")
    async def pay() -> None: ...

    async with app.worker():
        pass  # Registers the task.
    for _ in range(3):
        await pay.enqueue()
    await pay.using(delay="1h").enqueue()
    seen = await scrape(app)

    assert value(seen, "job_queue_depth", job_type="pay") == 3
    assert value(seen, "job_scheduled", job_type="pay") == 1
    assert value(seen, "job_queue_depth_estimated") == 0
    assert value(seen, "oldest_due_seconds", queue="default", paused="no") is not None
    assert value(seen, "database_up") == 1


async def test_tasks_that_nobody_registered_count_as_other(app: Duetime) -> None:
    stranger = Duetime(app.settings.database)

    @stranger.task(name="evil\n{task}")
    async def evil() -> None: ...

    await evil.enqueue()
    await stranger.close()
    waiting = await scrape(app)
    async with app.worker(name="w1"):
        await until(lambda: claimed_others(app))
    seen = await read_again(app)

    assert value(waiting, "job_queue_depth", job_type="other") == 1
    assert value(seen, "parked_jobs") == 1
    assert not [labels for _, labels in seen if ("job_type", "evil\n{task}") in labels]


async def claimed_others(app: Duetime) -> bool:
    seen = await scrape(app)
    return value(seen, "job_claimed_total", job_type="other", worker_id="w1") == 1


async def test_depth_of_many_jobs_is_estimated_from_a_sample(
    app: Duetime, monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    monkeypatch.setattr("duetime.storage.jobs.gauges.FEW", 50)
    monkeypatch.setattr("duetime.storage.jobs.gauges.PROBES", 100)

    @app.task(name="often")
    async def often() -> None: ...

    @app.task(name="seldom")
    async def seldom() -> None: ...

    async with app.worker():
        pass
    jobs = [seldom.job() if place % 4 == 0 else often.job() for place in range(400)]
    await app.enqueue_many(jobs)
    if backend.is_postgres:
        await asyncio.to_thread(query, backend, "vacuum analyze duetime.due")
    seen = await read_again(app)

    assert value(seen, "job_queue_depth_estimated") == 1
    frequent = value(seen, "job_queue_depth", job_type="often") or 0
    rare = value(seen, "job_queue_depth", job_type="seldom") or 0
    assert frequent + rare == pytest.approx(400, abs=2)
    assert 200 < frequent < 400


async def test_wakeups_and_notifications_are_counted(app: Duetime) -> None:
    @app.task(name="pay")
    async def pay() -> None: ...

    async with app.worker() as worker:
        await until_true(lambda: worker.loop.pace.sleeper.asleep)
        await (await pay.enqueue()).result()
        await (await pay.using(delay="100ms").enqueue()).result()
        seen = await scrape(app)

        assert (value(seen, "job_notification_received_total", channel="wake") or 0) >= 1
        assert (value(seen, "worker_wakeups_total", reason="notified") or 0) >= 1
        assert (value(seen, "worker_wakeups_total", reason="time") or 0) >= 1
        assert value(seen, "job_poll_scanned_total") == 1
        assert value(seen, "worker_listener_up", worker_id=worker.name) == 1
        assert value(seen, "worker_concurrency", worker_id=worker.name) == 50
        assert (value(seen, "event_loop_lag_seconds_count") or 0) >= 1
        assert value(seen, "workers") == 1


async def test_missed_ticks_are_counted(app: Duetime) -> None:
    release = asyncio.Event()

    @app.schedule("* * * * * *", overlap="skip", name="nightly")
    @app.task(name="report")
    async def report() -> None:
        await release.wait()

    async def skipped() -> bool:
        return bool(value(await scrape(app), "tick_skipped_total", status="skipped"))

    async with app.worker():
        await until(skipped)
        release.set()
    seen = await read_again(app)

    assert (value(seen, "missed_ticks") or 0) >= 1
    assert value(seen, "schedules", state="active") == 1
    assert (value(seen, "lateness_seconds_count", kind="tick") or 0) >= 1


async def test_worker_without_notifications_shows_that_it_polls(pg_url: str) -> None:
    app = Duetime(pg_url, migrate=True, notify=False)
    async with app.worker() as worker:
        seen = await scrape(app)
    await app.close()

    assert value(seen, "worker_listener_up", worker_id=worker.name) == 0


async def test_jobs_that_did_not_run_have_no_run_time(app: Duetime) -> None:
    @app.task(name="late")
    async def late() -> None: ...

    @app.task(name="again")
    async def again() -> None:
        raise Snooze("1h")

    expired = await late.using(expires="1ms").enqueue()
    await again.enqueue()
    await asyncio.sleep(0.01)
    async with app.worker():
        await until(lambda: all_finished(app, [expired.id]))
        await until(lambda: snoozed(app))
    seen = await scrape(app)

    assert value(seen, "job_completed_total", job_type="late", status="expired") == 1
    assert value(seen, "job_processing_seconds_count", job_type="late") is None
    assert value(seen, "job_processing_seconds_count", job_type="again") == 1


async def snoozed(app: Duetime) -> bool:
    seen = await scrape(app)
    return value(seen, "job_completed_total", job_type="again", status="snoozed") == 1


async def test_unreachable_database_leaves_what_the_process_counted() -> None:
    app = Duetime("postgresql://127.0.0.1:1/nothing")
    seen = await scrape(app)

    assert value(seen, "database_up") == 0
    assert value(seen, "job_poll_scanned_total") == 0


async def test_database_is_read_once_a_second_at_most(app: Duetime) -> None:
    @app.task(name="pay")
    async def pay() -> None: ...

    before = await asyncio.gather(*(scrape(app) for _ in range(5)))
    app._metrics._next_at = float("inf")
    await pay.enqueue()

    assert {value(seen, "database_up") for seen in before} == {1}
    assert value(await scrape(app), "job_queue_depth", job_type="other") is None
    assert value(await read_again(app), "job_queue_depth", job_type="other") == 1
