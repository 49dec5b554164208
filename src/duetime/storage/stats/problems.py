"""What is wrong: found by a few reads of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.count import Count
from duetime.domain.jobs.explain import WorkerFacts
from duetime.domain.jobs.explain_queue import explain_queue
from duetime.domain.jobs.job import UNREADABLE
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import Reason, describe_error, read_reason
from duetime.domain.reminders.recipient import Disabled
from duetime.domain.reminders.reminder import REARM_TASK, REMIND_TASK
from duetime.domain.schedules.schedule import ENGINE_ACTOR
from duetime.domain.stats.now import QueueStats
from duetime.domain.stats.problems import (
    Action,
    ProblemInfo,
    command,
    make_problem,
    start_worker,
    waited,
    worst_first,
)
from duetime.storage.stats.now import MAX_EXAMINED, DeadGroup, ReadStats, Standing, make_queues
from duetime.storage.store import Dialect, Row, Statements, WorkerInfo

_DAY = timedelta(days=1)
_HOUR = timedelta(hours=1)
_SILENT = 0.6
"""A worker is silent if this part of its lease has passed. It beats after a third at the latest."""
_MAX_SCHEDULES = 100
_MICROSECOND = timedelta(microseconds=1)


class FindProblems:
    """Statements that find what is wrong."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def find(self, workers: Sequence[WorkerInfo], *, late_after: timedelta) -> Statements:
        """Return a `ProblemInfo` for each problem, the worst first."""
        standing = yield from ReadStats(self._dialect).standing(late_after)
        return (yield from self._find(standing, workers, late_after))

    def overview(self, workers: Sequence[WorkerInfo], *, late_after: timedelta) -> Statements:
        """Return the `NowStats` and the problems, of one reading."""
        stats = ReadStats(self._dialect)
        standing = yield from stats.standing(late_after)
        now = yield from stats.now_of(standing, workers, late_after)
        return now, (yield from self._find(standing, workers, late_after))

    def _find(
        self, standing: Standing, workers: Sequence[WorkerInfo], late_after: timedelta
    ) -> Statements:
        run = self._dialect.run
        limits = yield from run("problem_queues", {})
        schedules = yield from run("problem_schedules", {"most": _MAX_SCHEDULES})
        now = standing.now
        reminders = yield from run("problem_reminders", {"since": now - _DAY, "most": MAX_EXAMINED})
        lost = yield from run("problem_lost", {"since": now - _HOUR, "most": MAX_EXAMINED})
        recipients = yield from run("problem_recipients", {"most": MAX_EXAMINED})
        stale = yield from run("problem_stale", {"before": now - late_after, "most": MAX_EXAMINED})
        tables = yield from run("problem_tables", {"most": MAX_EXAMINED})
        return worst_first(
            [
                *_of_dead(standing),
                *_of_queues(standing, workers, self._limits(limits)),
                *_of_workers(standing, workers),
                *_of_parked(standing),
                *self._of_lost(lost),
                *self._of_stale(stale, now),
                *self._of_schedules(schedules),
                *self._of_reminders(reminders),
                *self._of_recipients(recipients),
                *_of_tables(tables),
            ]
        )

    def _limits(self, rows: Sequence[Row]) -> dict[str, tuple[Limits, int]]:
        return {
            name: (
                Limits(
                    running=running,
                    per_partition=per_partition,
                    rate=rate,
                    period=None if period is None else period * _MICROSECOND,
                ),
                started,
            )
            for name, running, per_partition, rate, period, started in rows
        }

    def _of_lost(self, rows: Sequence[Row]) -> Iterator[ProblemInfo]:
        [(count, first, last)] = rows
        if count:
            yield make_problem(
                "jobs_lost",
                {"last": self._dialect.moment(last)},
                noun="attempt",
                count=_counted(count),
                since=self._dialect.moment(first),
                detail="A worker is lost if it is killed, runs out of memory, or cannot reach the "
                "database for as long as its lease. Its jobs run again.",
            )

    def _of_stale(self, rows: Sequence[Row], now: datetime) -> Iterator[ProblemInfo]:
        [(count, first)] = rows
        if count:
            since = self._dialect.moment(first)
            yield make_problem(
                "subjects_stale",
                {"wait": waited(since, now)},
                noun="subject",
                count=_counted(count),
                since=since,
                detail="They have changed, or a scope around them has. None of their old reminders "
                "is sent meanwhile. A job of duetime.rearm arms them.",
                action=Action(
                    label="Show that job", command=command("jobs", "list", "--task", REARM_TASK)
                ),
            )

    def _of_schedules(self, rows: Sequence[Row]) -> Iterator[ProblemInfo]:
        for name, failures, broken, paused_at, paused_by, pause_reason, updated_at in rows:
            facts: dict[str, Any] = {"schedule": name}
            if broken is not None:
                yield make_problem(
                    "schedule_broken",
                    facts | {"why": read_reason(broken)},
                    since=self._dialect.moment(updated_at),
                    action=Action(
                        label="Show the schedule", command=command("schedules", "get", name)
                    ),
                )
            elif paused_at is not None and paused_by == ENGINE_ACTOR and not pause_reason:
                why = Reason.of("schedule_failing", by=paused_by, failures=failures)
                yield make_problem(
                    "schedule_paused_by_failures",
                    facts | {"why": why},
                    since=self._dialect.moment(paused_at),
                    action=Action(
                        label="Resume it",
                        verb="schedules.resume",
                        args={"name": name},
                        command=command("schedules", "resume", name),
                    ),
                )
            elif paused_at is None:
                yield make_problem(
                    "schedule_failing",
                    facts,
                    noun="failed run",
                    count=Count(failures),
                    action=Action(
                        label="Show its runs", command=command("schedules", "history", name)
                    ),
                )

    def _of_reminders(self, rows: Sequence[Row]) -> Iterator[ProblemInfo]:
        """One problem for each kind of reason. All have ended as failed."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            reason = read_reason(row[1])
            groups.setdefault("" if reason is None else reason.code, []).append(row)
        for same in groups.values():
            _, why, _, recipient, subject = max(same, key=lambda row: row[2])
            yield make_problem(
                "reminders_failed",
                {"why": read_reason(why), "recipient": recipient or None, "subject": subject},
                noun="reminder",
                count=_counted(len(same)),
                since=self._dialect.moment(min(row[2] for row in same)),
                detail=f"The last one was of {subject!r}"
                + (f", to {recipient}." if recipient else "."),
                action=Action(
                    label="Send them again",
                    verb="reminders.resend_many",
                    args={"status": "failed", "within": "1d"},
                    command=command("reminders", "resend", "--status", "failed", "--within", "1d"),
                ),
            )

    def _of_recipients(self, rows: Sequence[Row]) -> Iterator[ProblemInfo]:
        if not rows:
            return
        disabled = [
            (ref, one)
            for ref, text in rows
            for one in msgspec.json.decode(text, type=tuple[Disabled, ...])
        ]
        recipient, last = max(disabled, key=lambda one: one[1].at)
        yield make_problem(
            "addresses_disabled",
            {
                "recipient": recipient,
                "channel": last.channel,
                "text": last.reason.rstrip(".") or None,
                "last": last.at,
            },
            noun="recipient",
            count=_counted(len(rows)),
            since=min(one.at for _, one in disabled),
            detail="They are tried again when the recipient is put with an address that works.",
            action=Action(
                label="Show the recipient", command=command("recipients", "get", recipient)
            ),
        )


def _of_dead(standing: Standing) -> Iterator[ProblemInfo]:
    for group in standing.dead:
        if group.task == REMIND_TASK:
            continue  # The reminder has failed, too.
        count = Count(group.jobs, "exact" if standing.dead_is_all else "at_least")
        facts = {
            "task": group.task,
            "queue": group.queue,
            "error_code": group.error_code,
            "error": _error(group),
            "job": group.job_id,
            "last": group.last,
            "attempts": group.attempts,
        }
        flow = group.flow
        yield make_problem(
            "runs_failed" if flow else "jobs_dead",
            facts,
            noun="failed run" if flow else "dead job",
            count=count,
            since=group.since,
            detail=f"The last one, {'run' if flow else 'job'} {group.job_id}, "
            f"{'failed' if flow else 'died'} at {group.last:%Y-%m-%d %H:%M:%S} UTC "
            f"after {group.attempts} attempt{'' if group.attempts == 1 else 's'}.",
            action=_mend_runs(group) if flow else _requeue(group),
        )


def _requeue(group: DeadGroup) -> Action:
    return Action(
        label="Requeue them" if group.jobs > 1 else "Requeue it",
        verb="jobs.requeue_many",
        args={"state": "dead", "task": group.task, "queue": group.queue},
        command=command(
            "jobs", "requeue", "--state", "dead", "--task", group.task, "--queue", group.queue
        ),
    )


def _mend_runs(group: DeadGroup) -> Action:
    if group.jobs == 1:
        return Action(
            label="Retry it",
            verb="flows.retry",
            args={"run_id": group.job_id},
            command=command("flows", "retry", str(group.job_id)),
        )
    return Action(
        label="Show them",
        command=command("flows", "list", "--state", "failed", "--flow", group.task),
    )


def _error(group: DeadGroup) -> str | None:
    facts = None if group.facts is None else msgspec.json.decode(group.facts)
    said = describe_error(group.error_code, facts, group.error)
    if said is None:
        return group.error_code
    said = said.rstrip(".")
    known = group.error_code is None or group.error is None or group.error_code in said
    return said if known else f"{group.error_code}: {said}"


def _of_queues(
    standing: Standing, workers: Sequence[WorkerInfo], limits: dict[str, tuple[Limits, int]]
) -> Iterator[ProblemInfo]:
    now = standing.now
    alive = [worker for worker in workers if worker.lease_until > now]
    due = [queue for queue in make_queues(standing, alive) if queue.oldest_due_at is not None]
    open_queues = [queue for queue in due if queue.paused_at is None]
    for queue in due:
        if queue.paused_at is not None:
            yield make_problem(
                "queue_paused",
                _waiting(queue, now) | {"by": queue.paused_by, "text": queue.pause_reason},
                count=queue.due,
                since=queue.paused_at,
                action=Action(
                    label="Resume it",
                    verb="queues.resume",
                    args={"queue": queue.name},
                    command=command("queues", "resume", queue.name),
                ),
            )
    if open_queues and not alive:
        oldest = min(queue.oldest_due_at or now for queue in open_queues)
        names = ",".join(queue.name for queue in open_queues)
        exact = all(queue.due.precision == "exact" for queue in open_queues)
        yield make_problem(
            "no_workers",
            {"queues": [queue.name for queue in open_queues], "wait": waited(oldest, now)},
            count=Count(
                sum(queue.due.value for queue in open_queues), "exact" if exact else "at_least"
            ),
            since=oldest,
            action=Action(label="Start a worker", command=start_worker(names)),
        )
        return
    for queue in open_queues:
        if not queue.workers:
            yield _not_served(queue, alive, now)
        elif queue.late:
            yield _late(queue, alive, limits.get(queue.name, (Limits(), 0)), now)


def _not_served(queue: QueueStats, alive: Sequence[WorkerInfo], now: datetime) -> ProblemInfo:
    served = sorted({name for worker in alive for name in worker.queues})
    workers = "1 live worker serves" if len(alive) == 1 else f"{len(alive)} live workers serve"
    return make_problem(
        "queue_not_served",
        _waiting(queue, now),
        count=queue.due,
        since=queue.oldest_due_at,
        detail=f"{workers} {', '.join(served)}.",
        action=Action(label="Start a worker for it", command=start_worker(queue.name)),
    )


def _late(
    queue: QueueStats,
    alive: Sequence[WorkerInfo],
    limits: tuple[Limits, int],
    now: datetime,
) -> ProblemInfo:
    info = QueueInfo(
        name=queue.name, pending=queue.waiting.value, due=queue.due.value, running=queue.running,
        parked=queue.parked.value, next_run_at=queue.next_run_at, paused_at=None, paused_by=None,
        pause_reason=None, limits=limits[0], started=limits[1],
    )  # fmt: skip
    facts = [
        WorkerFacts(one.name, one.queues, one.tasks, one.lease_until, one.running, one.concurrency)
        for one in alive
    ]
    why = explain_queue(info, workers=facts, now=now)
    return make_problem(
        "jobs_late",
        _waiting(queue, now) | {"reason": why.code},
        noun="late job",
        count=queue.late,
        since=queue.oldest_due_at,
        detail=why.sentence,
        action=Action(label="Start another worker", command=start_worker(queue.name))
        if why.code == "workers_busy"
        else Action(label="Explain", command=command("queues", "explain", queue.name)),
    )


def _waiting(queue: QueueStats, now: datetime) -> dict[str, Any]:
    return {"queue": queue.name, "wait": waited(queue.oldest_due_at or now, now)}


def _of_workers(standing: Standing, workers: Sequence[WorkerInfo]) -> Iterator[ProblemInfo]:
    now = standing.now
    for worker in workers:
        silent = now - worker.seen_at
        if worker.lease_until <= now:
            yield make_problem(
                "worker_lost",
                {"worker": worker.name},
                count=Count(worker.running),
                since=worker.lease_until,
                detail="A live worker rescues them within seconds."
                if any(one.lease_until > now for one in workers)
                else "They are rescued as soon as a worker is running.",
            )
        elif silent > _SILENT * (worker.lease_until - worker.seen_at):
            yield make_problem(
                "worker_silent",
                {"worker": worker.name, "wait": waited(worker.seen_at, now)},
                count=Count(worker.running),
                since=worker.seen_at,
                detail="If it stays silent, its jobs are rescued when its lease ends, at "
                f"{worker.lease_until:%H:%M:%S} UTC.",
            )


def _of_parked(standing: Standing) -> Iterator[ProblemInfo]:
    for queue, task, count, since, unreadable, reason in standing.parked:
        why = read_reason(reason) or Reason(UNREADABLE)
        known = f"a worker of the queue {queue!r} that knows the task"
        yield make_problem(
            "jobs_parked",
            {"task": task, "queue": queue, "why": why},
            noun="parked job",
            count=_counted(count),
            since=since,
            detail="Cancel them; or correct their rows, then cancel and requeue them."
            if unreadable
            else f"They run as soon as there is {known}.",
            action=Action(
                label="Show them",
                command=command("jobs", "list", "--state", "parked", "--task", task),
            ),
        )


def _of_tables(rows: Sequence[Row]) -> Iterator[ProblemInfo]:
    for name, problem, count in rows:
        facts = {"table": name, "why": read_reason(problem)}
        if count is not None:
            yield make_problem(
                "table_rows",
                facts,
                noun="row",
                count=_counted(count),
                detail="Correct the rows: each is followed as soon as it is written.",
                action=Action(label="Show the table", command=command("tables", "get", name)),
            )
            continue
        yield make_problem(
            "table_broken",
            facts,
            action=Action(label="Show the table", command=command("tables", "get", name)),
        )


def _counted(count: int) -> Count:
    return Count(count, "exact" if count < MAX_EXAMINED else "at_least")
