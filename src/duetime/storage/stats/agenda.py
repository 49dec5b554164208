"""What comes next across schedules, reminders, jobs and flows, by a few reads of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

import msgspec

from duetime.domain.checks import RUN_KEYS
from duetime.domain.reminders.digest import DIGEST_TASK
from duetime.domain.reminders.recipient import Recipient
from duetime.domain.reminders.reminder import REARM_TASK, REMIND_TASK
from duetime.domain.reminders.rule import Rule
from duetime.domain.schedules.timetable import Timetable
from duetime.domain.stats.agenda import (
    AFTER_ALL,
    AgendaItem,
    EndedReminder,
    Position,
    RecipientWeek,
    position_of,
    quiet_spans,
    ticks_of,
)
from duetime.errors import InvalidInput
from duetime.storage.schedules.rows import read_schedule
from duetime.storage.store import Dialect, Row, Statements

ORDER = "agenda"
_MAX_SCHEDULES = 500
_MAX_OF_LANE = 100
_MAX_LANES = 200
_MAX_OF_WEEK = 500
_ROUNDS = 5
"""A page may be empty, if all that was read belongs to reminders or ticks: so often it goes on."""
_NEVER = 8000
"""A run that waits for something without a time is due in a year after this."""
_LAST_ID = 2**63 - 1
_NAME, _NEXT_RUN = 1, 12
"""Columns of a schedule."""
_DEFINITION = (4, 9, 10)
"""Those that decide whether it can be read, and when it ticks. Many schedules have the same."""
_OURS = {REMIND_TASK, DIGEST_TASK, REARM_TASK}


class ReadAgenda:
    """Statements that read what comes next."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def armed_times(self, until: datetime, limit: int) -> Statements:
        """Return when the next reminders are due, in order."""
        rows = yield from self._dialect.run("armed_times", {"until": until, "limit": limit})
        return [self._dialect.moment(row[0]) for row in rows]

    def agenda(
        self, since: datetime, until: datetime | None, after: Position | None, limit: int
    ) -> Statements:
        """Return items in order, and the position after which to continue; None: nowhere."""
        position: Position = after or (since, AFTER_ALL, 0, "")
        now = yield from self._dialect.now()
        if after is None and since <= now and limit < _MAX_SCHEDULES:
            # Mostly, those that run next are enough.
            few = yield from self._next_runs(limit + 1)
            items, more = yield from self._page(few, position, until, limit)
            if len(few) <= limit or (len(items) == limit and items[-1].at < few[-1][0]):
                return items, more
        schedules = yield from self._next_runs(_MAX_SCHEDULES)
        for _ in range(_ROUNDS):
            items, more = yield from self._page(schedules, position, until, limit)
            if items or more is None:
                break
            position = more
        return items, more

    def _next_runs(self, most: int) -> Statements:
        """Return when schedules run next, their names, and how to read the timetable of each."""
        rows = yield from self._dialect.run("agenda_schedules", {"most": most})
        moment = self._dialect.moment
        known: dict[tuple[str, ...], Timetable | None] = {}

        def read(row: Row) -> Timetable | None:
            texts = tuple(row[column] for column in _DEFINITION)
            if texts not in known:
                schedule = read_schedule(row, moment)
                known[texts] = schedule.timetable if schedule.readable else None
            return known[texts]

        return [
            (moment(row[_NEXT_RUN]), row[_NAME], partial(read, row))
            for row in rows
            if row[_NEXT_RUN] is not None
        ]

    def schedules(self) -> Statements:
        """Return the schedules that run next, and whether these are all."""
        given = {"most": _MAX_SCHEDULES + 1}
        rows = yield from self._dialect.run("agenda_schedules", given)
        found = [read_schedule(row, self._dialect.moment) for row in rows[:_MAX_SCHEDULES]]
        return found, len(rows) <= _MAX_SCHEDULES

    def _page(
        self,
        schedules: Sequence[tuple[datetime, str, Callable[[], Timetable | None]]],
        after: Position,
        until: datetime | None,
        limit: int,
    ) -> Statements:
        reminders, end_of_reminders = yield from self._reminders(after, until, limit)
        jobs, end_of_jobs = yield from self._jobs(after, until)
        ends = [end for end in (end_of_reminders, end_of_jobs) if end is not None]
        coming = ticks_of(schedules, after[0], until)
        ticks = list(islice((one for one in coming if position_of(one) > after), limit + 1))
        items = sorted([*ticks, *reminders, *jobs], key=position_of)
        if ends:
            # Beyond where a read stopped, something may be missing.
            items = [item for item in items if position_of(item) <= min(ends)]
        if len(items) > limit:
            return items[:limit], position_of(items[limit - 1])
        return items, min(ends) if ends else None

    def _reminders(self, after: Position, until: datetime | None, limit: int) -> Statements:
        at, rank, last, _ = after
        rows = yield from self._dialect.run(
            "agenda_reminders",
            {
                "at": at,
                "id": {0: 0, 1: last}.get(rank, _LAST_ID),
                "until": until,
                "most": limit + 1,
            },
        )
        items = [self._reminder(row) for row in rows]
        return items, position_of(items[-1]) if len(rows) > limit else None

    def _jobs(self, after: Position, until: datetime | None) -> Statements:
        at, rank, last, _ = after
        lanes = yield from self._dialect.run("stats_lane_names", {"most": _MAX_LANES})
        if not lanes:
            return [], None
        rows = yield from self._dialect.run(
            "agenda_jobs",
            {
                "lanes": lanes,
                "at": at,
                "id": {2: last, AFTER_ALL: _LAST_ID}.get(rank, 0),
                "until": until,
                "most": _MAX_OF_LANE,
            },
        )
        full: dict[tuple[str, int], list[AgendaItem]] = {}
        items: list[AgendaItem] = []
        for queue, priority, run_at, job_id, task, key, flow in rows:
            item = AgendaItem(
                at=self._dialect.moment(run_at),
                kind="flow" if flow else "job",
                name=task,
                detail=queue,
                id=job_id,
                job_id=job_id,
            )
            full.setdefault((queue, priority), []).append(item)
            is_run = key is not None and key.startswith(RUN_KEYS)
            if not is_run and task not in _OURS and item.at.year <= _NEVER:
                items.append(item)
        ends = [position_of(lane[-1]) for lane in full.values() if len(lane) >= _MAX_OF_LANE]
        return items, min(ends, default=None)

    def week(self, recipient: Recipient, tz: str, since: datetime, days: int) -> Statements:
        """Return the `RecipientWeek` from a time on."""
        until = since + timedelta(days=days)
        given = {
            "recipient": recipient.ref,
            "since": since,
            "until": until,
            "most": _MAX_OF_WEEK + 1,
        }
        rows = yield from self._dialect.run("agenda_of_recipient", given)
        ended = yield from self._dialect.run("ended_of_recipient", given)
        quiet = recipient.quiet_hours(tz)
        items = sorted((self._reminder(row) for row in rows), key=position_of)
        return RecipientWeek(
            recipient=recipient.ref,
            tz=tz,
            since=since,
            until=until,
            quiet=recipient.quiet,
            quiet_spans=() if quiet is None else tuple(quiet_spans(quiet, since, until)),
            reminders=tuple(items[:_MAX_OF_WEEK]),
            ended=tuple(self._ended(row) for row in ended[:_MAX_OF_WEEK]),
            complete=max(len(items), len(ended)) <= _MAX_OF_WEEK,
        )

    def _reminder(self, row: Row) -> AgendaItem:
        reminder, run_at, subject, rule, rule_id, recipient, job_id = row
        return AgendaItem(
            at=self._dialect.moment(run_at),
            kind="reminder",
            name=subject,
            detail=_describe_rule(rule, rule_id),
            id=reminder,
            recipient=recipient or None,
            job_id=job_id,
        )

    def _ended(self, row: Row) -> EndedReminder:
        reminder, at, subject, rule, rule_id, status = row
        return EndedReminder(
            id=reminder,
            at=self._dialect.moment(at),
            subject=subject,
            rule=_describe_rule(rule, rule_id),
            status=status,
        )


def _describe_rule(text: str, rule_id: str) -> str:
    try:
        return Rule.from_json(msgspec.json.decode(text)).text
    except (InvalidInput, msgspec.DecodeError):
        return rule_id
