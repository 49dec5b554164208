"""What is done to scopes, subjects and reminders, as statements without I/O."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.arming import Armed, Level, arm, resolve_rules
from duetime.domain.reminder import (
    REMIND_TASK,
    Reminder,
    ReminderStatus,
    Subject,
    reminder_key,
)
from duetime.domain.rule import Rule, say_moment
from duetime.errors import InvalidInput
from duetime.storage.store import Dialect, Row, Statement, Statements

_BATCH = 2000


class ScopeInfo(msgspec.Struct, frozen=True):
    """A scope: what it says itself. None: it inherits."""

    ref: str
    parent: str | None
    rules: tuple[Rule, ...] | None
    locked: bool


class ReminderStatements:
    """Every method is one transaction. Subjects are locked in the order of their ids."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    # Scopes

    def put_scope(self, scope: ScopeInfo, *, actor: str) -> Statements:
        """Store it, and re-arm every open subject below; return how many those are."""
        yield from self._dialect.run("scope_turn", {})
        yield from self._dialect.run("scope_own", {"ref": scope.ref})
        known = yield from self._scopes([scope.ref, *([scope.parent] if scope.parent else [])])
        if scope.parent is not None:
            _check_parent(scope, known)
        before = known.get(scope.ref)
        rules = None if scope.rules is None else [rule.to_json() for rule in scope.rules]
        document = {
            "ref": scope.ref, "parent": scope.parent, "rules": rules, "locked": scope.locked,
        }  # fmt: skip
        yield from self._dialect.run("scope_put", [document])
        count = 0
        if before != scope:
            after = 0
            while True:
                rows = yield from self._dialect.run(
                    "subjects_below", {"ref": scope.ref, "after": after}
                )
                if not rows:
                    break
                ids = [row[0] for row in rows]
                subjects = yield from self._lock(ids=ids)
                # A revision of its own: what comes back is armed again, beside what it was.
                yield from self._dialect.run("subject_revise", [s.id for s in subjects])
                for subject in subjects:
                    subject.revision += 1
                yield from self._rearm(subjects, "the rules changed")
                count += len(ids)
                after = ids[-1]
            yield from self._audit(
                actor, "scope.put", f"scope:{scope.ref}", before and _scope_json(before), document
            )
        return count

    def scopes(self) -> Statements:
        rows = yield from self._dialect.run("scope_find", {})
        return [_scope(row) for row in rows]

    # Subjects

    def put(self, subjects: Sequence[Subject], *, actor: str) -> Statements:
        """Store subjects and arm what follows; return `{ref: "added" | "changed" | "same"}`."""
        refs = [subject.ref for subject in subjects]
        yield from self._check_scopes(subjects)
        stored = {s.ref: s for s in (yield from self._lock(refs=refs))}
        fresh = [subject for subject in subjects if subject.ref not in stored]
        answer: dict[str, str] = {}
        if fresh:
            rows = yield from self._dialect.run("subject_insert", [_document(s) for s in fresh])
            # Another transaction may have added some meanwhile: those are changed by us.
            answer = {row[0]: "added" for row in rows}
            for subject in (yield from self._lock(refs=[s.ref for s in fresh])):
                stored[subject.ref] = subject
        moved: list[Subject] = []
        for given in subjects:
            known = stored[given.ref]
            if given.ref in answer and known.material() == given.material():
                moved.append(known)
                yield from self._audit(
                    actor, "subject.put", f"subject:{given.ref}", None, _summary(known)
                )
                continue
            given.id, given.revision = known.id, known.revision
            if known.material() != given.material():
                given.revision += 1
                moved.append(given)
            elif known.data == given.data:
                answer.setdefault(given.ref, "same")
                continue
            answer[given.ref] = "changed"
            yield from self._dialect.run(
                "subject_update", [_document(given) | {"id": given.id, "revision": given.revision}]
            )
            yield from self._audit(
                actor, "subject.put", f"subject:{given.ref}", _summary(known), _summary(given)
            )
        yield from self._rearm(moved, None)
        return answer

    def close(self, ref: str, *, actor: str, delete: bool) -> Statements:
        """Complete or delete a subject: nothing more is sent. Returns whether it is there."""
        for subject in (yield from self._lock(refs=[ref])):
            if subject.status != "open" and not delete:
                return True
            before = _summary(subject)
            what = "deleted" if delete else "completed"
            subject.status = "done"
            subject.revision += 1
            yield from self._rearm([subject], f"the subject was {what}")
            if delete:
                yield from self._dialect.run("subject_delete", [subject.id])
            else:
                yield from self._dialect.run(
                    "subject_update",
                    [_document(subject) | {"id": subject.id, "revision": subject.revision}],
                )
            after = None if delete else _summary(subject)
            yield from self._audit(actor, f"subject.{what}", f"subject:{ref}", before, after)
            return True
        return False

    def subjects(self, refs: Sequence[str] | None) -> Statements:
        given = None if refs is None else list(refs)
        rows = yield from self._dialect.run("subject_find", {"refs": given})
        return [self._subject(row) for row in rows]

    def levels(self, subject: Subject) -> Statements:
        """The chain of rules, from the subject outwards."""
        scopes = yield from self._scopes([subject.scope] if subject.scope else [])
        return _chain(subject, scopes)

    # Reminders

    def find(
        self,
        *,
        ids: Sequence[int] | None = None,
        subject: str | None = None,
        status: str | None = None,
        until: datetime | None = None,
    ) -> Statements:
        """Return reminders, earliest first."""
        name = "reminder_get" if ids else "reminder_find" if subject is None else "reminder_about"
        rows = yield from self._dialect.run(
            name,
            {"ids": ids and list(ids), "subject": subject, "status": status, "until": until},
        )
        return [self._reminder(row) for row in rows]

    def sent(
        self, reminder: Reminder, *, channel: str, external_id: str | None, worker: str
    ) -> Statements:
        """Record that it was handed over, with the audit event."""
        yield from self._dialect.run(
            "reminder_sent",
            {
                "id": reminder.id,
                "channel": channel,
                "key": reminder.key,
                "status": "sent",
                "external_id": external_id,
            },
        )
        after = {"reminder": reminder.id, "rule": reminder.rule.text, "channel": channel,
                 "recipient": reminder.recipient, "external_id": external_id}  # fmt: skip
        yield from self._audit(worker, "reminder.sent", f"subject:{reminder.subject}", None, after)

    def settle(self, jobs: Sequence[int]) -> Statements:
        """Record how the jobs of reminders ended that were not sent."""
        return len((yield from self._dialect.run("reminder_settle", list(jobs))))

    def unsettled(self) -> Statements:
        """Return jobs that ended, and whose reminders do not say so. Reads only."""
        return [row[0] for row in (yield from self._dialect.run("reminder_unsettled", {}))]

    def receipt(self, external_id: str, status: str) -> Statements:
        """Record what the provider told later; return how many deliveries that were."""
        rows = yield from self._dialect.run(
            "delivery_receipt", {"external_id": external_id, "status": status}
        )
        return len(rows)

    # Arming

    def _rearm(self, subjects: Sequence[Subject], why: str | None) -> Statements:
        """Make the armed reminders of locked subjects true again."""
        now = yield from self._dialect.now()
        for start in range(0, len(subjects), _BATCH):
            batch = subjects[start : start + _BATCH]
            # A closed subject has no rules: its closing holds it, and must not wait for scopes.
            names = sorted({s.scope for s in batch if s.scope and s.status == "open"})
            scopes = yield from self._scopes(names)
            rows = yield from self._dialect.run("reminder_of", [subject.id for subject in batch])
            existing: dict[int, dict[tuple[Any, ...], tuple[int, str, Rule]]] = {}
            moment = self._dialect.moment
            for row in rows:
                place = (moment(row[2]), row[3], moment(row[4]), row[5])
                known_rule = Rule.from_json(row[8])
                existing.setdefault(row[1], {})[place] = (row[0], row[6], known_rule)
            write: list[dict[str, Any]] = []
            gone: dict[tuple[str, str], list[int]] = {}
            for subject in batch:
                wanted = _wanted(subject, scopes, now)
                known = existing.get(subject.id, {})
                for place, (reminder_id, status, rule) in list(known.items()):
                    if status == ReminderStatus.ARMED and (
                        place not in wanted or wanted[place][1].rule != rule
                    ):
                        gone.setdefault(_withdrawal(subject, place, why), []).append(reminder_id)
                        del known[place]
                write += [
                    _reminder_document(subject, recipient, armed)
                    for place, (recipient, armed) in wanted.items()
                    if place not in known
                ]
            for (status, reason), ids in gone.items():
                yield from self._dialect.run(
                    "reminder_withdraw", {"ids": ids, "status": status, "reason": reason}
                )
            if write:
                yield from self._dialect.run("reminder_write", write)

    def _check_scopes(self, subjects: Sequence[Subject]) -> Statements:
        names = sorted({subject.scope for subject in subjects if subject.scope})
        if names:
            yield from self._dialect.run("scope_queue", names)
        known = yield from self._scopes(names)
        for name in names:
            if name not in known:
                raise InvalidInput(f"There is no scope {name!r}. Put it first: app.scopes.put.")

    def _scopes(self, refs: Sequence[str]) -> Generator[Statement, list[Row], dict[str, ScopeInfo]]:
        if not refs:
            return {}
        rows = yield from self._dialect.run("scope_lock", list(refs))
        return {row[0]: _scope(row) for row in rows}

    def _lock(
        self, *, ids: Iterable[int] = (), refs: Iterable[str] = ()
    ) -> Generator[Statement, list[Row], list[Subject]]:
        rows = yield from self._dialect.run("subject_lock", {"ids": list(ids), "refs": list(refs)})
        return [self._subject(row) for row in rows]

    def _audit(self, actor: str, action: str, entity: str, before: Any, after: Any) -> Statements:
        yield from self._dialect.run(
            "audit_write",
            [{"actor": actor, "action": action, "entity": entity, "before": before,
              "after": after, "reason": None}],
        )  # fmt: skip

    # Rows

    def _subject(self, row: Row) -> Subject:
        return Subject(
            id=row[0], ref=row[1], scope=row[2],
            due_at=None if row[3] is None else self._dialect.moment(row[3]), tz=row[4],
            status=row[5], rules=_rules(row[6]), data=msgspec.json.decode(row[7]),
            recipients=tuple(msgspec.json.decode(row[8])), revision=row[9],
        )  # fmt: skip

    def _reminder(self, row: Row) -> Reminder:
        def maybe(value: Any) -> datetime | None:
            return None if value is None else self._dialect.moment(value)

        return Reminder(
            id=row[0], subject=row[1], scope=row[2], due_at=self._dialect.moment(row[3]),
            rule=Rule.from_json(row[4]), time=self._dialect.moment(row[5]), recipient=row[6],
            run_at=maybe(row[7]), status=ReminderStatus(row[8]), reason=row[9], job_id=row[10],
            tz=row[11], data=msgspec.json.decode(row[13]), channel=row[17], external_id=row[18],
            delivery=row[19], ended_at=maybe(row[20]),
        )  # fmt: skip


def _wanted(
    subject: Subject, scopes: Mapping[str, ScopeInfo], now: datetime
) -> dict[tuple[Any, ...], tuple[str, Armed]]:
    """What should be there for a subject: (due, rule, time, recipient) → recipient and time."""
    if subject.due_at is None or subject.status != "open":
        return {}
    rules = resolve_rules(_chain(subject, scopes)).rules
    found: dict[tuple[Any, ...], tuple[str, Armed]] = {}
    for armed in arm(rules, subject.due_at, subject.tz, now):
        for recipient in subject.recipients or ("",):
            place = (subject.due_at, armed.rule.id, armed.time, recipient)
            found[place] = (recipient, armed)
    return found


def _chain(subject: Subject, scopes: Mapping[str, ScopeInfo]) -> list[Level]:
    levels = [Level(subject.ref, subject.rules)]
    ref = subject.scope
    while ref is not None and ref in scopes and len(levels) < 100:
        scope = scopes[ref]
        levels.append(Level(scope.ref, scope.rules, scope.locked))
        ref = scope.parent
    return levels


def _withdrawal(subject: Subject, place: tuple[Any, ...], why: str | None) -> tuple[str, str]:
    """The status and the reason of a reminder that is no longer true."""
    if subject.status != "open":
        return ReminderStatus.CANCELLED, why or "the subject was completed"
    if subject.due_at is None:
        return ReminderStatus.SUPERSEDED, "the subject has no due time any more"
    if subject.due_at != place[0]:
        return ReminderStatus.SUPERSEDED, f"the subject moved to {say_moment(subject.due_at)}"
    if place[3] and place[3] not in subject.recipients:
        return ReminderStatus.SUPERSEDED, "the recipient is no longer one of the subject's"
    return ReminderStatus.SUPERSEDED, why or "its rule no longer holds"


def _reminder_document(subject: Subject, recipient: str, armed: Armed) -> dict[str, Any]:
    assert subject.due_at is not None
    return {
        "subject_id": subject.id,
        "due_at": subject.due_at,
        "rule_id": armed.rule.id,
        "rule": armed.rule.to_json(),
        "time": armed.time,
        "recipient": recipient,
        "revision": subject.revision,
        "run_at": armed.run_at,
        "status": armed.status,
        "reason": armed.reason,
        "key": reminder_key(subject.ref, subject.due_at, armed.rule, armed.time, recipient),
        "task": REMIND_TASK,
        "expires_at": armed.expires_at,
    }


def _check_parent(scope: ScopeInfo, known: Mapping[str, ScopeInfo]) -> None:
    if scope.parent not in known:
        raise InvalidInput(f"There is no scope {scope.parent!r}. Put the parent first.")
    ref: str | None = scope.parent
    while ref is not None and ref in known:
        if ref == scope.ref:
            raise InvalidInput(f"The scope {scope.ref!r} would be inside itself.")
        ref = known[ref].parent


def _scope(row: Row) -> ScopeInfo:
    return ScopeInfo(row[0], row[1], _rules(row[2]), bool(row[3]))


def _scope_json(scope: ScopeInfo) -> dict[str, Any]:
    rules = None if scope.rules is None else [rule.to_json() for rule in scope.rules]
    return {"ref": scope.ref, "parent": scope.parent, "rules": rules, "locked": scope.locked}


def _rules(text: str | None) -> tuple[Rule, ...] | None:
    if text is None:
        return None
    return tuple(Rule.from_json(value) for value in msgspec.json.decode(text))


def _document(subject: Subject) -> dict[str, Any]:
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
    }


def _summary(subject: Subject) -> dict[str, Any]:
    rules = subject.rules
    return {
        "scope": subject.scope,
        "due_at": subject.due_at and say_moment(subject.due_at),
        "tz": subject.tz,
        "status": subject.status,
        "rules": None if rules is None else [rule.text for rule in rules],
        "recipients": list(subject.recipients),
    }
