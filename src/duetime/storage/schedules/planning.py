"""What workers and people both do to schedules: lock, plan on, pause, write the ledger.

Statements without I/O: a backend brings its SQL under the same names, each taking one JSON
document, and a `Dialect`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.reasons import Reason
from duetime.domain.schedules.plan import (
    PlannedTick,
    count_armed,
    count_paced,
    is_behind,
    next_run_at,
    plan_past_moments,
    plan_ticks,
)
from duetime.domain.schedules.schedule import (
    ENGINE_ACTOR,
    OpenRun,
    Schedule,
    TickStatus,
    paused_reason,
)
from duetime.errors import InvalidInput
from duetime.storage.schedules.rows import (
    MICROSECOND,
    pause_summary,
    read_schedule,
    schedule_document,
    tick_document,
)
from duetime.storage.store import Dialect, Row, Statement, Statements, in_parts, run_many

Step = Generator[Statement, list[Row], list[Row]]

CHANGED = Reason("schedule_changed")
PARTS = 6
"""How many parts of a long plan a person's change writes itself; the next repair continues."""


_TOGETHER = 250
"""How many schedules one statement plans."""


class Planning:
    """Every public method of its heirs is one transaction. Schedules are locked in the order of
    their ids."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.set_aside: dict[str, Reason] = {}
        """Schedules that were set aside, and why: the caller reports them."""
        self.unreadable: dict[str, str] = {}
        """Schedules that this process cannot read, and why: they are left to others."""

    def _lock(
        self, *, ids: Sequence[int] | set[int] = (), names: Sequence[str] = ()
    ) -> Generator[Statement, list[Row], dict[int, Schedule]]:
        """Lock schedules. One that cannot be read is set aside, and left out."""
        rows = yield from self._dialect.run(
            "schedule_lock", {"ids": sorted(ids), "names": list(names)}
        )
        found: dict[int, Schedule] = {}
        past: dict[int, tuple[Schedule, list[PlannedTick]]] = {}
        for row in rows:
            schedule = read_schedule(row, self._dialect.moment)
            if schedule.broken is not None and row[20] is None:
                yield from self._set_aside(schedule, schedule.broken)
            if schedule.unreadable is not None:
                self.unreadable[schedule.name] = schedule.unreadable
            if row[25] is None and schedule.readable and row[22] > 1 and row[15] is None:
                # Changed by plain SQL, or just resumed: what is armed may be out of date.
                yield from self._supersede([schedule], CHANGED)
                now = yield from self._dialect.now()
                schedule.planned_until = min(schedule.planned_until, now)
            if row[25] is None and schedule.readable and row[15] is None:
                now = yield from self._dialect.now()
                planned = plan_past_moments(schedule, now=now, new=row[22] == 1)
                if planned:
                    past[schedule.id] = (schedule, planned)
            found[schedule.id] = schedule
        if past:
            yield from self._write(past, {})
        return found

    def _set_aside(self, schedule: Schedule, why: Reason) -> Statements:
        """Stop a schedule that cannot be planned, with the reason; the others continue."""
        schedule.broken = self.set_aside[schedule.name] = why
        schedule.next_run_at = None
        reason = Reason.of("schedule_broken", why=why)
        yield from self._supersede([schedule], reason, due_too=True)
        yield from self._update(schedule)
        yield from self._audit(ENGINE_ACTOR, "schedule.set_aside", schedule, None, {"why": reason})

    def _open(
        self,
        schedules: Mapping[int, Schedule],
        known: dict[int, set[datetime]] | None = None,
    ) -> Generator[Statement, list[Row], dict[int, list[OpenRun]]]:
        """The open runs by tick. `known` takes the ticks beyond what is planned that have a row."""
        opened: dict[int, list[OpenRun]] = {schedule_id: [] for schedule_id in schedules}
        if schedules:
            wanted = [
                {"id": schedule.id, "after": None if known is None else schedule.planned_until}
                for schedule in schedules.values()
            ]
            rows = yield from self._dialect.run("schedule_open", wanted)
            moment = self._dialect.moment
            for row in rows:
                if row[7]:
                    opened[row[0]].append(
                        OpenRun(
                            row[0], moment(row[1]), moment(row[2]), TickStatus(row[3]),
                            TickStatus(row[4]), row[5], bool(row[6]),
                            None if row[8] is None else moment(row[8]),
                        )
                    )  # fmt: skip
                elif known is not None:
                    known.setdefault(row[0], set()).add(moment(row[1]))
        return opened

    def _paced(
        self, ticks: Mapping[int, datetime | None], schedules: Mapping[int, Schedule]
    ) -> Generator[Statement, list[Row], dict[int, datetime]]:
        """From when on a missed run may be caught up, after those of earlier ticks."""
        wanted = [
            {"schedule_id": schedule.id, "before": ticks[schedule.id]}
            for schedule in schedules.values()
            if schedule.policy.paced
        ]
        if not wanted:
            return {}
        rows = yield from self._dialect.run("schedule_paced", wanted)
        return {
            row[0]: self._dialect.moment(row[1]) + schedules[row[0]].policy.pace
            for row in rows
            if row[1] is not None
        }

    def _plan(self, schedules: Mapping[int, Schedule], *, parts: int = 1) -> Statements:
        """Write what follows the last planned ticks; return the schedules that lag behind.

        A long outage is planned in parts, some ticks at a time; the next repair continues.
        """
        schedules = {
            schedule.id: schedule
            for schedule in schedules.values()
            if schedule.paused_at is None and schedule.readable
        }
        for _ in range(parts):
            behind: dict[int, Schedule] = {}
            for part in in_parts(list(schedules.items()), _TOGETHER):
                behind |= yield from self._plan_part(dict(part))
            schedules = behind
        return schedules

    def _plan_missed(self, schedule: Schedule, reason: Reason) -> Statements:
        """Every tick up to now is skipped, for that reason; none is armed."""
        schedules = {schedule.id: schedule}
        while schedules:
            schedules = yield from self._plan_part(schedules, missed=reason)

    def _plan_part(
        self, schedules: Mapping[int, Schedule], *, missed: Reason | None = None
    ) -> Generator[Statement, list[Row], dict[int, Schedule]]:
        now = yield from self._dialect.now()
        known: dict[int, set[datetime]] = {}
        opened = yield from self._open(schedules, known)
        paced = yield from self._paced(dict.fromkeys(schedules), schedules)
        ticks: dict[int, tuple[Schedule, list[PlannedTick]]] = {}
        advanced: dict[int, tuple[Schedule, datetime | None]] = {}
        behind: dict[int, Schedule] = {}
        for schedule in schedules.values():
            runs = opened[schedule.id]
            try:
                plan = plan_ticks(
                    schedule,
                    now=now,
                    armed=count_armed(schedule, runs, now),
                    caught_up=count_paced(schedule, runs, now, paced.get(schedule.id)),
                    behind=is_behind(schedule, runs, now),
                    known=known.get(schedule.id, ()),
                    missed=missed,
                )
            except InvalidInput as error:
                # That some rules cannot be computed shows only later.
                yield from self._set_aside(
                    schedule, Reason.of("definition_unusable", text=str(error))
                )
                continue
            schedule.planned_until = plan.planned_until
            if plan.more and plan.planned_until <= now:
                behind[schedule.id] = schedule
            ticks[schedule.id] = (schedule, plan.ticks)
            advanced[schedule.id] = (schedule, next_run_at(runs, plan, now))
        yield from self._write(ticks, advanced)
        return behind

    def _write(
        self,
        ticks: Mapping[int, tuple[Schedule, Sequence[PlannedTick]]],
        advanced: Mapping[int, tuple[Schedule, datetime | None]],
    ) -> Step:
        """Write ticks with their jobs; return (schedule, tick, job) of the jobs."""
        return (
            yield from self._dialect.run(
                "schedule_write",
                {
                    "ticks": [
                        tick_document(schedule, tick)
                        for schedule, planned in ticks.values()
                        for tick in planned
                    ],
                    "schedules": [
                        {
                            "id": schedule.id,
                            "planned_until": schedule.planned_until,
                            "next_run_at": next_run_at,
                            "plain": schedule.policy.plain,
                            "at_once": schedule.policy.at_once,
                            "grace": schedule.policy.grace // MICROSECOND,
                            "enqueued": any(
                                tick.status is TickStatus.ARMED for tick in ticks[schedule.id][1]
                            ),
                        }
                        for schedule, next_run_at in advanced.values()
                    ],
                },
            )
        )

    def _pause(
        self, schedule: Schedule, actor: str, reason: str | None, until: datetime | None
    ) -> Statements:
        now = yield from self._dialect.now()
        before = pause_summary(schedule)
        if schedule.paused_at is None:
            # What was missed before the pause is judged without it.
            behind = yield from self._plan({schedule.id: schedule}, parts=PARTS)
            schedule.paused_at = now
            if not behind and schedule.readable:
                schedule.planned_until = now
        schedule.paused_by, schedule.pause_reason, schedule.paused_until = actor, reason, until
        schedule.next_run_at = None
        yield from self._supersede([schedule], paused_reason(schedule))
        yield from self._update(schedule)
        after = pause_summary(schedule)
        if reason is None:
            after |= {"why": paused_reason(schedule)}
        yield from self._audit(actor, "schedule.pause", schedule, before, after, reason)

    def _resume(self, schedule: Schedule, *, missed: bool, actor: str) -> Statements:
        if schedule.paused_at is None:
            return
        before = pause_summary(schedule)
        if not missed:
            yield from self._plan_missed(schedule, paused_reason(schedule))
        schedule.paused_at = schedule.paused_by = schedule.pause_reason = None
        schedule.paused_until = None
        schedule.failures = 0
        yield from self._update(schedule)
        yield from self._audit(actor, "schedule.resume", schedule, before, {"missed": missed})

    def _supersede(
        self, schedules: Sequence[Schedule], reason: Reason, *, due_too: bool = False
    ) -> Statements:
        """End what is armed ahead; `due_too`: and what is due already."""
        ids = [schedule.id for schedule in schedules]
        ended = 0
        for some in in_parts(ids, _TOGETHER):
            rows = yield from self._dialect.run(
                "schedule_supersede", {"ids": some, "reason": reason, "all": due_too}
            )
            ended += len(rows)
        return ended

    def _update(self, *schedules: Schedule) -> Statements:
        documents = []
        for schedule in schedules:
            document = schedule_document(schedule, schedule.planned_until)
            if not schedule.readable:
                # What cannot be read stays as it was written, for a person or another worker.
                document |= {"timetable": None, "policy": None, "args": None}
            document |= {
                field: getattr(schedule, field)
                for field in ("id", "next_run_at", "paused_at", "paused_by", "pause_reason",
                              "paused_until", "failures", "broken")
            }  # fmt: skip
            documents.append(document)
        yield from run_many(self._dialect, "schedule_update", documents)

    def _audit(
        self,
        actor: str,
        action: str,
        schedule: Schedule,
        before: Any,
        after: Any,
        reason: str | None = None,
    ) -> Statements:
        change = event(actor, action, schedule, before, after, reason)
        yield from self._dialect.run("audit_write", [change])


def event(
    actor: str, action: str, schedule: Schedule, before: Any, after: Any, reason: str | None = None
) -> dict[str, Any]:
    """What the audit records of a change."""
    return {
        "actor": actor,
        "action": action,
        "entity": f"schedule:{schedule.name}",
        "before": before and msgspec.to_builtins(before),
        "after": after and msgspec.to_builtins(after),
        "reason": reason,
    }
