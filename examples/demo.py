"""Duetime in less than a minute, on SQLite: run it with `make demo`.

Everything here happens: each line is read back from the database, and the demo fails if
something did not come out as told.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DIRECTORY = tempfile.TemporaryDirectory(prefix="duetime-demo-")
os.environ["DUETIME_DATABASE"] = f"sqlite:///{DIRECTORY.name}/demo.db"
sys.path.insert(0, str(HERE))

from demo_app import app, build_report, charge, export_everything, remind  # noqa: E402

from duetime import DuetimeError, JobHandle, JobInfo, JobState, Reminder  # noqa: E402

BOLD, GREEN, RED, DIM, PLAIN = (
    ("\x1b[1m", "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m")
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ
    else ("",) * 5
)
failures: list[str] = []


def heading(text: str) -> None:
    print(f"\n{BOLD}{text}{PLAIN}")


def say(text: str) -> None:
    print(f"   {text}", flush=True)


def check(truth: bool, text: str) -> None:
    """Show what was found, and remember it if it is not as it should be."""
    mark = f"{GREEN}✓{PLAIN}" if truth else f"{RED}✗{PLAIN}"
    print(f" {mark} {text}", flush=True)
    if not truth:
        failures.append(text)


def start_worker(queue: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "duetime", "worker", "--app", "demo_app:app"]
    return subprocess.Popen([*command, "--queues", queue], cwd=HERE, stderr=subprocess.DEVNULL)


async def wait_until(handle: JobHandle[Any], truth: Callable[[JobInfo], bool]) -> JobInfo:
    deadline = time.monotonic() + 15
    while not truth(info := await handle.get()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return info


async def show_timers() -> None:
    heading("1. On time: five reminders, each due at its own moment")
    first = await app.now() + timedelta(seconds=1)
    dues = [first + timedelta(milliseconds=377 * number) for number in range(5)]
    handles = [
        await remind.using(at=due).enqueue(text=f"reminder {number}")
        for number, due in enumerate(dues, 1)
    ]
    for due, handle in zip(dues, handles, strict=True):
        text = await handle.result(timeout="10s")
        [attempt] = (await handle.get()).history
        assert attempt.started_at is not None
        late = (attempt.started_at - due) / timedelta(milliseconds=1)
        check(0 <= late < 500, f"{text}: due {due:%H:%M:%S.%f}"[:-3] + f", {late:.1f} ms late")


async def show_retries() -> None:
    heading("2. Retried: a payment that fails twice")
    handle = await charge.enqueue(order=42)
    result = await handle.result(timeout="15s")
    info = await handle.get()
    for attempt in info.history:
        outcome = attempt.error or result
        say(f"{DIM}attempt {attempt.attempt}:{PLAIN} {attempt.outcome}: {outcome}")
    check(
        [attempt.outcome for attempt in info.history] == ["retried", "retried", "completed"],
        f"{result}, after {len(info.history)} attempts",
    )


async def show_rescue() -> None:
    heading("3. Recovered: its worker is killed with kill -9")
    handle = await build_report.enqueue(month="May")
    doomed = start_worker("reports")
    try:
        info = await wait_until(handle, lambda job: job.state is JobState.RUNNING)
        check(info.state is JobState.RUNNING, f"another process, {info.worker}, runs the report")
    finally:
        doomed.kill()
        doomed.wait()
    killed = time.monotonic()
    say(f"kill -9 {doomed.pid}: the job stays with the dead worker until its lease ends")
    async with app.worker(queues=["reports"], name="rescuer"):
        result = await handle.result(timeout="20s")
        waited = time.monotonic() - killed
    attempts = (await handle.get()).history
    check(
        [attempt.outcome for attempt in attempts] == ["lost", "completed"],
        f"{result}: attempt 1 was lost, attempt 2 completed {waited:.1f} s later, "
        f"by {attempts[-1].worker}",
    )


async def show_cancel() -> None:
    heading("4. Cancelled: while it runs")
    handle = await export_everything.enqueue()
    await wait_until(handle, lambda job: job.state is JobState.RUNNING)
    asked = time.monotonic()
    await handle.cancel(reason="changed my mind")
    info = await wait_until(handle, lambda job: job.state.finished)
    took = (time.monotonic() - asked) * 1000
    check(
        info.state is JobState.CANCELLED,
        f"a handler that sleeps for ten minutes was {info.state.value} in {took:.0f} ms",
    )


async def show_explain() -> None:
    heading("5. Explained: why does it not run?")
    later = await remind.using(delay="3d").enqueue(text="in three days")
    await app.queues.pause("mail", by="you", reason="the mail server moves")
    paused = await remind.using(queue="mail").enqueue(text="by mail")
    for handle, reason in ((later, "not_due"), (paused, "queue_paused")):
        explanation = await app.jobs.explain(handle.id)
        check(explanation.code == reason, explanation.sentence)


async def show_reminders() -> None:
    heading("6. Reminded: a game calendar, two seconds before each game")
    await app.scopes.put("guild", remind=["-2s"], by="you")
    await app.scopes.put("channel", parent="guild", by="you")
    begins = await app.now() + timedelta(seconds=3)
    games = ("Chess", "Go", "Catan")
    for game in games:
        await app.subjects.put(game, due=begins, scope="channel", recipients=["ann"], by="you")
    later = begins + timedelta(seconds=1)
    await app.subjects.put("Go", due=later, scope="channel", recipients=["ann"], by="you")
    say("Go moves by a second, and Catan is called off")
    await app.subjects.complete("Catan", by="you")
    chess, old, new, catan = [await wait_sent(reminder) for reminder in await reminders_of(games)]
    for reminder in (chess, new):
        [attempt] = (await app.jobs.get(reminder.job_id or 0)).history
        assert attempt.started_at is not None
        late = (attempt.started_at - reminder.time) / timedelta(milliseconds=1)
        truth = reminder.status == "sent" and 0 <= late < 500
        check(truth, f"{reminder.subject}: {reminder.external_id} is sent, {late:.1f} ms late")
    for reminder, status in ((old, "superseded"), (catan, "cancelled")):
        check(reminder.status == status, str(await app.reminders.explain(reminder.id)))


async def reminders_of(subjects: Iterable[str]) -> list[Reminder]:
    return [found for subject in subjects for found in await app.reminders.list(subject=subject)]


async def wait_sent(reminder: Reminder) -> Reminder:
    """Return what became of it."""
    deadline = time.monotonic() + 15
    while reminder.status == "armed" and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        [reminder] = [
            one for one in await reminders_of([reminder.subject]) if one.id == reminder.id
        ]
    return reminder


async def tell() -> None:
    shows = (
        show_timers,
        show_retries,
        show_rescue,
        show_cancel,
        show_explain,
        show_reminders,
    )
    async with app.worker():
        for show in shows:
            try:
                await show()
            except DuetimeError as error:
                check(False, str(error))
    heading("What the database remembers")
    for job in reversed(await app.jobs.list()):
        tries = f"{job.attempts} of {job.max_attempts}"
        say(f"{job.id:>2}  {job.task:<26} {job.state.value:<10} {tries}")
    await app.close()


def main() -> int:
    logging.getLogger("duetime").addHandler(logging.NullHandler())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    began = time.monotonic()
    print(f"{BOLD}Duetime{PLAIN}: durable jobs and reminders, here on SQLite, in {DIRECTORY.name}")
    with DIRECTORY:
        asyncio.run(tell())
    if failures:
        print(f"\n{RED}{len(failures)} of the above did not happen as they should.{PLAIN}")
        return 1
    heading(f"All of it happened, in {time.monotonic() - began:.0f} s. Next:")
    say("examples/demo_app.py       the tasks that you just saw")
    say("examples/quickstart.py     the smallest program that works")
    say("examples/game_reminders.py reminders that follow a calendar")
    say("examples/order_flow.py     an order as a flow: paid, approved, shipped or refunded")
    say("examples/fastapi_app.py    inside FastAPI, in your own transaction")
    say("examples/task_app/         a task app; beside it a game scheduler and a call reminder")
    say(".venv/bin/duetime --help   workers, jobs, queues from the command line")
    say("make test                  the tests, on SQLite and PostgreSQL")
    return 0


if __name__ == "__main__":
    sys.exit(main())
