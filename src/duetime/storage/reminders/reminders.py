"""What is done to subjects, and how reminders are read, as statements without I/O."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.reasons import Reason, read_reason
from duetime.domain.reminders.arming import Level
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Subject
from duetime.domain.reminders.rule import Rule
from duetime.errors import InvalidInput
from duetime.storage.reminders.rows import subject_document, subject_summary
from duetime.storage.reminders.scopes import ScopeStatements
from duetime.storage.store import Row, Statement, Statements, run_many

_NEWEST = 2**63 - 1
_MANY = 5000
"""Where SQL arms, more subjects than this are armed by workers. In SQL, too."""


class ReminderStatements(ScopeStatements):
    """Every method is one transaction."""

    # Subjects

    def put(self, subjects: Sequence[Subject], *, actor: str) -> Statements:
        """Store subjects and arm what follows; return `{ref: "added" | "changed" | "same"}`."""
        change: int | None = None
        if self._dialect.arms and len(subjects) > _MANY:
            [(change,)] = yield from self._dialect.run("change_begin", {})
        answer, moved = yield from self._store(subjects, actor, change, rearm_late=True)
        yield from self._rearm_stored(moved, None, change=change)
        return answer

    def _store(
        self,
        subjects: Sequence[Subject],
        actor: str,
        change: int | None = None,
        *,
        rearm_late: bool = False,
    ) -> Generator[Statement, list[Row], tuple[dict[str, str], list[Subject]]]:
        """Store subjects; return the answer of `put`, and those whose reminders may differ now.

        All of them are locked, and have their ids and revisions. `change`: what they wait for.
        `rearm_late`: of those that are stale, what came due is armed before.
        """
        refs = [subject.ref for subject in subjects]
        yield from self._check_scopes(subjects)
        known_before: Sequence[Subject] = yield from self._lock(refs=refs)
        if rearm_late:
            known_before = yield from self._rearm_late(known_before)
        stored = {s.ref: s for s in known_before}
        fresh = [subject for subject in subjects if subject.ref not in stored]
        answer: dict[str, str] = {}
        if fresh:
            documents = [subject_document(s, change) for s in fresh]
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
        yield from self._update(changed, change)
        yield from run_many(self._dialect, "audit_write", events)
        return answer, moved

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

    def _update(self, subjects: Sequence[Subject], change: int | None = None) -> Statements:
        documents = [
            subject_document(subject, change) | {"id": subject.id, "revision": subject.revision}
            for subject in subjects
        ]
        yield from run_many(self._dialect, "subject_update", documents)

    def _check_scopes(self, subjects: Sequence[Subject]) -> Statements:
        names = sorted({subject.scope for subject in subjects if subject.scope})
        if names:
            yield from self._dialect.run("scope_queue", names)
        known = yield from self._scopes(names)
        for name in names:
            if name not in known:
                raise InvalidInput(
                    f"There is no scope {name!r:.200}. Create it first with app.scopes.put or "
                    "`duetime scopes put REF`."
                )

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
        """The chain of rules, from the subject outwards. Reads only, in one statement."""
        around = (yield from self.levels_of_scope(subject.scope)) if subject.scope else []
        return [Level(subject.ref, subject.rules), *around]

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
