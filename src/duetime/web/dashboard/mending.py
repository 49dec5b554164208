"""What can be done about a check that failed: the button or the link beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.stats.problems import start_worker

Facts = Mapping[str, Any]


class Remedy(msgspec.Struct, frozen=True):
    """Something that a person can do about a failed check."""

    label: str
    parts: tuple[str, ...] = ()
    """The address: of an action, or of a page."""
    is_link: bool = False
    """It leads to a page, where more has to be decided."""
    confirm: str | None = None
    fields: dict[str, str] = {}
    command: str | None = None
    """It is done on the command line."""


def find_remedy(code: str | None, facts: Facts) -> Remedy | None:
    """Return what mends a failed check of an explanation with these facts; None: nothing here.

    >>> find_remedy("queue_paused", {"job": 7, "queue": "mail"}).parts
    ('queues', 'mail', 'resume')
    >>> find_remedy("in_line", {"job": 7, "queue": "mail"}) is None
    True
    """
    make = _REMEDIES.get(code or "")
    try:
        return None if make is None else make(facts)
    except KeyError:
        return None  # An explanation of another kind of thing has the same code.


def _resume_queue(facts: Facts) -> Remedy:
    queue = str(facts["queue"])
    return Remedy("Resume the queue", ("queues", queue, "resume"), confirm=f"Resume {queue}?")


def _resume(facts: Facts) -> Remedy:
    """The check "paused" is one of queues, and one of schedules."""
    if "queue" in facts:
        return _resume_queue(facts)
    schedule = str(facts["schedule"])
    return Remedy("Resume it", ("schedules", schedule, "resume"), confirm=f"Resume {schedule}?")


def _resume_schedule(facts: Facts) -> Remedy:
    if "tick" in facts:
        return _run_tick(facts)
    return _resume(facts)


def _run_now(facts: Facts) -> Remedy:
    """A job, or the next run of a schedule: what else is not due is not hurried."""
    if "subject" in facts or "tick" in facts:
        raise KeyError
    if "schedule" in facts:
        name = str(facts["schedule"])
        ask = "Run it once now? Its next run is unchanged."
        return Remedy("Run it now", ("schedules", name, "trigger"), confirm=ask)
    return Remedy("Run it now", ("jobs", str(facts["job"]), "run"))


def _requeue(facts: Facts) -> Remedy:
    if "subject" in facts or "tick" in facts:
        raise KeyError
    ask = f"Give job {facts['job']} new attempts?"
    return Remedy("Requeue it", ("jobs", str(facts["job"]), "requeue"), confirm=ask)


def _run_tick(facts: Facts) -> Remedy:
    schedule, tick = str(facts["schedule"]), datetime.fromisoformat(str(facts["tick"]))
    end = tick + timedelta(microseconds=1)
    fields = {"start": tick.isoformat(), "end": end.isoformat(), "failed": "yes"}
    ask = "Run this tick now?"
    return Remedy("Run it now", ("schedules", schedule, "backfill"), confirm=ask, fields=fields)


def _failed(facts: Facts) -> Remedy:
    return _run_tick(facts) if "tick" in facts else _send_again(facts)


def _send_again(facts: Facts) -> Remedy:
    path = ("reminders", str(facts["reminder"]), "resend")
    return Remedy("Send it now", path, confirm="Send it now?")


def _send_anyway(facts: Facts) -> Remedy:
    if "reminder" not in facts:
        return _show_recipient(facts)
    path = ("reminders", str(facts["reminder"]), "send-anyway")
    return Remedy("Send anyway", path, confirm="Send it now, although its recipient is to rest?")


def _unmute(facts: Facts) -> Remedy:
    recipient = str(facts["recipient"])
    ask = f"Let {recipient} get messages again?"
    return Remedy("Unmute", ("recipients", recipient, "unmute"), confirm=ask)


def _show_recipient(facts: Facts) -> Remedy:
    return Remedy("Their settings", ("recipients", str(facts["recipient"])), is_link=True)


def _show_limits(facts: Facts) -> Remedy:
    return Remedy("Change the limits", ("queues", str(facts["queue"])), is_link=True)


def _show_job(facts: Facts) -> Remedy:
    return Remedy("What it waits for", ("jobs", str(facts["job"])), is_link=True)


def _show_subject(facts: Facts) -> Remedy:
    return Remedy("The subject", ("subjects", str(facts["subject"])), is_link=True)


def _start_worker(facts: Facts) -> Remedy:
    if "queue" not in facts:
        return Remedy("Copy the command", command="duetime worker --app MODULE:APP")
    return Remedy("Copy the command", command=start_worker(str(facts["queue"])))


_REMEDIES: dict[str, Callable[[Facts], Remedy]] = {
    # Jobs and queues.
    "queue_paused": _resume_queue,
    "paused": _resume,
    "no_worker": _start_worker,
    "limit_full": _show_limits,
    "partition_full": _show_limits,
    "rate_limited": _show_limits,
    "not_due": _run_now,
    "dead": _requeue,
    "cancelled": _requeue,
    "expired": _requeue,
    # Schedules and their ticks.
    "schedule_paused": _resume_schedule,
    "schedule_failing": _resume_schedule,
    "late_skipped": _run_tick,
    "late_max_age": _run_tick,
    "late_expires": _run_tick,
    "late_max_runs": _run_tick,
    "coalesced": _run_tick,
    "failed": _failed,
    # Reminders and subjects.
    "job_waits": _show_job,
    "muted_all": _unmute,
    "muted": _show_recipient,
    "quiet_hours": _send_anyway,
    "hourly_limit": _send_anyway,
    "in_digest": _send_anyway,
    "channels_failed": _send_again,
    "past_skipped": _send_again,
    "subject_done": _show_subject,
}
