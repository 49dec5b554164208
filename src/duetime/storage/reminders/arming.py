"""Arming: the reminders of subjects are made true again, as statements without I/O."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.keys import make_reminder_key
from duetime.domain.reasons import Reason, read_reason
from duetime.domain.reminders.arming import Armed, arm
from duetime.domain.reminders.plan_recurrence import (
    SHARED_FROM,
    Plan,
    falls_behind,
    plan_subject,
    planned_documents,
    rules_of,
    since_document,
)
from duetime.domain.reminders.recurrence import COMPLETED, SKIPPED, Recurrence
from duetime.domain.reminders.reminder import REMIND_TASK, ReminderStatus, Subject
from duetime.domain.reminders.rule import Rule
from duetime.storage.reminders.rows import (
    ScopeInfo,
    read_rules,
    read_scope,
    rules_that_hold,
)
from duetime.storage.store import Dialect, Row, Statement, Statements, in_parts, run_many

_BATCH = 2000
"""How many subjects are armed at a time, by the Python path."""
_FEW = 500
"""How many subjects are armed again in the transaction that changes their scope. In SQL, too."""
_AGAIN = timedelta(milliseconds=100)
"""When to try again subjects whose recipients' time zones are being changed."""


class ArmingStatements:
    """What every change of a scope or a subject ends with. Subjects are locked in the order of
    their ids."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    def request_rearm(self, at: datetime | None = None) -> Statements:
        """Have a worker re-arm subjects whose `rearm_at` is at most `at`; by default, now.

        In the transaction that sets it: then no mark is without its job.
        """
        now = yield from self._dialect.now()
        yield from self._dialect.run("rearm_ask", {"at": now if at is None else at})

    def _rearm_stored(
        self, subjects: Sequence[Subject], why: Reason | None, *, change: int | None = None
    ) -> Statements:
        """`_rearm` of subjects that are locked and stored: in SQL where that can.

        `change`: they are many, and were stored as waiting for it. Workers arm most of them.
        """
        here = list(subjects)
        if self._dialect.arms:
            here = [subject for subject in subjects if subject.has_plan]
            there = [subject.id for subject in subjects if not subject.has_plan]
            if change is not None:
                yield from self._dialect.run("change_end", {"ids": there, "change": change})
            elif there:
                yield from self._dialect.run("rearm_these", {"ids": there, "why": why})
        if here:
            yield from self._rearm(here, why)

    def _rearm_below(self, ref: str, *, as_of: datetime | None = None) -> Statements:
        """Have the open subjects below a scope armed again; return how many those are.

        `as_of`: when the change was made, if that was not just now.
        """
        if self._dialect.arms and as_of is None:
            [(count,)] = yield from self._dialect.run("scope_changed", {"ref": ref})
            return count
        [(count,)] = yield from self._dialect.run("scope_size", {"ref": ref})
        if count <= _FEW:
            rows = yield from self._dialect.run("subjects_below", {"ref": ref})
            ids = [row[0] for row in rows]
            since = None if as_of is None else dict.fromkeys(ids, as_of)
            yield from self._revise(ids, Reason("rules_changed"), as_of=since)
        else:
            now = yield from self._dialect.now()
            yield from self._dialect.run("subjects_mark", {"ref": ref, "at": as_of or now})
            yield from self.request_rearm()
        return count

    def _revise(
        self, ids: Sequence[int], why: Reason | None, *, as_of: Mapping[int, datetime] | None = None
    ) -> Statements:
        """Lock subjects and arm them under a revision of its own: what comes back is armed again,
        beside what it was."""
        subjects = yield from self._lock(ids=ids)
        yield from self._dialect.run("subject_revise", [subject.id for subject in subjects])
        for subject in subjects:
            subject.revision += 1
        yield from self._rearm(subjects, why, as_of=as_of)
        return len(subjects)

    def _rearm_late(
        self, subjects: Sequence[Subject]
    ) -> Generator[Statement, list[Row], Sequence[Subject]]:
        """Arm those of locked subjects that are stale and were to be reminded of since, before they
        are written: that is late, not past. Returns the subjects as they are then."""
        stale = [subject for subject in subjects if subject.stale]
        if not stale:
            return subjects
        if self._dialect.arms:
            yield from self._dialect.run("rearm_late", [subject.id for subject in stale])
        else:
            marks = yield from self._dialect.run("tracked_marks", [s.ref for s in stale])
            since = {row[0]: self._dialect.moment(row[1]) for row in marks}
            now = yield from self._dialect.now()
            scopes = yield from self._scopes(sorted({s.scope for s in stale if s.scope}))
            late = {s.id: since[s.id] for s in stale if _came_due(s, scopes, since[s.id], now)}
            if not late:
                return subjects
            yield from self._dialect.run("rearm_clear", list(late))
            yield from self._revise(list(late), None, as_of=late)
        return (yield from self._lock(ids=[subject.id for subject in subjects]))

    def _rearm(
        self,
        subjects: Sequence[Subject],
        why: Reason | None,
        *,
        as_of: Mapping[int, datetime] | None = None,
        catch_up: bool = False,
    ) -> Statements:
        """Make the armed reminders of locked subjects true again.

        `as_of`: when the change of a subject (by id) was made, if that was not just now. What
        came due since is late, not past. `catch_up`: nothing has changed; only occurrences that
        are not planned yet are armed.
        """
        now = yield from self._dialect.now()
        installation = yield from self._dialect.installation()
        for batch in in_parts(subjects, _BATCH):
            # A closed subject has no rules: its closing holds it, and must not wait for scopes.
            names = sorted({s.scope for s in batch if s.scope and s.status == "open"})
            scopes = yield from self._scopes(names)
            zones, sure = yield from self._zones(batch, scopes)
            rows = yield from self._reminders_of(batch, scopes, now)
            existing: dict[int, dict[tuple[Any, ...], tuple[int, str, Rule]]] = {}
            moment = self._dialect.moment
            for row in rows:
                place = (moment(row[2]), row[3], moment(row[4]), row[5])
                known_rule = Rule.from_json(row[8])
                existing.setdefault(row[1], {})[place] = (row[0], row[6], known_rule)
            write: list[dict[str, Any]] = []
            kept: list[dict[str, Any]] = []
            gone: dict[tuple[str, bytes], list[int]] = {}
            plans: dict[int, Plan | None] = {}
            for subject in batch:
                known = existing.get(subject.id, {})
                planned = None
                if subject.is_repeating:
                    rules = rules_that_hold(subject, scopes)
                    behind = (as_of or {}).get(subject.id)
                    planned = plan_subject(subject, rules, known, now, behind)
                    plans[subject.id] = planned
                when = (as_of or {}).get(subject.id, now)
                if catch_up and subject.planned is not None:
                    when = min(now, subject.planned[0])
                wanted = _wanted(subject, scopes, when, planned, zones)
                for place, (reminder_id, status, rule) in list(known.items()):
                    armed = wanted[place][1] if place in wanted else None
                    if status != ReminderStatus.ARMED or (armed and armed.rule == rule):
                        continue
                    if armed and place[2] < now:
                        kept.append(_other_options(reminder_id, place, rule, armed))
                        continue
                    ends_as, reason = _withdrawal(subject, place, why)
                    same = ends_as, msgspec.json.encode(reason)
                    gone.setdefault(same, []).append(reminder_id)
                    del known[place]
                write += [
                    reminder_document(installation, subject, place[0], recipient, armed)
                    for place, (recipient, armed) in wanted.items()
                    if place not in known
                    and not _comes_later(subject, recipient, armed.rule)
                    # Of occurrences that were planned before, only what is still to come.
                    and (
                        planned is None
                        or place[0] >= planned.fresh_from
                        or (armed.time >= when and not catch_up)
                    )
                ]
            for (ends_as, encoded), ids in gone.items():
                document = {"ids": ids, "status": ends_as, "reason": msgspec.Raw(encoded)}
                yield from self._dialect.run("reminder_withdraw", document)
            yield from run_many(self._dialect, "reminder_options", kept)
            yield from run_many(self._dialect, "reminder_write", write)
            if recurring := [subject for subject in batch if subject.has_plan]:
                yield from self._record_plans(recurring, plans, now, catch_up=catch_up)
            if not sure:
                again = now + _AGAIN
                ids = [subject.id for subject in batch]
                yield from self._dialect.run("subject_mark", {"ids": ids, "at": again})
                yield from self.request_rearm(again)

    def _zones(
        self, subjects: Sequence[Subject], scopes: Mapping[str, ScopeInfo]
    ) -> Generator[Statement, list[Row], tuple[dict[str, str], bool]]:
        """The clocks of the recipients, where rules follow those, and whether they stay so.

        A transaction that changes a clock waits for this one, and re-arms what it arms. If it came
        first, this one does not wait, since that may wait for our subjects: a worker arms them
        again afterwards.
        """
        refs = {
            ref
            for subject in subjects
            if subject.status == "open"
            and any(r.zone == "recipient" for r in rules_that_hold(subject, scopes))
            for ref in subject.recipients
        }
        if not refs:
            return {}, True
        locked = yield from self._dialect.run("recipient_share", sorted(refs))
        rows = yield from self._dialect.run("recipient_zones", sorted(refs))
        return {row[0]: row[1] for row in rows}, all(row[0] for row in locked)

    def _reminders_of(
        self, subjects: Sequence[Subject], scopes: Mapping[str, ScopeInfo], now: datetime
    ) -> Generator[Statement, list[Row], list[Row]]:
        """What became of the reminders of subjects, as far as it matters now."""
        repeats = [s for s in subjects if s.is_repeating]
        once = [s.id for s in subjects if not s.is_repeating]
        rows = (yield from self._dialect.run("reminder_of", once)) if once else []
        if repeats:
            wanted = [since_document(s, rules_that_hold(s, scopes), now) for s in repeats]
            rows = [*rows, *(yield from self._dialect.run("reminder_since", wanted))]
        return rows

    def _record_plans(
        self,
        subjects: Sequence[Subject],
        plans: Mapping[int, Plan | None],
        now: datetime,
        *,
        catch_up: bool,
    ) -> Statements:
        """Record how far occurrences are armed, and have a worker continue in time.

        `catch_up`: what is marked stays so. A change of its scope may have marked it.
        """
        documents = planned_documents(subjects, plans)
        if not documents:
            return
        wanted = {one["rearm_at"]: one["id"] for one in documents if one["rearm_at"] is not None}
        for at, subject_id in sorted(wanted.items()):
            if at >= now + SHARED_FROM and (
                yield from self._dialect.run("rearm_marked", {"at": at, "id": subject_id})
            ):
                continue
            yield from self.request_rearm(at)
        planned = [one | {"keep": catch_up} for one in documents]
        yield from self._dialect.run("subject_planned", planned)

    def _catch_up(self, subjects: Iterable[Subject]) -> Statements:
        """Arm what became due, while no worker went on with it, before anything is changed: it is
        late, not past. The scopes of the subjects are locked."""
        again = [subject for subject in subjects if subject.is_repeating and subject.planned]
        if not again:
            return
        now = yield from self._dialect.now()
        scopes = yield from self._scopes(sorted({s.scope for s in again if s.scope}))
        behind = [s for s in again if falls_behind(s, rules_that_hold(s, scopes), now)]
        if behind:
            yield from self._rearm(behind, None, catch_up=True)

    def _scopes(self, refs: Sequence[str]) -> Generator[Statement, list[Row], dict[str, ScopeInfo]]:
        if not refs:
            return {}
        rows = yield from self._dialect.run("scope_lock", list(refs))
        return {row[0]: read_scope(row) for row in rows}

    def _lock(
        self, *, ids: Iterable[int] = (), refs: Iterable[str] = ()
    ) -> Generator[Statement, list[Row], list[Subject]]:
        rows = yield from self._dialect.run("subject_lock", {"ids": list(ids), "refs": list(refs)})
        return [self._subject(row) for row in rows]

    def _audit(
        self,
        actor: str,
        action: str,
        entity: str,
        before: Any,
        after: Any,
        *,
        reason: str | None = None,
    ) -> Statements:
        yield from self._dialect.run(
            "audit_write",
            [{"actor": actor, "action": action, "entity": entity, "before": before,
              "after": after, "reason": reason}],
        )  # fmt: skip

    def _subject(self, row: Row) -> Subject:
        return Subject(
            id=row[0], ref=row[1], scope=row[2],
            due_at=None if row[3] is None else self._dialect.moment(row[3]), tz=row[4],
            status=row[5], rules=read_rules(row[6]), data=msgspec.json.decode(row[7]),
            recipients=tuple(msgspec.json.decode(row[8])), revision=row[9],
            repeats=None if row[12] is None else Recurrence.from_json(row[12], row[4]),
            planned=None if row[13] is None
            else (self._dialect.moment(row[13]), self._dialect.moment(row[14])),
            # Only what is shown to people has it.
            problem=read_reason(row[15]) if len(row) > 15 else None,
            stale=bool(row[16]) if len(row) > 16 else False,
        )  # fmt: skip


def reminder_document(
    installation: str, subject: Subject, due: datetime, recipient: str, armed: Armed
) -> dict[str, Any]:
    return {
        "subject_id": subject.id,
        "due_at": due,
        "rule": armed.rule.encoded,
        "time": armed.time,
        "recipient": recipient,
        "revision": subject.revision,
        "run_at": armed.run_at,
        "status": armed.status,
        "reason": armed.reason,
        "key": make_reminder_key(
            installation, subject.ref, due, armed.rule.id, armed.time, recipient
        ),
        "task": REMIND_TASK,
        "expires_at": armed.expires_at,
    }


def _other_options(
    reminder_id: int, place: tuple[Any, ...], before: Rule, armed: Armed
) -> dict[str, Any]:
    """Its time has passed and it waits, for quiet hours, a channel or a snooze: it stays, since
    armed anew it would be past."""
    return {
        "id": reminder_id,
        "rule": armed.rule.encoded,
        "expired_at": before.expires_at(place[2], place[0]),
        "expires_at": armed.expires_at,
    }


def _wanted(
    subject: Subject,
    scopes: Mapping[str, ScopeInfo],
    now: datetime,
    planned: Plan | None,
    zones: Mapping[str, str],
) -> dict[tuple[Any, ...], tuple[str, Armed]]:
    """What should be there for a subject: (due, rule, time, recipient) → recipient and time."""
    rules = rules_that_hold(subject, scopes)
    found: dict[tuple[Any, ...], tuple[str, Armed]] = {}
    by_zone: dict[str | None, list[str]] = {}
    for recipient in subject.recipients or ("",):
        by_zone.setdefault(zones.get(recipient), []).append(recipient)
    for due, held in _due_times(subject, rules, planned):
        for zone, recipients in by_zone.items():
            for armed in arm(held, due, subject.tz, now, recipient_tz=zone):
                for recipient in recipients:
                    place = (due, armed.rule.id, armed.time, recipient)
                    found[place] = (recipient, armed)
    return found


def _came_due(
    subject: Subject, scopes: Mapping[str, ScopeInfo], since: datetime, now: datetime
) -> bool:
    """Whether it was to be reminded of in between. True if that depends on its recipients."""
    if subject.due_at is None:
        return False
    rules = rules_that_hold(subject, scopes)
    return any(rule.zone == "recipient" for rule in rules) or any(
        since <= armed.time <= now for armed in arm(rules, subject.due_at, subject.tz, since)
    )


def _due_times(
    subject: Subject, rules: Sequence[Rule], planned: Plan | None
) -> list[tuple[datetime, Sequence[Rule]]]:
    """When a subject is due, each time with the rules that hold then."""
    if subject.status != "open":
        return []
    if subject.repeats is None:
        return [] if subject.due_at is None else [(subject.due_at, rules)]
    found = planned.occurrences if planned else []
    return [(one.due, rules_of(subject.repeats, rules, one.due)) for one in found]


def _comes_later(subject: Subject, recipient: str, rule: Rule) -> bool:
    """Whether a recipient is reminded only if the ones before do not acknowledge."""
    first = subject.recipients[:1] or ("",)
    return rule.escalate is not None and recipient not in first


def _withdrawal(subject: Subject, place: tuple[Any, ...], why: Reason | None) -> tuple[str, Reason]:
    """The status and the reason of a reminder that is no longer true."""
    if subject.status != "open":
        return ReminderStatus.CANCELLED, why or Reason("subject_completed")
    if subject.repeats is not None and not subject.repeats.is_due(place[0]):
        reason = why or subject.repeats.why_not(place[0])
        ended = reason in (SKIPPED, COMPLETED)
        return ReminderStatus.CANCELLED if ended else ReminderStatus.SUPERSEDED, reason
    if subject.due_at is None and subject.repeats is None:
        return ReminderStatus.SUPERSEDED, Reason("subject_without_due")
    if subject.due_at is not None and subject.due_at != place[0]:
        return ReminderStatus.SUPERSEDED, Reason.of("subject_moved", to=subject.due_at)
    if place[3] and place[3] not in subject.recipients:
        return ReminderStatus.SUPERSEDED, Reason("recipient_removed")
    return ReminderStatus.SUPERSEDED, why or Reason("rule_removed")
