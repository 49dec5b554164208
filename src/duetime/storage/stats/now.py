"""How everything stands now, by a few reads of bounded size, whatever waits or has finished."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from duetime.domain.count import Count
from duetime.domain.stats.now import NowStats, QueueStats, TaskStats, Totals
from duetime.domain.stats.series import ALL_TASKS
from duetime.storage.stats.attempts import AttemptStats
from duetime.storage.store import Dialect, Row, Statements, WorkerInfo

_HOUR = timedelta(hours=1)
MAX_COUNTED = 10_000
"""Of what waits in one lane, no more are counted."""
_MAX_READ = 20_000
"""Nor more than so many in all lanes, if there are many lanes."""
MAX_EXAMINED = 500
"""Of dead, retrying and parked jobs, which take more than a step in an index."""


class DeadGroup(NamedTuple):
    """Dead jobs of one task that died of the same error."""

    task: str
    queue: str
    error_code: str | None
    jobs: int
    since: datetime
    last: datetime
    """When the last of them died. The others are of that one."""
    job_id: int
    attempts: int
    error: str | None
    facts: str | None
    flow: bool
    """Whether they are runs of a flow."""


class Standing(NamedTuple):
    """What was read."""

    now: datetime
    lanes: Sequence[Row]
    due_tasks: Sequence[Row]
    running: Sequence[Row]
    retrying: Sequence[Row]
    parked: Sequence[Row]
    dead: Sequence[DeadGroup]
    dead_is_all: bool
    queues: Sequence[Row]


class ReadStats:
    """Statements that read how everything stands."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def now(self, workers: Sequence[WorkerInfo], *, late_after: timedelta) -> Statements:
        """Return a `NowStats`."""
        standing = yield from self.standing(late_after)
        return (yield from self.now_of(standing, workers, late_after))

    def now_of(
        self, standing: Standing, workers: Sequence[WorkerInfo], late_after: timedelta
    ) -> Statements:
        """Return the `NowStats` of what was read."""
        completed = yield from AttemptStats(self._dialect).completed(_HOUR)
        return make_now(standing, workers, late_after, completed)

    def totals(self, workers: Sequence[WorkerInfo]) -> Statements:
        """Return the `Totals`."""
        now = yield from self._dialect.now()
        [row] = yield from self._dialect.run("stats_totals", {"most": MAX_COUNTED})
        lanes = yield from self._dialect.run("stats_lane_names", {"most": MAX_EXAMINED})
        queues = yield from self._dialect.run("stats_queues", {})
        (
            waiting, waiting_about, running, parked, schedules, reminders, reminders_about, flows,
            all_flows, tables,
        ) = row  # fmt: skip
        open_jobs = _estimate(waiting, waiting_about)
        names = {name for name, _ in lanes} | {name for name, *_ in queues}
        return Totals(
            jobs=Count(open_jobs.value + running + parked, open_jobs.precision),
            schedules=_capped(schedules, MAX_COUNTED),
            reminders=_estimate(reminders, reminders_about),
            flows=Count(flows, "exact" if all_flows else "at_least"),
            queues=len(names.union(*(worker.queues for worker in workers))),
            workers=sum(worker.lease_until > now for worker in workers),
            tables=tables,
        )

    def standing(self, late_after: timedelta) -> Statements:
        """Return a `Standing`."""
        run, moment = self._dialect.run, self._dialect.moment
        now = yield from self._dialect.now()
        names = yield from run("stats_lane_names", {"most": MAX_EXAMINED})
        most = max(100, min(MAX_COUNTED, _MAX_READ // max(len(names), 1)))
        lanes = yield from run(
            "stats_lanes",
            {"lanes": names, "late_before": now - late_after, "due_before": now, "most": most},
        )
        lanes = [
            (queue, priority, moment(first), *counts, counts[0] >= most)
            for queue, priority, first, *counts in lanes
            if first is not None
        ]
        with_due = [(queue, priority) for queue, priority, first, *_ in lanes if first <= now]
        each = max(10, MAX_EXAMINED // max(len(with_due), 1))
        due_tasks = []
        if with_due:
            given = {"lanes": with_due, "due_before": now, "most": each}
            due_tasks = yield from run("stats_due_tasks", given)
        running = yield from run("stats_running", {})
        retrying = yield from run("stats_retrying", {"most": MAX_EXAMINED})
        retrying = [(*row[:3], moment(row[3])) for row in retrying]
        parked = yield from run("stats_parked", {"most": MAX_EXAMINED})
        parked = [(*row[:3], moment(row[3]), *row[4:]) for row in parked]
        dead = yield from run("stats_dead", {"most": MAX_EXAMINED})
        queues = yield from run("stats_queues", {})
        return Standing(
            now,
            lanes,
            due_tasks,
            running,
            retrying,
            parked,
            _group([(*row[:4], moment(row[4]), *row[5:9]) for row in dead if row[9]]),
            len(dead) < MAX_EXAMINED,
            [(name, self._maybe(at), *more) for name, at, *more in queues],
        )

    def _maybe(self, value: Any) -> datetime | None:
        return None if value is None else self._dialect.moment(value)


def make_now(
    standing: Standing,
    workers: Sequence[WorkerInfo],
    late_after: timedelta,
    completed: Mapping[str, int],
) -> NowStats:
    """`completed`: how many jobs of each task did so in the last hour."""
    now = standing.now
    alive = [worker for worker in workers if worker.lease_until > now]
    queues = make_queues(standing, alive)
    dead = standing.dead
    oldest = min((q.oldest_due_at for q in queues if q.oldest_due_at is not None), default=None)
    return NowStats(
        at=now,
        waiting=_sum(queue.waiting for queue in queues),
        due=_sum(queue.due for queue in queues),
        late=_sum(queue.late for queue in queues),
        late_after=late_after,
        late_by=None if oldest is None else now - oldest,
        oldest_due_at=oldest,
        next_run_at=min((lane[2] for lane in standing.lanes), default=None),
        retrying=_capped(sum(row[2] for row in standing.retrying), MAX_EXAMINED),
        next_retry_at=min((row[3] for row in standing.retrying), default=None),
        running=sum(row[2] for row in standing.running),
        places=sum(worker.concurrency for worker in alive),
        parked=_capped(sum(row[2] for row in standing.parked), MAX_EXAMINED),
        dead=_of_dead(standing, dead),
        dead_errors=len({(group.task, group.error_code) for group in dead}),
        dead_since=min((group.since for group in dead), default=None),
        completed_last_hour=completed.get(ALL_TASKS, 0),
        completed_per_second=round(completed.get(ALL_TASKS, 0) / _HOUR.total_seconds(), 3),
        workers=len(alive),
        lost_workers=len(workers) - len(alive),
        queues=tuple(queues),
        tasks=tuple(_make_tasks(standing, alive, completed)),
    )


def make_queues(standing: Standing, alive: Sequence[WorkerInfo]) -> list[QueueStats]:
    """How each queue stands that has jobs, a live worker, a pause or a limit."""
    now = standing.now
    lanes: defaultdict[str, list[Row]] = defaultdict(list)
    for lane in standing.lanes:
        lanes[lane[0]].append(lane)
    rows = {name: row for name, *row in standing.queues}
    running, retrying, parked = (
        _count_by(0, rows) for rows in (standing.running, standing.retrying, standing.parked)
    )
    all_parked = sum(parked.values())
    all_retrying = sum(retrying.values())
    served = {queue for worker in alive for queue in worker.queues}
    found = []
    for name in sorted({*lanes, *rows, *running, *parked, *served}):
        serving = [worker for worker in alive if name in worker.queues]
        paused_at, paused_by, pause_reason = rows.get(name, (None, None, None))
        oldest = min((lane[2] for lane in lanes[name]), default=None)
        found.append(
            QueueStats(
                name=name,
                waiting=_sum(_of_lane(lane, 3) for lane in lanes[name]),
                due=_sum(_of_lane(lane, 4) for lane in lanes[name]),
                late=_sum(_of_lane(lane, 5) for lane in lanes[name]),
                retrying=_part(retrying[name], all_retrying),
                running=running[name],
                parked=_part(parked[name], all_parked),
                oldest_due_at=oldest if oldest is not None and oldest <= now else None,
                next_run_at=oldest,
                paused_at=paused_at,
                paused_by=paused_by,
                pause_reason=pause_reason or None,
                workers=len(serving),
                places=sum(worker.concurrency for worker in serving),
            )
        )
    return found


def _group(dead: Iterable[Row]) -> list[DeadGroup]:
    """Group dead jobs by task, queue and error; the largest group first."""
    groups: defaultdict[tuple[str, str, str | None], list[Row]] = defaultdict(list)
    for row in dead:
        groups[row[1:4]].append(row)
    found = []
    for (task, queue, code), rows in groups.items():
        job_id, _, _, _, died_at, attempts, error, facts, flow = max(rows, key=lambda row: row[4])
        since = min(row[4] for row in rows)
        found.append(
            DeadGroup(
                task,
                queue,
                code,
                len(rows),
                since,
                died_at,
                job_id,
                attempts,
                error,
                facts,
                bool(flow),
            )
        )
    return sorted(found, key=lambda group: (-group.jobs, group.task, group.queue))


def _make_tasks(
    standing: Standing, alive: Sequence[WorkerInfo], completed: Mapping[str, int]
) -> Iterable[TaskStats]:
    due: Counter[str] = Counter(dict(standing.due_tasks))
    all_due = _sum(_of_lane(lane, 4) for lane in standing.lanes)
    is_all_due = all_due.precision == "exact" and all_due.value <= sum(due.values())
    running, retrying, parked = (
        _count_by(1, rows) for rows in (standing.running, standing.retrying, standing.parked)
    )
    dead: Counter[str] = Counter()
    for group in standing.dead:
        dead[group.task] += group.jobs
    known = {task for worker in alive for task in worker.tasks}
    done = {task for task in completed if task != ALL_TASKS}
    for name in sorted({*known, *done, *due, *running, *retrying, *parked, *dead}):
        yield TaskStats(
            name=name,
            due=Count(due[name], "exact" if is_all_due else "at_least"),
            running=running[name],
            retrying=_part(retrying[name], sum(retrying.values())),
            parked=_part(parked[name], sum(parked.values())),
            dead=Count(dead[name], "exact" if standing.dead_is_all else "at_least"),
            completed_last_hour=completed.get(name, 0),
            workers=sum(name in worker.tasks for worker in alive),
        )


def _of_dead(standing: Standing, groups: Iterable[DeadGroup]) -> Count:
    count = sum(group.jobs for group in groups)
    return Count(count, "exact" if standing.dead_is_all else "at_least")


def _of_lane(lane: Row, column: int) -> Count:
    """What waits, is due or is late in a lane; all of it, unless counting stopped before."""
    *_, is_capped = lane
    return Count(lane[column], "at_least" if is_capped and lane[column] == lane[3] else "exact")


def _count_by(column: int, rows: Iterable[Row]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row[column]] += row[2]
    return counts


def _sum(counts: Iterable[Count]) -> Count:
    given = list(counts)
    exact = all(count.precision == "exact" for count in given)
    return Count(sum(count.value for count in given), "exact" if exact else "at_least")


def _capped(count: int, most: int) -> Count:
    return Count(count, "exact" if count < most else "at_least")


def _part(count: int, all_counted: int) -> Count:
    return Count(count, "exact" if all_counted < MAX_EXAMINED else "at_least")


def _estimate(counted: int, about: int | None) -> Count:
    if counted < MAX_COUNTED:
        return Count(counted)
    if about is None or about <= counted:
        return Count(counted, "at_least")
    return Count(about, "about")
