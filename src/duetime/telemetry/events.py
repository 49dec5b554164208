"""What happens, told once: each event is a structured log line.

INFO: begun and completed. WARNING: retried, lost, rescued. ERROR: dead. DEBUG: contention.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob, JobState
from duetime.telemetry.logs import FallbackHandler

if TYPE_CHECKING:
    from duetime.storage.store import Rescued

log = logging.getLogger("duetime.events")
logging.getLogger("duetime").addHandler(FallbackHandler())

_LEVELS = {
    AttemptOutcome.COMPLETED: logging.INFO,
    AttemptOutcome.SNOOZED: logging.INFO,
    AttemptOutcome.CANCELLED: logging.INFO,
    AttemptOutcome.RETRIED: logging.WARNING,
    AttemptOutcome.EXPIRED: logging.WARNING,
    AttemptOutcome.DEAD: logging.ERROR,
}
_COMPLETED = AttemptOutcome.COMPLETED
_FAILED = frozenset({AttemptOutcome.RETRIED, AttemptOutcome.DEAD})


class Events:
    """The engine tells it; whoever listens, listens to the logger `duetime.events`."""

    def worker_started(self, worker: str, worker_id: int, queues: Sequence[str]) -> None:
        self._say(logging.INFO, "worker_started", worker_id=worker, queues=list(queues))

    def worker_stopping(self, worker: str, *, running: int) -> None:
        self._say(logging.INFO, "worker_stopping", worker_id=worker, running=running)

    def worker_stopped(self, worker: str, *, given_back: int) -> None:
        self._say(logging.INFO, "worker_stopped", worker_id=worker, given_back=given_back)

    def worker_fenced(self, worker: str, reason: str, *, held: int) -> None:
        self._say(logging.WARNING, "worker_fenced", worker_id=worker, reason=reason, held=held)

    def event_loop_blocked(self, worker: str, seconds: float, stack: str, given_up: bool) -> None:
        self._say(
            logging.ERROR if given_up else logging.WARNING,
            "event_loop_blocked",
            worker_id=worker,
            blocked_s=round(seconds, 1),
            lease_renewed=not given_up,
            traceback=stack,
        )

    def event_loop_unblocked(self, worker: str, seconds: float) -> None:
        self._say(
            logging.WARNING, "event_loop_unblocked", worker_id=worker, blocked_s=round(seconds, 1)
        )

    def woken(self, worker: str, reason: str) -> None:
        if log.isEnabledFor(logging.DEBUG):
            self._say(logging.DEBUG, "worker_woken", worker_id=worker, reason=reason)

    def database_corrupted(self, worker: str, error: str) -> None:
        self._say(logging.ERROR, "database_corrupted", worker_id=worker, error=error)

    def transaction_conflict(self, worker: str, error: str, wait: float) -> None:
        self._say(
            logging.WARNING, "transaction_conflict", worker_id=worker, error=error, retry_in_s=wait
        )

    def jobs_claimed(self, worker: str, jobs: Sequence[ClaimedJob]) -> None:
        if log.isEnabledFor(logging.DEBUG):
            for job in jobs:
                self._say(
                    logging.DEBUG,
                    "job_claimed",
                    job_id=job.id,
                    task=job.task,
                    queue=job.queue,
                    attempt=job.attempt,
                    worker_id=worker,
                )

    def job_started(self, worker: str) -> Callable[[ClaimedJob], None]:
        """Return a function to call at each start; made once, since it is on the hot path."""

        def started(job: ClaimedJob) -> None:
            if log.isEnabledFor(logging.INFO):
                self._say(
                    logging.INFO,
                    "job_started",
                    job_id=job.id,
                    task=job.task,
                    attempt=job.attempt,
                    worker_id=worker,
                )

        return started

    def jobs_finished(self, worker: str, ended: Sequence[FinishedJob]) -> None:
        if not log.isEnabledFor(logging.INFO):
            # Of most there is nothing to say. A look into the table costs 0.2 µs.
            ended = [end for end in ended if end.outcome is not _COMPLETED]
        for end in ended:
            level = _LEVELS.get(end.outcome, logging.INFO)
            if not log.isEnabledFor(level):
                continue
            fields = {
                "job_id": end.job.id,
                "task": end.job.task,
                "queue": end.job.queue,
                "attempt": end.job.attempt,
                "worker_id": worker,
                "duration_ms": round((end.finished_us - end.started_us) / 1000, 3),
            }
            if end.outcome in _FAILED:
                again = None if end.again_after is None else end.again_after.total_seconds()
                fields |= {
                    "error_code": end.error_code,
                    "error": end.error,
                    "will_retry": again is not None,
                    "retry_in_s": again,
                    "traceback": end.traceback,
                }
                self._say(level, "job_failed", **fields)
            else:
                self._say(level, f"job_{end.outcome}", **fields, reason=end.error)

    def job_stuck(
        self, worker: str, job: ClaimedJob, reason: str, seconds: float, stack: str
    ) -> None:
        self._say(
            logging.ERROR,
            "job_stuck",
            job_id=job.id,
            task=job.task,
            attempt=job.attempt,
            worker_id=worker,
            reason=reason,
            running_s=round(seconds, 1),
            traceback=stack,
        )

    def claim_lost(self, worker: str, end: FinishedJob) -> None:
        self._say(
            logging.WARNING,
            "claim_lost",
            job_id=end.job.id,
            task=end.job.task,
            token=end.job.token,
            worker_id=worker,
            reason="the claim was lost; nothing was recorded",
        )

    def job_rescued(self, rescued: Rescued) -> None:
        self._say(
            logging.ERROR if rescued.state is JobState.DEAD else logging.WARNING,
            "job_rescued",
            job_id=rescued.job_id,
            task=rescued.task,
            attempt=rescued.attempt,
            lost_by=rescued.worker,
            state=rescued.state.value,
        )

    def jobs_parked(self, worker: str, jobs: Sequence[ClaimedJob], reason: str) -> None:
        for job in jobs:
            self._say(
                logging.WARNING,
                "job_parked",
                job_id=job.id,
                task=job.task,
                worker_id=worker,
                reason=reason,
            )

    def tick_skipped(self, worker: str, job: ClaimedJob, status: str, reason: str) -> None:
        self._say(
            logging.INFO,
            f"tick_{status}",
            job_id=job.id,
            key=job.key,
            task=job.task,
            worker_id=worker,
            reason=reason,
        )

    def schedule_changed(self, worker: str, schedule: str, change: str) -> None:
        level = logging.WARNING if change == "paused" else logging.INFO
        self._say(level, f"schedule_{change}", schedule=schedule, worker_id=worker)

    def schedule_broken(self, worker: str | None, schedule: str, reason: str) -> None:
        where = {} if worker is None else {"worker_id": worker}
        self._say(logging.ERROR, "schedule_broken", schedule=schedule, reason=reason, **where)

    def schedule_unreadable(self, worker: str, schedule: str, reason: str) -> None:
        self._say(
            logging.WARNING,
            "schedule_unreadable",
            schedule=schedule,
            reason=reason,
            worker_id=worker,
        )

    def outdated_release(self, worker: str, service: str, release: str, newest: str) -> None:
        self._say(
            logging.WARNING,
            "outdated_release",
            service=service,
            release=release,
            newest=newest,
            worker_id=worker,
        )

    def schedule_fallback_started(self, worker: str, count: int, error: str) -> None:
        self._say(
            logging.ERROR, "schedule_fallback_started", worker_id=worker, count=count, error=error
        )

    def schedule_fallback_ended(self, worker: str, count: int) -> None:
        self._say(logging.WARNING, "schedule_fallback_ended", worker_id=worker, count=count)

    def _say(self, level: int, event: str, **fields: object) -> None:
        try:
            log.log(level, event, extra={"duetime": fields})
        except Exception:  # noqa: BLE001 - a filter or handler of the application's
            if logging.raiseExceptions:
                traceback.print_exc()
