"""Trace the way of a job, of a schedule's tick and of a reminder through the source.

Prints the files that each visits, in the order of the first visit, with the function or the SQL
statement that is used there first. `--write` puts that into ARCHITECTURE.md; `--check` fails if
ARCHITECTURE.md names other files than were visited.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import duetime
from duetime import Duetime, Sent
from duetime.engine import worker
from duetime.storage import statements

SOURCE = Path(duetime.__file__).parent
PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"
BLOCK = re.compile(r"(<!-- walks -->\n\n```text\n)(.*?)(```\n)", re.DOTALL)
RUNS = 3
LEAD = timedelta(seconds=0.5)
"""So long before its time a tick or a reminder is stored."""


class Visit(NamedTuple):
    step: str
    file: str
    name: str


class Recorder:
    """Records the files in which functions are called, and the `.sql` files that are used."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []
        self.idle: CodeType | None = None
        """The function that a store calls regularly while nothing happens: no part of a walk."""
        self._steps: list[str] = []
        self._threads = threading.local()

    @contextmanager
    def recording(self, store: str, start: str, finish: str) -> Iterator[None]:
        """Record a walk of three steps: the second begins with the worker, the third with `ran`."""
        self.visits = []
        self._steps = [finish, start, store]
        try:
            yield
        finally:
            self._steps = []

    def ran(self) -> None:
        self._steps = self._steps[:1]

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if frame.f_code is self.idle and event in ("call", "return"):
            self._threads.is_idle = event == "call"
        if self._steps and event == "call" and not getattr(self._threads, "is_idle", False):
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(SOURCE):
                name = frame.f_code.co_qualname.partition(".<locals>")[0]
                self.visit(str(file.relative_to(SOURCE)), name)

    def visit(self, file: str, name: str) -> None:
        if not self._steps or sys.getprofile() is None:
            return
        if file.startswith("engine/") and file != "engine/batching.py":  # Enqueues use that, too.
            self._steps = self._steps[:2]
        if not self.visits or self.visits[-1].file != file:
            self.visits.append(Visit(self._steps[-1], file, name))


class RecordedStatements(dict[str, str]):
    """A backend's statements; using one is a visit of its file."""

    def __init__(self, recorder: Recorder, package: str, texts: dict[str, str]) -> None:
        super().__init__(texts)
        self._recorder = recorder
        self._files = {
            line.removeprefix("-- name: "): str(file.relative_to(SOURCE))
            for file in (SOURCE.parent / package.replace(".", "/") / "sql").rglob("*.sql")
            for line in file.read_text().splitlines()
            if line.startswith("-- name: ")
        }

    def __getitem__(self, name: str) -> str:
        self._recorder.visit(self._files[name], name)
        return super().__getitem__(name)


class Observer:
    """Asks what has happened. Its threads begin before the tracing, and are not traced."""

    def __init__(self, url: str) -> None:
        self.app = Duetime(url)
        self._thread = ThreadPoolExecutor(1)
        self._ask(self.app.now())

    async def until(self, question: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 20
        while not await asyncio.wrap_future(self._thread.submit(lambda: self.app.sync(question()))):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within 20 s: {question.__name__}")
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)  # For what the worker does after the commit.

    def _ask(self, coroutine: Any) -> None:
        self._thread.submit(lambda: self.app.sync(coroutine)).result()

    def close(self) -> None:
        self._ask(self.app.close())
        self._thread.shutdown()


class Channel:
    """What sends the reminders."""

    name = "channel"

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def send(self, _message: object) -> Sent:
        self._recorder.ran()
        return Sent()

    async def close(self) -> None: ...


class Walks:
    """The three walks, on one app with one worker."""

    def __init__(self, url: str, recorder: Recorder) -> None:
        self.recorder = recorder
        self.observer = Observer(url)
        self.app = Duetime(url, lease="1h", heartbeat="30m")

        @self.app.task
        async def greet(name: str) -> str:
            recorder.ran()
            return f"Hello {name}"

        self.greet = greet
        self.app.add_channel(Channel(recorder))

    async def job(self, _number: int) -> None:
        with self.recorder.recording("enqueue", "claim and run", "finish"):
            handle = await self.greet.enqueue(name="Ann")

            async def ended() -> bool:
                return (await self.observer.app.jobs.get(handle.id)).state.finished

            await self.observer.until(ended)

    async def tick(self, number: int) -> None:
        at, name = await self.app.now() + LEAD, f"schedule {number}"
        with self.recorder.recording("store and plan", "claim, decide and run", "finish"):
            await self.app.schedules.put(name, self.greet, at, args={"name": "Ann"})

            async def closed() -> bool:
                history = await self.observer.app.schedules[name].history()
                return any(run.succeeded is not None for run in history)

            await self.observer.until(closed)

    async def reminder(self, number: int) -> None:
        at, name = await self.app.now() + LEAD, f"subject {number}"
        with self.recorder.recording("store and arm", "claim, check and send", "record"):
            await self.app.subjects.put(name, due=at, remind=["0s"], recipients=["ann"])

            async def recorded() -> bool:
                [reminder] = await self.observer.app.reminders.list(subject=name)
                job = await self.observer.app.jobs.get(reminder.job_id)
                return reminder.status == "sent" and job.state.finished

            await self.observer.until(recorded)


class Traced(NamedTuple):
    """`always` was visited in every run, `visits` is one of them without the rest."""

    visits: list[Visit]
    always: set[str]
    ever: set[str]


async def rest(
    _service: object, *, stopping: asyncio.Event, outage: object, poller: object = None
) -> None:
    """In place of what a worker repeats beside the walks: rescue, prune, watch the lease."""
    await stopping.wait()


async def trace(url: str) -> dict[str, Traced]:
    recorder = Recorder()
    worker.repeat = rest
    load = statements.load_statements
    # Before a backend is imported.
    statements.load_statements = lambda package, rename: RecordedStatements(
        recorder, package, load(package, rename)
    )
    from duetime.storage.sqlite.thread import StoreThread

    recorder.idle = StoreThread._rest.__code__
    walks = Walks(url, recorder)
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
    try:
        async with walks.app.worker():
            found = {
                "A job": await _repeat(walks, walks.job),
                "A schedule's tick": await _repeat(walks, walks.tick),
                "A reminder": await _repeat(walks, walks.reminder),
            }
        await walks.app.close()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    await asyncio.to_thread(walks.observer.close)
    return found


async def _repeat(walks: Walks, walk: Callable[[int], Awaitable[None]]) -> Traced:
    """What every run visits is the walk. The first one loads what is loaded once."""
    await walk(0)
    runs: list[list[Visit]] = []
    for number in range(1, RUNS + 1):
        await asyncio.sleep(0.05)  # Until the worker sleeps.
        await walk(number)
        runs.append(walks.recorder.visits)
    files = [{visit.file for visit in run} for run in runs]
    always = set.intersection(*files)
    shortest = min(([v for v in run if v.file in always] for run in runs), key=len)
    return Traced(shortest, always, set.union(*files))


def show(found: dict[str, Traced]) -> str:
    """The walks as text: each file where it is visited first."""
    lines: list[str] = []
    for name, traced in found.items():
        first: dict[str, Visit] = {}
        for visit in traced.visits:
            first.setdefault(visit.file, visit)
        pairs = zip(traced.visits, traced.visits[1:], strict=False)
        switches = sum(one.file != other.file for one, other in pairs)
        lines += [] if not lines else [""]
        lines.append(f"{name}: {len(first)} files, {switches} switches between files")
        step = ""
        for visit in first.values():
            if visit.step != step:
                lines.append(f"  {visit.step}")
                step = visit.step
            lines.append(f"    {visit.file:<44} {visit.name}")
    return "\n".join(lines) + "\n"


def differences(page: str, found: dict[str, Traced]) -> list[str]:
    """What the page says of walks, and is not so."""
    [(_, text, _)] = BLOCK.findall(page)
    said = dict(zip(found, re.split(r"^\S.*\n", text, flags=re.MULTILINE)[1:], strict=True))
    wrong = []
    for name, traced in found.items():
        files = set(re.findall(r"^    (\S+)", said[name], flags=re.MULTILINE))
        wrong += [f"{name}: {file} is not on the page" for file in sorted(traced.always - files)]
        wrong += [f"{name}: {file} was not visited" for file in sorted(files - traced.ever)]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", nargs="?", help="default: a new SQLite file")
    parser.add_argument("--write", action="store_true", help="put it into ARCHITECTURE.md")
    parser.add_argument("--check", action="store_true", help="compare it with ARCHITECTURE.md")
    options = parser.parse_args()
    # Nothing watches the event loop while the services rest, so it would be reported as blocked.
    logging.getLogger("duetime").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(trace(options.database or f"sqlite:///{folder}/walks.db"))
    page = PAGE.read_text()
    if options.check:
        wrong = differences(page, found)
        print("\n".join(wrong) or "ARCHITECTURE.md shows the walks as they are.")
        return 1 if wrong else 0
    if options.write:
        PAGE.write_text(BLOCK.sub(lambda match: match[1] + show(found) + match[3], page))
        return 0
    print(show(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
