"""The log events of schedules."""

from __future__ import annotations

import logging
from typing import Any

from duetime.domain.jobs.job import ClaimedJob
from duetime.domain.reasons import Reason
from duetime.telemetry.events import log_event

log = logging.getLogger("duetime.events")


class ScheduleEvents:
    """Logs what happens to schedules, in a worker or in an application without one."""

    def __init__(self, worker: str | None = None) -> None:
        self._worker: dict[str, Any] = {} if worker is None else {"worker_id": worker}

    def tick_skipped(self, job: ClaimedJob, status: str, reason: Reason) -> None:
        self._log(
            logging.INFO,
            f"tick_{status}",
            f"Job %(job_id)s of task %(task)s does not run, its tick was {status}: %(reason)s.",
            job_id=job.id,
            key=job.key,
            task=job.task,
            code=reason.code,
            reason=str(reason),
        )

    def changed(self, schedule: str, change: str) -> None:
        self._log(
            logging.WARNING if change == "paused" else logging.INFO,
            f"schedule_{change}",
            f"Schedule %(schedule)s was {change}.",
            schedule=schedule,
        )

    def broken(self, schedule: str, reason: str) -> None:
        self._log(
            logging.ERROR,
            "schedule_broken",
            "Schedule %(schedule)s cannot be read, and does not run until it is put again: "
            "%(reason)s",
            schedule=schedule,
            reason=reason,
        )

    def unreadable(self, schedule: str, reason: str) -> None:
        self._log(
            logging.WARNING,
            "schedule_unreadable",
            "Worker %(worker_id)s cannot read schedule %(schedule)s and leaves it to others: "
            "%(reason)s",
            schedule=schedule,
            reason=reason,
        )

    def outdated_release(self, service: str, release: str, newest: str) -> None:
        self._log(
            logging.WARNING,
            "outdated_release",
            "The schedules of worker %(worker_id)s were not stored: release %(release)s of "
            "%(service)s is older than %(newest)s.",
            service=service,
            release=release,
            newest=newest,
        )

    def fallback_started(self, count: int, error: str) -> None:
        self._log(
            logging.ERROR,
            "schedule_fallback_started",
            "The schedule tables fail, and %(count)s schedules run from memory: %(error)s",
            count=count,
            error=error,
        )

    def fallback_ended(self, count: int) -> None:
        self._log(
            logging.WARNING,
            "schedule_fallback_ended",
            "The schedule tables work again, and %(count)s schedules were stored.",
            count=count,
        )

    def _log(self, level: int, event: str, sentence: str, **fields: object) -> None:
        log_event(log, level, event, sentence, **fields, **self._worker)
