"""What happens in a worker, as log records: each has a readable message, the event's name in
`record.event` and its fields in `record.duetime`. What is also a number is counted, for metrics.

INFO: started and completed. WARNING: retried, lost, rescued. ERROR: dead. DEBUG: contention.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob, JobState
from duetime.domain.reasons import Reason
from duetime.telemetry.logs import FallbackHandler
from duetime.telemetry.tally import Tally, WorkerState

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
_JOB = "Job %(job_id)s of task %(task)s"
_REPEAT_SECONDS = 30.0


def log_event(
    logger: logging.Logger,
    level: int,
    event: str,
    sentence: str,
    *,
    exc_info: Any = None,
    **fields: object,
) -> None:
    """Log an event. `sentence` is the record's message, with fields as `%(name)s`.

    An exception in a logging filter or handler of the application does not stop the work.
    """
    if not logger.isEnabledFor(level):
        return
    extra = {"event": event, "duetime": fields}
    args = (fields,) if fields else ()
    try:
        logger.log(level, sentence, *args, extra=extra, exc_info=exc_info, stacklevel=2)
    except Exception:  # noqa: BLE001
        if logging.raiseExceptions:
            traceback.print_exc()


class Events:
    """Logs the events of workers to the logger `duetime.events`, and counts them."""

    def __init__(self) -> None:
        self.tally = Tally()

    def worker_started(
        self, worker: str, queues: Sequence[str], state: Callable[[], WorkerState]
    ) -> None:
        self.tally.worker_started(worker, state)
        self._log(
            logging.INFO,
            "worker_started",
            "Worker %(worker_id)s started on the queues %(queues)s.",
            worker_id=worker,
            queues=list(queues),
        )

    def worker_stopping(self, worker: str, *, running: int) -> None:
        self._log(
            logging.INFO,
            "worker_stopping",
            "Worker %(worker_id)s is stopping; %(running)s jobs are running.",
            worker_id=worker,
            running=running,
        )

    def worker_stopped(self, worker: str, *, given_back: int) -> None:
        self.tally.worker_stopped(worker)
        self._log(
            logging.INFO,
            "worker_stopped",
            "Worker %(worker_id)s stopped; %(given_back)s unfinished jobs were given back.",
            worker_id=worker,
            given_back=given_back,
        )

    def worker_fenced(self, worker: str, reason: str, *, held: int) -> None:
        self.tally.happened("lease_lost")
        self._log(
            logging.WARNING,
            "worker_fenced",
            "Worker %(worker_id)s lost its lease and stopped its %(held)s jobs: %(reason)s.",
            worker_id=worker,
            reason=reason,
            held=held,
        )

    def event_loop_blocked(self, worker: str, seconds: float, stack: str, given_up: bool) -> None:
        self._log(
            logging.ERROR if given_up else logging.WARNING,
            "event_loop_blocked",
            "The event loop of worker %(worker_id)s has been blocked for %(blocked_s)s s"
            + (
                ", and its lease is no longer renewed. It is here:\n%(traceback)s"
                if given_up
                else ". It is here:\n%(traceback)s"
            ),
            worker_id=worker,
            blocked_s=round(seconds, 1),
            lease_renewed=not given_up,
            traceback=stack,
        )

    def event_loop_unblocked(self, worker: str, seconds: float) -> None:
        self._log(
            logging.WARNING,
            "event_loop_unblocked",
            "The event loop of worker %(worker_id)s runs again after %(blocked_s)s s.",
            worker_id=worker,
            blocked_s=round(seconds, 1),
        )

    def woken(self, worker: str, reason: str) -> None:
        self.tally.woken(worker, reason)
        if log.isEnabledFor(logging.DEBUG):
            self._log(
                logging.DEBUG,
                "worker_woken",
                "Worker %(worker_id)s woke up: %(reason)s.",
                worker_id=worker,
                reason=reason,
            )

    def database_corrupted(self, worker: str, error: str) -> None:
        self._log(
            logging.ERROR,
            "database_corrupted",
            "Worker %(worker_id)s stops, as its database is damaged: %(error)s",
            worker_id=worker,
            error=error,
        )

    def transaction_conflict(self, worker: str, error: str, wait: float) -> None:
        self.tally.happened("transaction_conflict")
        self._log(
            logging.WARNING,
            "transaction_conflict",
            "Worker %(worker_id)s tries again in %(retry_in_s).3g s: %(error)s",
            worker_id=worker,
            error=error,
            retry_in_s=wait,
        )

    def jobs_claimed(self, worker: str, jobs: Sequence[ClaimedJob]) -> None:
        self.tally.jobs_claimed(worker, jobs)
        if log.isEnabledFor(logging.DEBUG):
            for job in jobs:
                self._log(
                    logging.DEBUG,
                    "job_claimed",
                    f"{_JOB} was claimed for attempt %(attempt)s by worker %(worker_id)s.",
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
                self._log(
                    logging.INFO,
                    "job_started",
                    f"{_JOB} started attempt %(attempt)s.",
                    job_id=job.id,
                    task=job.task,
                    attempt=job.attempt,
                    worker_id=worker,
                )

        return started

    def jobs_finished(self, worker: str, jobs: Sequence[FinishedJob]) -> None:
        self.tally.jobs_finished(jobs)
        if not log.isEnabledFor(logging.INFO):
            # For most there is nothing to log. A lookup in the table costs 0.2 µs.
            jobs = [finished for finished in jobs if finished.outcome is not _COMPLETED]
        for finished in jobs:
            # The frames of an exception may refer back to this record, which the garbage
            # collector does not track.
            exception, finished.exception = finished.exception, None
            if finished.outcome in _FAILED:
                self._job_failed(worker, finished, exception)
            else:
                self._job_finished(worker, finished)

    def _job_finished(self, worker: str, finished: FinishedJob) -> None:
        what = f"{_JOB} was {finished.outcome} on attempt %(attempt)s after %(duration_ms)s ms"
        self._log(
            _LEVELS.get(finished.outcome, logging.INFO),
            f"job_{finished.outcome}",
            f"{what}: %(reason)s" if finished.message else f"{what}.",
            **_fields_of(worker, finished),
            code=finished.error_code,
            reason=finished.message,
        )

    def _job_failed(
        self, worker: str, failed: FinishedJob, exception: BaseException | None
    ) -> None:
        retry_in = None if failed.again_after is None else failed.again_after.total_seconds()
        self._log(
            _LEVELS[failed.outcome],
            "job_failed",
            f"{_JOB} failed on attempt %(attempt)s of {failed.job.max_attempts} and "
            + ("will not be retried" if retry_in is None else "will be retried in %(retry_in_s)g s")
            + ": %(error_code)s: %(error)s",
            **_fields_of(worker, failed),
            error_code=failed.error_code,
            error=failed.message,
            will_retry=retry_in is not None,
            retry_in_s=retry_in,
            traceback=failed.traceback,
            exc_info=None if exception is None else exception_info(exception),
        )

    def job_stuck(
        self, worker: str, job: ClaimedJob, reason: str, seconds: float, stack: str
    ) -> None:
        self._log(
            logging.ERROR,
            "job_stuck",
            f"{_JOB} still runs after %(running_s)s s, although it was stopped: %(reason)s. "
            "It is here:\n%(traceback)s",
            job_id=job.id,
            task=job.task,
            attempt=job.attempt,
            worker_id=worker,
            reason=reason,
            running_s=round(seconds, 1),
            traceback=stack,
        )

    def claim_lost(self, worker: str, lost: FinishedJob) -> None:
        self.tally.happened("claim_lost")
        lost.exception = None
        self._log(
            logging.WARNING,
            "claim_lost",
            f"{_JOB} was lost to another worker: its outcome here was not recorded.",
            job_id=lost.job.id,
            task=lost.job.task,
            token=lost.job.token,
            worker_id=worker,
            reason="the claim was lost; nothing was recorded",
        )

    def job_rescued(self, rescued: Rescued) -> None:
        self.tally.job_rescued(rescued.state.value)
        self._log(
            logging.ERROR if rescued.state is JobState.DEAD else logging.WARNING,
            "job_rescued",
            f"{_JOB} was rescued from worker %(lost_by)s, which was lost; it is %(state)s now.",
            job_id=rescued.job_id,
            task=rescued.task,
            attempt=rescued.attempt,
            lost_by=rescued.worker,
            state=rescued.state.value,
        )

    def jobs_parked(self, worker: str, jobs: Sequence[ClaimedJob], reason: Reason) -> None:
        for job in jobs:
            self._log(
                logging.WARNING,
                "job_parked",
                f"{_JOB} was parked: %(reason)s.",
                job_id=job.id,
                task=job.task,
                worker_id=worker,
                code=reason.code,
                reason=str(reason),
            )

    def _log(
        self, level: int, event: str, sentence: str, *, exc_info: Any = None, **fields: object
    ) -> None:
        log_event(log, level, event, sentence, exc_info=exc_info, **fields)


class Outage:
    """Logs when the database cannot be reached, that it still cannot, and that it is back.

    Everything that a worker does fails during an outage; it is logged as one outage.
    """

    def __init__(self, worker: str | None) -> None:
        self._worker = worker
        self._failing: set[str] = set()
        self._since = 0.0
        self._throttle = LogThrottle()

    def failed(self, service: str, error: Exception, wait: float) -> None:
        """`service` could not reach the database and tries again after `wait` seconds."""
        if not self._failing:
            self._since = time.monotonic()
            self._throttle = LogThrottle()
        self._failing.add(service)
        if self._throttle.passes():
            self._log(
                "database_unreachable",
                "The database cannot be reached; %(service)s tries again in %(retry_in_s)g s: "
                "%(error)s",
                error=str(error),
                service=service,
                retry_in_s=wait,
            )

    def worked(self, service: str) -> None:
        """`service` reached the database. If it had failed before, the outage is over."""
        if service in self._failing:
            self._failing.clear()
            self._log("database_reconnected", "The database is back after %(outage_s)g s.")

    def _log(self, event: str, sentence: str, **fields: object) -> None:
        outage_s = round(time.monotonic() - self._since, 3)
        log_event(
            log,
            logging.WARNING,
            event,
            sentence,
            worker_id=self._worker,
            outage_s=outage_s,
            **fields,
        )


class LogThrottle:
    """Passes the first of many equal log lines, and then one every so many seconds."""

    def __init__(self, seconds: float = _REPEAT_SECONDS) -> None:
        self._seconds = seconds
        self._last = -seconds

    def passes(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


def exception_info(error: BaseException) -> tuple[Any, ...]:
    """What logging takes as `exc_info`: the exception, without the engine's own frames."""
    return type(error), error, handler_frames(error.__traceback__)


def handler_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without our own frames at its top."""
    inner = traceback
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith(
        ("duetime.engine.", "duetime.flows.")
    ):
        inner = inner.tb_next
    return inner or traceback


def _fields_of(worker: str, finished: FinishedJob) -> dict[str, Any]:
    return {
        "job_id": finished.job.id,
        "task": finished.job.task,
        "queue": finished.job.queue,
        "attempt": finished.job.attempt,
        "worker_id": worker,
        "duration_ms": round((finished.finished_us - finished.started_us) / 1000, 3),
    }
