"""What is wrong, and what fixes it: one entry for each problem, the worst first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from duetime.domain.count import Count
from duetime.domain.jobs.explain import round_wait
from duetime.domain.reasons import make_sentence, plain_facts

Severity = Literal["error", "warning"]

PROBLEM_SENTENCES = {
    # Nothing runs, or something has failed for good.
    "no_workers": "No worker is running: {many} waiting, the oldest due for {wait:span}.",
    "jobs_dead": "The task {task!r} has {many}[: {error}].",
    "runs_failed": "The flow {task!r} has {many}[: {error}].",
    "reminders_failed": "Sending {many} failed in the last day[: {why:reason}].",
    "schedule_broken": "Schedule {schedule!r} is broken and does not run: {why:reason}.",
    "schedule_paused_by_failures": "Schedule {schedule!r} does not run: {why:reason}, since "
    "{since:utc}.",
    "table_broken": "The tracked table {table!r} is not followed: {why:reason}.",
    "queue_not_served": "No live worker serves the queue {queue!r}: {many} waiting, the oldest due "
    "for {wait:span}.",
    "jobs_parked": "The task {task!r} has {many}: {why:reason}.",
    # Something may fail, or is late.
    "worker_lost": "The worker {worker} lost its lease at {since:utc}, with {many} to be rescued.",
    "worker_silent": "The worker {worker} has sent no heartbeat for {wait:span}: its event loop "
    "may be blocked. It holds {many}.",
    "jobs_lost": "Workers were lost in the last hour, with {many}, the last one at {last:utc}.",
    "queue_paused": "The queue {queue!r} was paused at {since:utc}[ by {by}][: {text}]; {many} "
    "waiting, the oldest due for {wait:span}.",
    "jobs_late": "The queue {queue!r} has {many}, the oldest due for {wait:span}.",
    "subjects_stale": "Workers have yet to arm the reminders of {many}; the oldest change was made "
    "{wait:span} ago.",
    "schedule_failing": "Schedule {schedule!r} has {many} in a row.",
    "table_rows": "The tracked table {table!r} has {many} that cannot be used as they are, such as "
    "{why:reason}.",
    "addresses_disabled": "Some addresses accept no more messages: {many}, the last one "
    "{recipient} on {channel}[: {text}].",
}
"""Every code, with its sentence; the worst first."""
_RANKS = {code: rank for rank, code in enumerate(PROBLEM_SENTENCES)}
_WARNINGS = frozenset(list(PROBLEM_SENTENCES)[_RANKS["worker_lost"] :])


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What fixes a problem."""

    label: str
    """Such as `Requeue them`."""
    verb: str | None = None
    """The verb of the Python API, such as `jobs.requeue_many`. None: it is done elsewhere."""
    args: dict[str, Any] = {}
    command: str | None = None
    """The same on the command line."""


class ProblemInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    code: str
    severity: Severity
    sentence: str
    detail: str | None
    """More about it, as people read it."""
    since: datetime | None
    count: Count
    """How many jobs, runs, reminders or recipients it concerns; 1 of a schedule or a table."""
    facts: dict[str, Any]
    """What it is about, such as `queue`, `task`, `schedule`, `worker`."""
    action: Action | None

    def __str__(self) -> str:
        return self.sentence


def make_problem(
    code: str,
    facts: dict[str, Any],
    *,
    noun: str = "job",
    count: Count | None = None,
    since: datetime | None = None,
    detail: str | None = None,
    action: Action | None = None,
) -> ProblemInfo:
    """Make the problem of a code, which concerns so many of a noun.

    >>> facts = {"queue": "mail", "wait": timedelta(minutes=12)}
    >>> print(make_problem("queue_not_served", facts, count=Count(41)))
    No live worker serves the queue 'mail': 41 jobs waiting, the oldest due for 12m.
    """
    count = Count(1) if count is None else count
    shown = plain_facts(facts | {"since": since})
    many = f"{count} {noun}" if count == Count(1) else f"{count} {noun}s"
    return ProblemInfo(
        code=code,
        severity="warning" if code in _WARNINGS else "error",
        sentence=make_sentence(PROBLEM_SENTENCES, code, shown | {"many": many}),
        detail=detail,
        since=since,
        count=count,
        facts=shown,
        action=action,
    )


def worst_first(problems: Sequence[ProblemInfo]) -> list[ProblemInfo]:
    """Sort by how bad they are: by code, then by how many they concern."""
    return sorted(problems, key=lambda one: (_RANKS[one.code], -one.count.value, one.sentence))


def waited(since: datetime, now: datetime) -> timedelta:
    """How long it has lasted, to the second."""
    return round_wait(max(now - since, timedelta(0)))


def start_worker(queues: str) -> str:
    """Return the command that starts a worker for these queues.

    >>> start_worker("mail")
    'duetime worker --app MODULE:APP --queues mail'
    """
    return command("worker", "--app", "MODULE:APP", "--queues", queues)


def command(*words: str) -> str:
    """Return a command line of `duetime`, quoted for a shell.

    >>> command("queues", "resume", "my mail")
    "duetime queues resume 'my mail'"
    """
    return shlex.join(("duetime", *words))
