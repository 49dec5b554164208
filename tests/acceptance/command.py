"""The command `duetime`, in processes of its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from duetime import Duetime
from duetime.domain.jobs.job import NewJob
from tests.acceptance.command_server import CommandServer

ROOT = Path(__file__).parents[2]
DUETIME = Path(sys.executable).with_name("duetime")
SHOP = "tests.acceptance.shop:app"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that an error is."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("Error: "), self.err
        return lines[0].removeprefix("Error: ")


def environment(url: str | None, **more: str) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("DUETIME_")}
    # Else a line is several writes, and those of processes that share an output mix.
    clean.pop("PYTHONUNBUFFERED", None)
    return clean | ({} if url is None else {"DUETIME_DATABASE": url}) | more


def duetime(
    url: str | None,
    *arguments: str,
    given: str = "",
    cwd: Path = ROOT,
    started: bool = False,
    powerless: bool = False,
    **variables: str,
) -> Answer:
    """Run a command to its end.

    `started`: as the installed command, not forked from one that has imported all. `powerless`:
    that too, and the modes of files bind it, even if it is root.
    """
    if not (started or powerless):
        return Answer(
            *command_server().run(
                list(arguments), given=given, environment=environment(url, **variables), cwd=cwd
            )
        )
    done = subprocess.run(
        [str(DUETIME), *arguments],
        input=given,
        capture_output=True,
        text=True,
        env=environment(url, **variables),
        cwd=cwd,
        timeout=60,
        check=False,
        preexec_fn=_drop_power if powerless else None,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


@cache
def command_server() -> CommandServer:
    return CommandServer()


class WorkerProcess:
    """`duetime worker`, and what it logs."""

    def __init__(self, url: str, *options: str) -> None:
        self.log = Path(tempfile.mkstemp(prefix="duetime-worker-", suffix=".log")[1])
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [str(DUETIME), "worker", "--app", SHOP, "--log-format", "json", *options],
                stderr=log,
                env=environment(url),
                cwd=ROOT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line[-1:] == "}"]

    def logged(self, event: str) -> bool:
        return self.count(event) > 0

    def count(self, event: str) -> int:
        return sum(line["event"] == event for line in self.lines)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self, seconds: float = 10.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"alive after {seconds} s:\n{self.log.read_text()}") from None

    def children(self) -> list[int]:
        return children_of(self.pid)

    def close(self) -> None:
        pids = [self.pid, *self.children()]
        if self.process.poll() is None:
            for pid in pids:
                _kill(pid)
            self.process.wait()
        self.log.unlink()


@contextmanager
def worker(url: str, *options: str) -> Iterator[WorkerProcess]:
    process = WorkerProcess(url, *options)
    try:
        yield process
    finally:
        process.close()


def children_of(pid: int) -> list[int]:
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                children.append(int(entry.name))
    return children


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def new_job(task: str, **arguments: Any) -> NewJob:
    return NewJob(task=task, args=msgspec.Raw(msgspec.json.encode(arguments)))


async def enqueue(app: Duetime, *jobs: NewJob) -> list[int]:
    return [handle.id for handle in await app.enqueue_many(jobs)]


def _drop_power() -> None:
    prctl_drop_from_bounding_set, dac_override = 24, 1
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(
        prctl_drop_from_bounding_set, dac_override, 0, 0, 0
    ):
        raise OSError("root cannot give up its power over files here")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
