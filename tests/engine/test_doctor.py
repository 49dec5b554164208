"""`duetime.doctor.examine`: each fault is planted for real, and found on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duetime import Duetime
from duetime.doctor import _CHECKS_OF_PROBLEMS, examine, worst
from duetime.domain.findings import FINDINGS, Finding, FindingLevel, Thresholds
from duetime.domain.jobs.job import NewJob
from duetime.domain.stats.problems import PROBLEM_SENTENCES
from duetime.storage.migrations import Migration
from duetime.wiring import make_migrator
from tests.conftest import Backend, query
from tests.waiting import until

SOON = Thresholds(lateness=timedelta(milliseconds=1))
EXPECTED = {"sqlite_wal_reset", "file_system_temporary", "zones_differ"}
"""Warnings about this machine, not about what a test did."""


def codes(findings: Sequence[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def problems(findings: Sequence[Finding]) -> set[str]:
    return {one.code for one in findings if one.level is not FindingLevel.OK} - EXPECTED


def the(findings: Sequence[Finding], code: str) -> Finding:
    [found] = [finding for finding in findings if finding.code == code]
    return found


async def finding(app: Duetime, code: str, thresholds: Thresholds = SOON) -> Finding:
    """The finding of this code, as soon as there is one."""

    async def look() -> list[Finding]:
        return [one for one in await examine(app, thresholds=thresholds) if one.code == code]

    return (await until(look))[0]


async def test_a_sound_installation_has_no_problem(app: Duetime) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    await app.schedules.put("nightly", send, "0 2 * * *")
    await send.using(delay="1h").enqueue()
    async with app.worker():
        findings = await examine(app)

    assert problems(findings) == set()
    assert {"database_ok", "schema_ok", "workers_ok", "queues_ok", "schedules_ok"} <= codes(
        findings
    )
    assert {"jobs_ok", "tasks_ok", "transactions_ok", "zones_ok", "writable_ok"} <= codes(findings)


async def test_no_worker(app: Duetime) -> None:
    findings = await examine(app)

    assert problems(findings) == {"workers_none"}
    assert worst(findings) is FindingLevel.WARNING
    assert "duetime worker" in the(findings, "workers_none").advice


async def test_a_worker_that_stopped_renewing_its_lease(app: Duetime) -> None:
    store = await app.store()
    await store.register_worker(
        name="gone", queues=["default"], tasks={}, concurrency=1, lease=timedelta(microseconds=1)
    )
    findings = await examine(app)

    assert problems(findings) == {"worker_lost"}
    assert "The worker gone lost its lease" in the(findings, "worker_lost").message


async def test_a_queue_that_nobody_serves(app: Duetime) -> None:
    await app.enqueue_many([new_job("send", queue="mail")] * 3)
    async with app.worker(queues=["default"]):
        findings = await examine(app)

    unserved = the(findings, "queue_not_served")
    assert unserved.check == "queues"
    assert unserved.level is FindingLevel.ERROR
    assert unserved.facts["queue"] == "mail"
    assert "No live worker serves the queue 'mail': 3 jobs waiting" in unserved.message
    assert "`duetime worker --app MODULE:APP --queues mail`" in unserved.advice


async def test_due_jobs_without_any_worker(app: Duetime) -> None:
    await app.enqueue_many([new_job("send")])
    findings = await examine(app)

    assert problems(findings) == {"no_workers"}
    assert worst(findings) is FindingLevel.ERROR


async def test_a_paused_queue_with_due_jobs(app: Duetime) -> None:
    await app.queues.pause("default", reason="the shop moves", by="ann")
    await app.enqueue_many([new_job("send")])
    async with app.worker():
        paused = the(await examine(app), "queue_paused")

    assert "by ann: the shop moves" in paused.message
    assert "`duetime queues resume default`" in paused.advice


async def test_a_queue_whose_jobs_are_late(app: Duetime) -> None:
    release = asyncio.Event()

    @app.task(name="wait")
    async def wait() -> None:
        await release.wait()

    await app.enqueue_many([new_job("wait")] * 2)
    # One runs. The other is late, as there is no room for it.
    async with app.worker(concurrency=1, batch=1):
        late = await finding(app, "jobs_late")
        release.set()

    assert late.facts["queue"] == "default"
    assert late.level is FindingLevel.WARNING


async def test_a_schedule_that_never_fired(app: Duetime) -> None:
    await app.schedules.put("hourly", "send", "* * * * * *")

    never = await finding(app, "schedule_never_fired")

    assert "The schedule 'hourly' has never fired" in never.message
    assert "duetime schedules explain hourly" in never.advice


async def test_a_schedule_whose_ticks_were_all_skipped(app: Duetime) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    @app.task(name="first")
    async def first() -> None: ...

    await app.schedules.put("before", first, "0 2 1 1 *")
    await app.schedules.put("report", send, "* * * * * *", after="before")
    async with app.worker():
        never = await finding(app, "schedule_never_fired")

    assert never.facts["schedule"] == "report"


async def test_a_schedule_that_is_behind(app: Duetime) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    await app.schedules.put("often", send, "* * * * * *")

    async def has_fired() -> bool:
        return (await app.schedules.get("often")).last_run_at is not None

    async with app.worker():
        await until(has_fired)

    behind = await finding(app, "schedule_behind")
    assert behind.facts["schedule"] == "often"


async def test_a_broken_schedule(app: Duetime, backend: Backend) -> None:
    await app.schedules.put("nightly", "send", "* * * * * *")
    query(
        backend,
        "update duetime.schedule set timetable = '{\"specs\": 7}', next_run_at = created_at",
    )
    async with app.worker():
        broken = await finding(app, "schedule_broken")

    assert broken.level is FindingLevel.ERROR
    assert "Schedule 'nightly' is broken" in broken.message


async def test_a_schedule_that_was_paused_since_it_fails(app: Duetime) -> None:
    @app.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    await app.schedules.put("nightly", fail, "* * * * * *", pause_after=1)
    async with app.worker():
        failing = await finding(app, "schedule_paused_by_failures")

    assert failing.facts["schedule"] == "nightly"
    assert failing.check == "schedules"


async def test_a_schedule_that_has_no_tick(app: Duetime) -> None:
    await app.schedules.put("past; rm -rf /", "send", "0 2 * * *", end="2020-01-01T00:00Z")
    never = the(await examine(app), "schedule_without_tick")

    assert "past; rm -rf /" in never.message
    assert "`duetime schedules delete 'past; rm -rf /'`" in never.advice


async def test_dead_jobs_and_their_last_error(app: Duetime) -> None:
    @app.task(name="pay", max_attempts=1)
    async def pay() -> None:
        raise ValueError("the bank\nis closed")

    await pay.enqueue()
    await pay.enqueue()

    async def both() -> bool:
        return len(await app.jobs.list(state="dead")) == 2

    async with app.worker():
        await until(both)
        dead = the(await examine(app), "jobs_dead")

    assert "The task 'pay' has 2 dead jobs" in dead.message
    assert "the bank" in dead.message
    assert "--task pay" in dead.advice


async def test_parked_jobs_and_a_task_that_nobody_registers(app: Duetime) -> None:
    await app.enqueue_many([new_job("lost.task")])
    async with app.worker():
        parked = await finding(app, "jobs_parked")
        await app.enqueue_many([new_job("far.task", queue="later")])
        missing = the(await examine(app), "task_missing")

    assert "The task 'lost.task' has 1 parked job" in parked.message
    assert missing.level is FindingLevel.ERROR
    assert missing.facts["task"] == "far.task"


async def test_the_task_of_a_schedule_that_the_app_does_not_have(app: Duetime) -> None:
    @app.task(name="other")
    async def other() -> None: ...

    await app.schedules.put("nightly", "send", "0 2 * * *")

    missing = the(await examine(app), "task_missing")
    assert missing.message.startswith("The schedule 'nightly' waits for the task 'send'")


async def test_findings_of_one_code_are_limited(app: Duetime) -> None:
    await app.enqueue_many([new_job("send", queue=f"q{n}") for n in range(15)])
    async with app.worker():
        findings = await examine(app)

    assert sum(one.code == "queue_not_served" for one in findings) == 10
    assert the(findings, "left_out").facts == {"count": 5, "of": "queue_not_served"}


async def test_a_schema_that_is_missing_old_or_newer(app: Duetime, backend: Backend) -> None:
    migrator = make_migrator(app.settings)
    with migrator.session() as session:
        session.record(Migration(99, "from_the_future", "", ""))
    newer = await examine(app)
    query(backend, "delete from duetime.migration")
    query(backend, "drop table duetime.migration")
    missing = await examine(app)

    assert the(newer, "schema_newer").level is FindingLevel.ERROR
    assert the(missing, "schema_missing").advice == "Run `duetime db init`."
    assert {one.check for one in missing} & {"workers", "queues", "vacuum"} == set()


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
async def test_functions_of_another_release(app: Duetime, backend: Backend) -> None:
    query(backend, "update duetime.installation set functions = 'other'")
    app.settings = msgspec.structs.replace(app.settings, migrate=False)

    assert the(await examine(app), "functions_differ").level is FindingLevel.WARNING


async def test_a_clock_that_a_test_has_left_stopped(app: Duetime) -> None:
    store = await app.store()
    stopped = await store.now() - timedelta(days=3)
    await store.drive_clock(stopped)
    try:
        driven = the(await examine(app), "clock_driven")
        await store.drive_clock(None)
        after = await examine(app)
    finally:
        await store.drive_clock(None)

    assert driven.level is FindingLevel.ERROR
    assert "drive_clock(None)" in driven.advice
    assert "clock_driven" not in codes(after)


async def test_a_check_that_fails_is_a_finding_and_the_others_go_on(
    app: Duetime, backend: Backend
) -> None:
    await app.store()
    query(backend, "drop table duetime.parked" + (" cascade" if backend.is_postgres else ""))
    findings = await examine(app)

    failed = [one.check for one in findings if one.code == "check_failed"]
    assert "work" in failed
    assert {"schema_ok", "schedules_ok"} <= codes(findings)


async def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    nowhere = Duetime("postgresql://ann:hunter2@127.0.0.1:1/shop")
    missing = Duetime(f"sqlite:///{tmp_path}/none.db")
    [unusable] = await examine(nowhere)
    [no_file] = await examine(missing)

    assert unusable.code == "database_unusable"
    assert "hunter2" not in unusable.message
    assert no_file.code == "database_missing"
    assert not (tmp_path / "none.db").exists()


def test_every_finding_but_a_good_one_says_what_to_do() -> None:
    assert [
        code
        for code, text in FINDINGS.items()
        if (text.level is FindingLevel.OK) == bool(text.advice)
    ] == []


def test_every_problem_of_the_statistics_belongs_to_a_check() -> None:
    assert _CHECKS_OF_PROBLEMS.keys() == PROBLEM_SENTENCES.keys()


def new_job(task: str, **options: Any) -> NewJob:
    return NewJob(task=task, args=msgspec.Raw(b"{}"), **options)
