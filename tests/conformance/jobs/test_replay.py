"""A finished job is run again as a new one, which names it, on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from duetime import Duetime, Flow, JobHandle
from duetime.errors import IllegalTransition, InvalidArguments, InvalidInput, JobFailed
from tests.conftest import Backend

LATER = datetime(2090, 1, 1, tzinfo=UTC)
ran: list[Any] = []


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    ran.clear()

    @app.task(name="ship", queue="default", max_attempts=1, timeout="1h")
    async def ship(order: int, day: date | None = None) -> int:
        ran.append((order, day))
        if order < 0:
            raise ValueError("no such order")
        return order

    yield app
    await app.close()


async def finish(app: Duetime, **args: Any) -> JobHandle[Any]:
    job = await app.jobs.enqueue("ship", args, key="k", priority=3)
    async with app.worker():
        try:
            await job.result()
        except JobFailed:
            pass
    return job


async def test_a_dead_job_runs_again_with_other_arguments(app: Duetime) -> None:
    dead = await finish(app, order=-1)
    replay = await dead.replay({"order": 7, "day": "2030-01-01"}, by="ann")
    async with app.worker():
        assert await replay.result() == 7
    old, new = await dead.get(), await replay.get()

    assert ran == [(-1, None), (7, date(2030, 1, 1))]
    assert old.state == "dead"
    assert (new.replay_of, old.replay_of) == (old.id, None)
    assert new.key is None
    assert (new.queue, new.priority, new.max_attempts, new.timeout) == (
        old.queue, old.priority, old.max_attempts, old.timeout,
    )  # fmt: skip
    [listed] = await app.jobs.list(args={"order": 7})
    assert listed.replay_of == old.id


async def test_both_jobs_tell_of_each_other(app: Duetime) -> None:
    dead = await finish(app, order=-1)
    replay = await dead.replay({"order": 7}, at=LATER, by="ann")
    [of_old] = await dead.audit()
    [of_new] = await replay.audit()
    explained = await replay.explain()

    assert (of_old.actor, of_old.action) == ("ann", "job.replay")
    assert of_old.after == {"job": replay.id, "changed": ["order"]}
    assert of_new.after == {"replay_of": dead.id}
    assert explained.code == "not_due"
    assert [step.sentence for step in explained.steps] == [f"It is a replay of job {dead.id}."]


async def test_a_completed_job_runs_again_as_it_was(app: Duetime) -> None:
    done = await finish(app, order=3, day=date(2030, 1, 1))
    replay = await app.jobs.replay(done.id)
    async with app.worker():
        assert await replay.result() == 3

    assert ran == [(3, date(2030, 1, 1))] * 2


@pytest.mark.parametrize("args", [{"order": "x"}, {"other": 1}, {}, {"order": 1, "day": "never"}])
async def test_arguments_that_do_not_fit_are_refused(app: Duetime, args: Any) -> None:
    done = await finish(app, order=3)

    with pytest.raises(InvalidArguments):
        await done.replay(args)

    assert len(await app.jobs.list()) == 1


async def test_arguments_of_a_task_that_is_not_known_here_need_only_be_json(
    app: Duetime, backend: Backend
) -> None:
    done = await finish(app, order=3)
    other = Duetime(backend.url)
    try:
        replay = await other.jobs.replay(done.id, {"anything": [1, 2]}, at=LATER)
        assert (await replay.get()).args == {"anything": [1, 2]}
        for bad in ([], ["x"], {1: 2}, {"a": "\x00"}, {"a": float("nan")}, {"a": "x" * 2**21}):
            with pytest.raises(InvalidInput):
                await other.jobs.replay(done.id, bad)  # type: ignore[arg-type]
    finally:
        await other.close()


async def test_only_finished_jobs_are_replayed(app: Duetime) -> None:
    waits = await app.jobs.enqueue("ship", {"order": 1}, at=LATER)

    with pytest.raises(IllegalTransition, match="replayed"):
        await waits.replay()


async def test_flows_and_reminders_are_not_replayed(app: Duetime) -> None:
    @app.flow(name="onboard")
    async def onboard(flow: Flow) -> None: ...

    run = await onboard.start()
    await app.subjects.put("game:1", due=LATER, remind="-1h", recipients=["ann"])
    [reminder] = await app.jobs.list(task="duetime.remind")
    await app.jobs.cancel(reminder.id)
    async with app.worker():
        await run.result()

    with pytest.raises(InvalidInput, match="run of a flow"):
        await app.jobs.replay(run.id)
    with pytest.raises(InvalidInput, match="resend"):
        await app.jobs.replay(reminder.id)


async def test_arguments_that_were_shown_redacted_keep_their_values(app: Duetime) -> None:
    @app.task(name="login")
    async def login(user: str, password: str) -> None:
        ran.append((user, password))

    job = await login.enqueue("ann", "hunter2")
    async with app.worker():
        await job.result()
        shown = app.redacted(await job.get()).args
        replay = await job.replay(shown | {"user": "bob"})
        await replay.result()

    assert shown == {"user": "ann", "password": "[redacted]"}
    assert ran == [("ann", "hunter2"), ("bob", "hunter2")]
