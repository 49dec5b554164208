"""Duetime in less than a minute, on SQLite: `make demo`. `make demo STAY=1` keeps the dashboard up.

Everything here happens: each line is read back from the database, and the demo fails if
something turned out differently.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

HERE = Path(__file__).parent
DIRECTORY = tempfile.TemporaryDirectory(prefix="duetime-demo-")
os.environ["DUETIME_DATABASE"] = f"sqlite:///{DIRECTORY.name}/demo.db"
sys.path.insert(0, str(HERE))

from demo_app import app, build_report, charge, export_everything, remind  # noqa: E402

from duetime import Duetime, DuetimeError, JobHandle, JobInfo, JobState, Reminder  # noqa: E402

TERMINAL_SECONDS = 20
"""How long the dashboard stays up for somebody at a terminal who did not ask for more."""

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


@contextmanager
def running_service(database: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `demo_service.py`; yield the process and the link that it prints."""
    service = subprocess.Popen(
        [sys.executable, str(HERE / "demo_service.py"), "--port", "0"],
        env=os.environ | {"DUETIME_DATABASE": database},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert service.stdout is not None
    try:
        yield service, service.stdout.readline().rpartition(" ")[2].strip()
    finally:
        service.terminate()
        wait_for(service, 10)
        service.kill()
        service.wait()


async def explain_dead_job(shop: Duetime) -> None:
    [dead] = await shop.jobs.list(state="dead", task="demo_service.charge_card", limit=1)
    explanation = await shop.jobs.explain(dead.id)
    check(explanation.code == "dead", explanation.sentence)


async def fetch(shop: Duetime, address: str) -> tuple[int, str]:
    """Fetch a page as a program does; the link in the terminal works once, and is yours."""
    token = await shop.tokens.create("demo", scope="read", expires_in="1m", by="the demo")
    request = Request(address, headers={"Authorization": f"Bearer {token.text}"})

    def read() -> tuple[int, str]:
        with urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()

    return await asyncio.to_thread(read)


async def inspect_shop(database: str, address: str) -> None:
    shop = Duetime(database)
    await explain_dead_job(shop)
    status, page = await fetch(shop, address)
    truth = status == 200 and "charge_card" in page and "photos" in page
    check(truth, f"{address} answers {status} with what needs a person now")
    await shop.close()


def show_dashboard(*, stay: bool) -> None:
    heading("7. Shown: a tea shop's last hour, on the dashboard")
    database = f"sqlite:///{DIRECTORY.name}/shop.db"
    with running_service(database) as (service, link):
        if not link:
            check(False, f"the service ended with exit code {service.wait(10)}")
            return
        asyncio.run(inspect_shop(database, link.partition("login/")[0]))
        say(f"Open {BOLD}{link}{PLAIN}, which logs you in, once.")
        if stay:
            say("It stays up until Ctrl-C.")
            wait_for(service, None)
        elif sys.stdout.isatty():
            say(f"It stops after {TERMINAL_SECONDS} s; `make demo STAY=1` keeps it up.")
            wait_for(service, TERMINAL_SECONDS)
        else:
            say("It stops now; `make demo STAY=1` keeps it up.")


def wait_for(service: subprocess.Popen[str], seconds: float | None) -> None:
    """Wait until the service stops, the time is over or Ctrl-C is pressed."""
    try:
        service.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description="Show what Duetime does, on SQLite.")
    parser.add_argument("--stay", action="store_true", help="keep the dashboard up until Ctrl-C")
    stay = parser.parse_args().stay
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Not without stopping the service.
    logging.getLogger("duetime").addHandler(logging.NullHandler())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    began = time.monotonic()
    print(f"{BOLD}Duetime{PLAIN}: durable jobs and reminders, here on SQLite, in {DIRECTORY.name}")
    with DIRECTORY:
        asyncio.run(tell())
        show_dashboard(stay=stay)
    if failures:
        print(f"\n{RED}{len(failures)} of the above did not happen as they should.{PLAIN}")
        return 1
    heading(f"All of it happened, in {time.monotonic() - began:.0f} s. Next:")
    say("examples/demo_app.py       the tasks that you just saw")
    say("examples/quickstart.py     the smallest program that works")
    say("examples/game_reminders.py reminders that follow a calendar")
    say("examples/demo_service.py   the tea shop, served on port 8000 until Ctrl-C")
    say("examples/order_flow.py     an order as a flow: paid, approved, shipped or refunded")
    say("examples/fastapi_app.py    inside FastAPI, in your own transaction")
    say("examples/task_app/         a task app; beside it a game scheduler and a call reminder")
    say(".venv/bin/duetime --help   workers, jobs, queues from the command line")
    say("make test                  the tests, on SQLite and PostgreSQL")
    return 0


if __name__ == "__main__":
    sys.exit(main())
