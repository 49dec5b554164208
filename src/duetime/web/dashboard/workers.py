"""The screen of workers: who works, on what, and who was lost."""

from __future__ import annotations

from typing import Any

from duetime.domain.jobs.job import JobState
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, Pages

_RUNNING = 200


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
        return {"workers": workers, "jobs": jobs}

    return pages
