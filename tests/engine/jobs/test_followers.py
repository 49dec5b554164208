"""A feature that registers with the engine: asked before jobs start, told how they ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from duetime import Context, Duetime, JobState, Reason, Retry
from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.engine.followers import Follower, Gate, WorkerView
from duetime.engine.services import Service
from duetime.storage.store import Dialect, PollResult, Statements
from tests.log_events import events_of
from tests.waiting import until, until_true

on_both = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
pytestmark = on_both


class Feature(Follower):
    """Writes down what it is told, and lets everything start."""

    name = "feature"
    tasks = frozenset({"followed"})
    gates = True

    def __init__(self) -> None:
        self.opened = self.repaired = self.served = 0
        self.asked: list[list[int]] = []
        self.starts: list[int] = []
        self.ends: list[tuple[int, AttemptOutcome, bool]] = []

    async def open(self) -> None:
        self.opened += 1

    async def before_start(self, jobs: Sequence[ClaimedJob], received: float, gate: Gate) -> None:
        self.asked.append([job.id for job in jobs])
        gate.start(jobs)

    def started(self, job: ClaimedJob) -> None:
        self.starts.append(job.id)

    def finished(self, jobs: Sequence[FinishedJob]) -> None:
        self.ends += [(done.job.id, done.outcome, done.recorded) for done in jobs]

    async def repair(self) -> float:
        self.repaired += 1
        return 0.01

    def services(self) -> Sequence[Service]:
        async def serve() -> float:
            self.served += 1
            return 0.01

        return [Service("service", serve)]


@asynccontextmanager
async def following(app: Duetime, feature: Follower) -> AsyncIterator[None]:
    """A worker with this follower alone."""

    def register(_settings: Any) -> list[Callable[[WorkerView], Follower]]:
        return [lambda _: feature]

    app._followers = register  # type: ignore[method-assign, assignment]
    async with app.worker():
        yield


async def test_it_is_told_of_the_jobs_it_follows_and_of_no_others(app: Duetime) -> None:
    feature = Feature()

    @app.task(name="followed")
    async def followed() -> None: ...

    @app.task(name="other")
    async def other() -> None: ...

    mine = await app.enqueue_many([followed.job(), followed.job()])
    [foreign] = await app.enqueue_many([other.job()])
    async with following(app, feature):
        for handle in (*mine, foreign):
            await handle.result("30s")
        await until_true(lambda: len(feature.ends) == 2 and feature.repaired > 1 < feature.served)

    ids = [handle.id for handle in mine]
    assert feature.asked == [ids], "once for the whole claim"
    assert sorted(feature.starts) == ids
    assert sorted(feature.ends) == [(job_id, AttemptOutcome.COMPLETED, False) for job_id in ids]
    assert feature.opened == 1


async def test_a_key_is_followed_whatever_the_task(app: Duetime) -> None:
    feature = Feature()
    feature.tasks, feature.key_prefix = frozenset(), "order:"

    @app.task(name="any")
    async def anything() -> None: ...

    handle = await anything.using(key="order:7").enqueue()
    other = await anything.using(key="order:7").enqueue()
    async with following(app, feature):
        await handle.result("30s")
        await other.result("30s")
        await until_true(lambda: bool(feature.ends))

    assert feature.asked == [[handle.id]]
    assert [job_id for job_id, _, _ in feature.ends] == [handle.id]


async def test_an_attempt_that_is_retried_has_not_ended(app: Duetime) -> None:
    feature = Feature()

    @app.task(name="followed")
    async def followed(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry("once more", after="10ms")

    handle = await followed.enqueue()
    async with following(app, feature):
        await handle.result("30s")
        await until_true(lambda: bool(feature.ends))

    assert feature.starts == [handle.id, handle.id]
    assert feature.ends == [(handle.id, AttemptOutcome.COMPLETED, False)]


class Decider(Feature):
    """Decides by the job's key what becomes of it."""

    async def before_start(self, jobs: Sequence[ClaimedJob], received: float, gate: Gate) -> None:
        self.asked.append([job.id for job in jobs])
        for job in jobs:
            match job.key:
                case "skip":
                    gate.skip(job, AttemptOutcome.CANCELLED, Reason("shadow"))
                case "put off":
                    job.run_at += timedelta(hours=1)
                    await gate.postpone([job])
                case "park":
                    gate.park(job, Reason("task_unknown"))
                case _:
                    gate.start([job])


async def test_it_decides_what_becomes_of_a_claimed_job(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str | None] = []
    decider = Decider()
    store = await app.store()
    poll = store.poll
    polls: list[bool] = []

    async def watched(*args: Any, **options: Any) -> tuple[PollResult, list[Any]]:
        answer = await poll(*args, **options)
        polls.append(answer[0].parked)
        return answer

    monkeypatch.setattr(store, "poll", watched)

    @app.task(name="followed")
    async def followed(ctx: Context) -> None:
        ran.append(ctx.job.key)

    keys = ("start", "skip", "put off", "park")
    handles = {key: await followed.using(key=key).enqueue() for key in keys}

    async def states() -> dict[str, JobState]:
        return {key: (await handle.get()).state for key, handle in handles.items()}

    async with following(app, decider):
        expected = {
            "start": JobState.COMPLETED,
            "skip": JobState.CANCELLED,
            "put off": JobState.PENDING,
            "park": JobState.PARKED,
        }

        async def is_so() -> bool:
            return await states() == expected and len(decider.ends) == 2

        await until(is_so)
        seen = len(polls)
        await until_true(lambda: len(polls) >= seen + 2)

    assert ran == ["start"]
    assert not any(polls), "what was parked here is left to others"
    assert {handles["start"].id, handles["skip"].id} == {end[0] for end in decider.ends}
    assert (await handles["put off"].get()).attempts == 0


class Broken(Feature):
    """Fails once, after it has let the first job start."""

    async def before_start(self, jobs: Sequence[ClaimedJob], received: float, gate: Gate) -> None:
        await super().before_start(jobs[:1], received, gate)
        if len(jobs) > 1:
            raise RuntimeError("a bug")


async def test_what_it_failed_to_decide_on_is_given_back(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.engine.loop._RETRY_FOLLOWER_AFTER", timedelta(0))
    broken = Broken()

    @app.task(name="followed", max_attempts=1)
    async def followed() -> None: ...

    handles = await app.enqueue_many([followed.job() for _ in range(3)])
    async with following(app, broken):
        for handle in handles:
            await handle.result("30s")

    assert sorted(broken.starts) == [handle.id for handle in handles], "each of them once"


class Silent(Feature):
    """Forgets to decide on the first batch."""

    async def before_start(self, jobs: Sequence[ClaimedJob], received: float, gate: Gate) -> None:
        if self.asked:
            gate.start(jobs)
        self.asked.append([job.id for job in jobs])


async def test_what_it_did_not_decide_on_is_given_back(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.engine.loop._RETRY_FOLLOWER_AFTER", timedelta(0))

    @app.task(name="followed", max_attempts=1)
    async def followed() -> str:
        return "ran"

    handle = await followed.enqueue()
    async with following(app, Silent()):
        assert await handle.result("10s") == "ran"


class Careless(Feature):
    """Raises whatever it is told."""

    def started(self, job: ClaimedJob) -> None:
        raise RuntimeError("a bug")

    def finished(self, jobs: Sequence[FinishedJob]) -> None:
        super().finished(jobs)
        raise RuntimeError("a bug")


async def test_its_errors_stop_neither_jobs_nor_the_worker(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    careless = Careless()

    @app.task(name="followed", max_attempts=1)
    async def followed() -> str:
        return "ran"

    async with following(app, careless):
        for number in range(2):
            handle = await followed.enqueue()
            assert await handle.result("10s") == "ran"
            await until_true(lambda number=number: len(careless.ends) > number)  # type: ignore[misc]

    assert events_of(caplog).count("follower_failed") == 4


async def test_it_writes_in_the_transaction_that_completes_its_job(app: Duetime) -> None:
    feature = Feature()

    @app.task(name="other")
    async def other() -> str:
        return "released"

    @app.task(name="followed")
    async def followed(ctx: Context, fail: bool) -> None:
        def release(_dialect: Dialect, _result: Any) -> Statements:
            yield from ctx._store.enqueue_in([other.job()])
            if fail:
                raise ValueError("nothing of it is kept")

        ctx.finish_with = release
        async with ctx.transaction():
            pass

    lost = await followed.using(max_attempts=1).enqueue(fail=True)
    kept = await followed.enqueue(fail=False)
    async with following(app, feature):
        await kept.result("30s")
        await until_true(lambda: len(feature.ends) == 2)

    released = await app.jobs.list(task="other")
    assert len(released) == 1
    assert sorted(feature.ends) == [
        (lost.id, AttemptOutcome.DEAD, False),
        (kept.id, AttemptOutcome.COMPLETED, True),
    ]
