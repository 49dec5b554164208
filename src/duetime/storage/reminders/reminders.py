"""What is done to scopes, subjects and reminders, as statements without I/O."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.change import Put
from duetime.domain.duration import format_time
from duetime.domain.keys import make_reminder_key
from duetime.domain.reasons import Reason, read_reason
from duetime.domain.reminders.arming import Armed, Level, arm, resolve_rules
from duetime.domain.reminders.explain_scope import ScopeChange
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
from duetime.domain.reminders.reminder import (
    REMIND_TASK,
    Reminder,
    ReminderStatus,
    Subject,
)
from duetime.domain.reminders.rule import Rule
from duetime.errors import InvalidInput
from duetime.storage.store import Dialect, Row, Statement, Statements, in_parts, run_many

_NEWEST = 2**63 - 1
_BATCH = 2000
"""How many subjects are armed at a time, by the Python path."""
MAX_LEVELS = 99
"""How many scopes are around a subject."""
_FEW = 500
"""How many subjects are armed again in the transaction that changes their scope. In SQL, too."""
_AGAIN = timedelta(milliseconds=100)
"""When to try again subjects whose recipients' time zones are being changed."""


class ScopeInfo(msgspec.Struct, frozen=True):
    """A scope: what it sets itself. None: it inherits."""

    ref: str
    parent: str | None
    rules: tuple[Rule, ...] | None
    locked: bool


class ReminderStatements:
    """Every method is one transaction. Subjects are locked in the order of their ids."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    # Scopes

    def put_scope(self, scope: ScopeInfo, *, actor: str) -> Statements:
        """Store it, and have every open subject below armed again: a few at once, many by workers.
        Return what that did."""
        yield from self._dialect.run("scope_own", {"ref": scope.ref})
        names = [scope.ref, *([scope.parent] if scope.parent else [])]
        if scope.parent is not None:
            yield from self._dialect.run("scope_queue", [scope.parent])
        known = yield from self._scopes(names)
        before = known.get(scope.ref)
        if scope.parent is not None:
            inside = 0
            if before is not None and before.parent != scope.parent:
                yield from self._dialect.run("scope_turn", {})
                known = yield from self._scopes(names)
                [(inside,)] = yield from self._dialect.run("scope_depth", {"ref": scope.ref})
            _check_parent(scope, known, inside)
        rules = None if scope.rules is None else [rule.to_json() for rule in scope.rules]
        document = {
            "ref": scope.ref, "parent": scope.parent, "rules": rules, "locked": scope.locked,
        }  # fmt: skip
        if before == scope:
            return Put("same", affected=0)
        yield from self._dialect.run("scope_put", [document])
        count = 0 if before is None else (yield from self._rearm_below(scope.ref))
        yield from self._audit(
            actor, "scope.put", f"scope:{scope.ref}", before and scope_document(before), document
        )
        return Put("added" if before is None else "changed", affected=count)

    def delete_scope(self, ref: str, *, actor: str) -> Statements:
        """Return whether it was there; raise `InvalidInput` if something is inside it."""
        yield from self._dialect.run("scope_own", {"ref": ref})
        known = yield from self._scopes([ref])
        if ref not in known:
            return False
        [(scopes, subjects)] = yield from self._dialect.run("scope_used", {"ref": ref})
        if scopes or subjects:
            raise InvalidInput(
                f"Inside the scope {ref!r} are {_count(scopes, 'scope')} and "
                f"{_count(subjects, 'subject')}. Put them "
                "elsewhere or delete them first. For no reminders, give it no rules: remind=[]."
            )
        yield from self._dialect.run("scope_delete", {"ref": ref})
        before = scope_document(known[ref])
        yield from self._audit(actor, "scope.delete", f"scope:{ref}", before, None)
        return True

    def scopes(self, *, after: str = "", limit: int | None = None) -> Statements:
        """Return scopes by reference, those after one of them. Reads only."""
        rows = yield from self._dialect.run("scope_list", {"after": after, "limit": limit})
        return [read_scope(row) for row in rows]

    def scope(self, ref: str) -> Statements:
        """Return the scope or None. Reads only."""
        rows = yield from self._dialect.run("scope_get", {"ref": ref})
        return read_scope(rows[0]) if rows else None

    # Subjects

    def put(
        self,
        subjects: Sequence[Subject],
        *,
        actor: str,
        as_of: Mapping[str, datetime] | None = None,
    ) -> Statements:
        """Store subjects and arm what follows; return `{ref: "added" | "changed" | "same"}`.

        `as_of`: when a subject (by reference) was changed, if that was not just now.
        """
        refs = [subject.ref for subject in subjects]
        yield from self._check_scopes(subjects)
        stored = {s.ref: s for s in (yield from self._lock(refs=refs))}
        fresh = [subject for subject in subjects if subject.ref not in stored]
        answer: dict[str, str] = {}
        if fresh:
            documents = [subject_document(s) for s in fresh]
            rows = yield from run_many(self._dialect, "subject_insert", documents)
            answer = {row[0]: "added" for row in rows}
            ids = {row[0]: row[1] for row in rows}
            left = []
            for subject in fresh:
                if subject.ref in ids and subject.repeats is None:
                    # Nobody else sees it yet: it is as it was given.
                    subject.id, subject.revision, subject.planned = ids[subject.ref], 1, None
                    stored[subject.ref] = subject
                else:
                    # Another transaction may have added it meanwhile: then it is changed by us.
                    left.append(subject.ref)
            for subject in (yield from self._lock(refs=left)) if left else []:
                stored[subject.ref] = subject
        # One that comes from another scope: its scope is not locked, and may not be any more.
        locked = {None, *(subject.scope for subject in subjects)}
        yield from self._catch_up(s for s in stored.values() if s.scope in locked)
        moved: list[Subject] = []
        changed: list[Subject] = []
        events: list[dict[str, Any]] = []
        for given in subjects:
            known = stored[given.ref]
            event = {"actor": actor, "action": "subject.put", "entity": f"subject:{given.ref}"}
            if given.repeats is not None:
                given.repeats = given.repeats.keeping(known.repeats)
            if given.ref in answer and (known is given or known.material() == given.material()):
                moved.append(known)
                events.append(event | {"after": subject_summary(known)})
                continue
            given.id, given.revision, given.planned = known.id, known.revision, known.planned
            if known.material() != given.material():
                given.revision += 1
                moved.append(given)
            elif known.data == given.data:
                answer.setdefault(given.ref, "same")
                continue
            answer[given.ref] = "changed"
            changed.append(given)
            events.append(
                event | {"before": subject_summary(known), "after": subject_summary(given)}
            )
        yield from self._update(changed)
        yield from run_many(self._dialect, "audit_write", events)
        since = {s.id: as_of[s.ref] for s in moved if s.ref in as_of} if as_of else None
        yield from self._rearm_stored(moved, None, as_of=since)
        return answer

    def close(self, ref: str, *, actor: str, reason: str | None = None, delete: bool) -> Statements:
        """Complete or delete a subject: nothing more is sent. Returns whether it is there."""
        for subject in (yield from self._lock(refs=[ref])):
            if subject.status != "open" and not delete:
                return True
            before = subject_summary(subject)
            what = "deleted" if delete else "completed"
            subject.status = "done"
            subject.revision += 1
            yield from self._update([subject])
            why = Reason.of(f"subject_{what}", text=reason or None)
            yield from self._rearm_stored([subject], why)
            if delete:
                yield from self._dialect.run("subject_delete", [subject.id])
            after = None if delete else subject_summary(subject)
            yield from self._audit(
                actor,
                "subject.delete" if delete else "subject.complete",
                f"subject:{ref}",
                before,
                after,
                reason=reason,
            )
            return True
        return False

    def _update(self, subjects: Sequence[Subject]) -> Statements:
        documents = [
            subject_document(subject) | {"id": subject.id, "revision": subject.revision}
            for subject in subjects
        ]
        yield from run_many(self._dialect, "subject_update", documents)

    def subjects(self, refs: Sequence[str]) -> Statements:
        rows = yield from self._dialect.run("subject_find", {"refs": list(refs)})
        return [self._subject(row) for row in rows]

    def list_subjects(
        self,
        *,
        scope: str | None,
        status: str | None,
        after: tuple[datetime | None, int] | None,
        limit: int,
    ) -> Statements:
        """Return subjects, the next due first, then those that are not due. Reads only.

        `after`: the due time and the id of the last one before.
        """
        due_at, last = after or (None, 0)
        document = {
            "scope": scope, "status": status, "due_at": due_at, "id": last, "limit": limit,
            "undue": after is not None and due_at is None,
        }  # fmt: skip
        rows = yield from self._dialect.run("subject_list", document)
        return [self._subject(row) for row in rows]

    def levels(self, subject: Subject) -> Statements:
        """The chain of rules, from the subject outwards."""
        scopes = yield from self._scopes([subject.scope] if subject.scope else [])
        return (yield from self._with_problems(levels_of(subject, scopes)))

    def levels_of_scope(self, ref: str) -> Statements:
        """The chain of rules, from the scope outwards; empty if there is no such scope."""
        scopes = yield from self._scopes([ref])
        return (yield from self._with_problems(_levels_from(ref, scopes)))

    def _with_problems(self, levels: list[Level]) -> Statements:
        """The same levels, with what of their rows cannot be used."""
        rows = yield from self._dialect.run("scope_problems", [level.name for level in levels])
        problems = {row[0]: read_reason(row[1]) for row in rows}
        return [level._replace(problem=problems.get(level.name)) for level in levels]

    def changes_of_scope(self, ref: str) -> Statements:
        """Return its changes, and those of scopes around it, that workers have yet to follow."""
        rows = yield from self._dialect.run("scope_progress", {"ref": ref})
        return [ScopeChange(row[0], self._dialect.moment(row[1]), row[2], row[3]) for row in rows]

    # Reminders

    def find(self, ids: Sequence[int]) -> Statements:
        """Return reminders by their ids, in the order of time."""
        rows = yield from self._dialect.run("reminder_get", {"ids": list(ids)})
        return [self._reminder(row) for row in rows]

    def newest(self, *, status: str | None, before_id: int | None, limit: int) -> Statements:
        """Return reminders, newest first. Reads only."""
        document = {"status": status, "before_id": before_id or _NEWEST, "limit": limit}
        rows = yield from self._dialect.run("reminder_newest", document)
        return [self._reminder(row) for row in rows]

    def armed(
        self, *, until: datetime | None, after: tuple[datetime, int] | None, limit: int
    ) -> Statements:
        """Return armed reminders, the next one first. Reads only."""
        time, last = after or (None, 0)
        document = {"until": until, "time": time, "id": last, "limit": limit}
        rows = yield from self._dialect.run("reminder_next", document)
        return [self._reminder(row) for row in rows]

    def about(
        self, subject: str, *, status: str | None, after: tuple[datetime, int] | None, limit: int
    ) -> Statements:
        """Return the reminders of a subject in the order of time. Reads only."""
        time, last = after or (None, 0)
        document = {"subject": subject, "status": status, "time": time, "id": last, "limit": limit}
        rows = yield from self._dialect.run("reminder_about", document)
        return [self._reminder(row) for row in rows]

    def find_unrecorded(self) -> Statements:
        """Return finished jobs whose reminders are still armed. Reads only."""
        return [row[0] for row in (yield from self._dialect.run("reminder_unrecorded", {}))]

    # Arming

    def request_rearm(self, at: datetime | None = None) -> Statements:
        """Have a worker re-arm subjects whose `rearm_at` is at most `at`; by default, now.

        In the transaction that sets it: then no mark is without its job.
        """
        now = yield from self._dialect.now()
        yield from self._dialect.run("rearm_ask", {"at": now if at is None else at})

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
                    if status == ReminderStatus.ARMED and (
                        place not in wanted or wanted[place][1].rule != rule
                    ):
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
            yield from run_many(self._dialect, "reminder_write", write)
            if recurring := [subject for subject in batch if subject.has_plan]:
                yield from self._record_plans(recurring, plans, now)
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
            and any(r.zone == "recipient" for r in resolve_rules(levels_of(subject, scopes)).rules)
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
        self, subjects: Sequence[Subject], plans: Mapping[int, Plan | None], now: datetime
    ) -> Statements:
        """Record how far occurrences are armed, and have a worker continue in time."""
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
        yield from self._dialect.run("subject_planned", documents)

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

    def _rearm_stored(
        self,
        subjects: Sequence[Subject],
        why: Reason | None,
        *,
        as_of: Mapping[int, datetime] | None = None,
    ) -> Statements:
        """`_rearm` of subjects that are locked and stored: in SQL where that can."""
        here = list(subjects)
        if self._dialect.arms and as_of is None:
            here = [subject for subject in subjects if subject.has_plan]
            there = [subject.id for subject in subjects if not subject.has_plan]
            if there:
                yield from self._dialect.run("rearm_these", {"ids": there, "why": why})
        if here:
            yield from self._rearm(here, why, as_of=as_of)

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

    def _check_scopes(self, subjects: Sequence[Subject]) -> Statements:
        names = sorted({subject.scope for subject in subjects if subject.scope})
        if names:
            yield from self._dialect.run("scope_queue", names)
        known = yield from self._scopes(names)
        for name in names:
            if name not in known:
                raise InvalidInput(
                    f"There is no scope {name!r}. Create it first with app.scopes.put()."
                )

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

    # Rows

    def _subject(self, row: Row) -> Subject:
        return Subject(
            id=row[0], ref=row[1], scope=row[2],
            due_at=None if row[3] is None else self._dialect.moment(row[3]), tz=row[4],
            status=row[5], rules=_rules(row[6]), data=msgspec.json.decode(row[7]),
            recipients=tuple(msgspec.json.decode(row[8])), revision=row[9],
            repeats=None if row[12] is None else Recurrence.from_json(row[12], row[4]),
            planned=None if row[13] is None
            else (self._dialect.moment(row[13]), self._dialect.moment(row[14])),
            # Only what is shown to people has it.
            problem=read_reason(row[15]) if len(row) > 15 else None,
            stale=bool(row[16]) if len(row) > 16 else False,
        )  # fmt: skip

    def _reminder(self, row: Row) -> Reminder:
        def maybe(value: Any) -> datetime | None:
            return None if value is None else self._dialect.moment(value)

        return Reminder(
            stale=bool(row[0]), id=row[1], subject=row[2], scope=row[3],
            due_at=self._dialect.moment(row[4]), rule=Rule.from_json(row[5]),
            time=self._dialect.moment(row[6]), recipient=row[7], run_at=maybe(row[8]),
            status=ReminderStatus(row[9]), reason=read_reason(row[10]), job_id=row[11], tz=row[12],
            data=msgspec.json.decode(row[13]), channel=row[14], external_id=row[15],
            delivery=row[16], ended_at=maybe(row[17]), snoozes=row[18],
            acknowledged_at=maybe(row[19]), acknowledged_by=row[20], first_key=row[21],
        )  # fmt: skip


def _wanted(
    subject: Subject,
    scopes: Mapping[str, ScopeInfo],
    now: datetime,
    planned: Plan | None,
    zones: Mapping[str, str],
) -> dict[tuple[Any, ...], tuple[str, Armed]]:
    """What should be there for a subject: (due, rule, time, recipient) → recipient and time."""
    rules = resolve_rules(levels_of(subject, scopes)).rules
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


def rules_that_hold(subject: Subject, scopes: Mapping[str, ScopeInfo]) -> tuple[Rule, ...]:
    """Its own, or those of a scope around it."""
    return resolve_rules(levels_of(subject, scopes)).rules


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def levels_of(subject: Subject, scopes: Mapping[str, ScopeInfo]) -> list[Level]:
    return [Level(subject.ref, subject.rules), *_levels_from(subject.scope, scopes)]


def _levels_from(ref: str | None, scopes: Mapping[str, ScopeInfo]) -> list[Level]:
    """A scope and those around it, from the inside out."""
    levels: list[Level] = []
    while ref is not None and ref in scopes and len(levels) < MAX_LEVELS:
        scope = scopes[ref]
        levels.append(Level(scope.ref, scope.rules, scope.locked))
        ref = scope.parent
    return levels


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


def reminder_document(
    installation: str, subject: Subject, due: datetime, recipient: str, armed: Armed
) -> dict[str, Any]:
    return {
        "subject_id": subject.id,
        "due_at": due,
        "rule": armed.rule.to_json(),
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


def _check_parent(scope: ScopeInfo, known: Mapping[str, ScopeInfo], inside: int) -> None:
    """`inside`: how many levels of scopes come with it."""
    if scope.parent not in known:
        raise InvalidInput(f"There is no scope {scope.parent!r}. Create the parent first.")
    ref: str | None = scope.parent
    depth = 1
    # Rows of tables that are written at the same time may be inside each other.
    while ref is not None and ref in known and depth <= MAX_LEVELS:
        if ref == scope.ref:
            raise InvalidInput(f"The scope {scope.ref!r} cannot be inside itself.")
        ref = known[ref].parent
        depth += 1
    if depth + inside > MAX_LEVELS:
        what = f", with {_count(inside, 'level')} inside it" if inside else ""
        raise InvalidInput(
            f"Scopes are at most {MAX_LEVELS} levels deep; {scope.ref!r} would be at level "
            f"{depth}{what}. Put it into a scope further out."
        )


def read_scope(row: Row) -> ScopeInfo:
    return ScopeInfo(row[0], row[1], _rules(row[2]), bool(row[3]))


def scope_document(scope: ScopeInfo) -> dict[str, Any]:
    rules = None if scope.rules is None else [rule.to_json() for rule in scope.rules]
    return {"ref": scope.ref, "parent": scope.parent, "rules": rules, "locked": scope.locked}


def _rules(text: str | None) -> tuple[Rule, ...] | None:
    if text is None:
        return None
    return tuple(Rule.from_json(value) for value in msgspec.json.decode(text))


def subject_document(subject: Subject) -> dict[str, Any]:
    rules = subject.rules
    return {
        "ref": subject.ref,
        "scope": subject.scope,
        "due_at": subject.due_at,
        "tz": subject.tz,
        "status": subject.status,
        "rules": None if rules is None else [rule.to_json() for rule in rules],
        "data": subject.data,
        "recipients": list(subject.recipients),
        "repeats": subject.repeats and subject.repeats.to_json(),
    }


def subject_summary(subject: Subject) -> dict[str, Any]:
    rules = subject.rules
    return {
        "scope": subject.scope,
        "due_at": subject.due_at and format_time(subject.due_at),
        "tz": subject.tz,
        "status": subject.status,
        "rules": None if rules is None else [rule.text for rule in rules],
        "recipients": list(subject.recipients),
    } | ({"repeats": subject.repeats.to_json()} if subject.repeats else {})
