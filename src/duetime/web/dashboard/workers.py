"""The screen of workers: who works, on what, and who was lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from duetime.domain.jobs.job import JobState
from duetime.storage.store import WorkerInfo
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, Pages

_RUNNING = 200
_BLOCKED = timedelta(seconds=1)


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/workers", "workers.html")
    async def show_workers(ask: Ask) -> dict[str, Any]:
        workers = await app.workers.list()
        running = await app.jobs.list(state=JobState.RUNNING, limit=_RUNNING)
        jobs: dict[str, list[Any]] = {}
        for job in running:
            jobs.setdefault(job.worker or "", []).append(job)
        alive = [worker for worker in workers if worker.lease_until >= ask.now]
        return {
            "workers": workers,
            "jobs": jobs,
            "lost": len(workers) - len(alive),
            "blocked": sum(map(is_blocked, alive)),
            "is_blocked": is_blocked,
        }

    return pages


def is_blocked(worker: WorkerInfo) -> bool:
    """Whether its event loop was held up for so long that other jobs noticed."""
    return worker.loop_lag >= _BLOCKED
