"""APScheduler 3 with schedules that tick every second. Run by the interpreter that has it.

The argument is JSON: schedules, warm_up, seconds, and a SQLAlchemy URL, or null for in memory.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

from apscheduler.events import EVENT_JOB_EXECUTED  # type: ignore[import-not-found]
from apscheduler.schedulers.background import BackgroundScheduler  # type: ignore[import-not-found]


def began() -> float:
    return time.time()


def main(schedules: int, warm_up: float, seconds: float, url: str | None) -> None:
    ticks: list[tuple[float, float]] = []

    def note(event: Any) -> None:
        ticks.append((event.scheduled_run_time.timestamp(), event.retval))

    scheduler = BackgroundScheduler(timezone="UTC")
    if url is not None:
        scheduler.add_jobstore("sqlalchemy", url=url)
    scheduler.add_listener(note, EVENT_JOB_EXECUTED)
    for number in range(schedules):
        # The default grace is a second: what is later than that is not run at all.
        scheduler.add_job(
            began, "cron", second="*", id=str(number), misfire_grace_time=None, max_instances=10
        )
    scheduler.start()
    first = math.ceil(time.time() + warm_up)
    time.sleep(first + seconds + 0.5 - time.time())
    scheduler.shutdown(wait=False)
    sys.stdout.write(json.dumps({"first": first, "ticks": ticks}) + "\n")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
