"""How a due reminder goes out: asked again whether it holds, then sent, then recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.channels.channel import Message, Sent
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.keys import DIGEST_PREFIX
from duetime.domain.jobs.outcome import Outcome, Skip, Snooze
from duetime.domain.reasons import Reason
from duetime.domain.reminders.recipient import Route
from duetime.domain.reminders.reminder import Reminder, ReminderStatus
from duetime.engine.batching import Batcher
from duetime.engine.context import Context
from duetime.reminders.admission import Admissions, admit, disable_all, give_back
from duetime.reminders.deliveries import perform
from duetime.reminders.digests import send_digest
from duetime.reminders.messages import Messages
from duetime.reminders.recorder import Record, Recorder
from duetime.reminders.send_attempt import ConfiguredChannel, Outgoing, SendAttempt
from duetime.storage.reminders.sends import Ready, SentReminder

if TYPE_CHECKING:
    from duetime.api.tasks import Task
    from duetime.app import Duetime

_TWIN_AGAIN = "250ms"


class Sender:
    """The task that every reminder runs as, and what it sends through."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self.channels: dict[str, ConfiguredChannel] = {}
        self.handler: Callable[..., Any] | None = None
        self.digest_handler: Callable[..., Any] | None = None
        self.messages = Messages(app._registrations)
        self.options: dict[str, Any] = {}
        self.escalation: Task[..., Any] | None = None
        # The read begins after the ask, so after the job was claimed.
        self._ready: Batcher[int, Ready | None] = Batcher(self._read_ready)
        self._admissions = Admissions(app)
        self._recorder = Recorder(app)

    async def remind(self, reminder: int, ctx: Context) -> Any:
        """The task that every reminder runs as."""
        ready = await self._ready.submit(reminder)
        refused = await self._refuse(ready, ctx.id)
        if ready is None or refused is not None:
            return refused
        admitted = await admit(
            self._app,
            self._admissions,
            ready.reminder,
            ready.admission,
            channels=list(self.channels) if self.handler is None else None,
            digests=self.handler is None or self.digest_handler is not None,
        )
        if isinstance(admitted, Outcome):
            return admitted
        current, way = admitted
        ready = ready._replace(reminder=current)
        attempt = SendAttempt(self._app, self._outgoing(ready, ctx), ctx)
        try:
            outcome = await self._send(attempt, current, ctx, way.routes)
        except Exception:
            if not ctx.committed and (withdrawn := await self._note(attempt, current)) is not None:
                return withdrawn
            raise
        finally:
            ctx.finish_with = None
        if isinstance(outcome, Sent):
            await self._recorder.record(self._record(attempt, current, ctx))
        elif ctx.committed:
            # The handler sent it in a transaction of its own, which has recorded it.
            return outcome
        else:
            if isinstance(outcome, Skip):
                await give_back(self._app, current)
            outcome = await self._note(attempt, current) or outcome
        await disable_all(self._app, current.recipient, attempt.disabled, worker=ctx.worker)
        return outcome if isinstance(outcome, Outcome) else None

    async def escalate(self, reminder: int, snoozes: int, ctx: Context) -> None:
        """The task that tells the next recipient, if nobody has acknowledged in time."""
        async with ctx.transaction() as connection:
            await perform(
                self._app, lambda s: s.escalate(reminder, snoozes, worker=ctx.worker), connection
            )

    async def _read_ready(self, reminders: list[int]) -> Sequence[Ready | None]:
        found = await perform(self._app, lambda s: s.ready(reminders), reads=True)
        return [found.get(reminder) for reminder in reminders]

    async def _refuse(self, ready: Ready | None, job_id: int) -> Outcome | None:
        """Why a reminder whose job runs is not to be sent, or not yet."""
        if ready is None:
            return Skip(Reason("subject_deleted"))
        current = ready.reminder
        if current.status is not ReminderStatus.ARMED:
            return Skip(_ended(current))
        if current.job_id != job_id:
            # Someone enqueued it by hand, or it is what is left of an earlier round.
            return Skip(Reason.of("other_job", job=current.job_id))
        if current.stale:
            return Snooze("50ms", Reason("subject_changed"))
        if ready.twin is None or current.snoozes:
            return None
        # Its subject was closed and opened again as it was, or moved away and back.
        state, other = ready.twin
        if state == "sending":
            return Snooze(_TWIN_AGAIN, Reason.of("other_sending", reminder=other))
        reason = Reason.of("sent_as_other", reminder=other)
        await perform(self._app, lambda s: s.withdraw(current.id, reason))
        return Skip(reason)

    async def digest(self, digest: int, ctx: Context) -> Any:
        """The task that sends what had to wait for one recipient."""
        return await send_digest(self._app, self, digest, ctx)

    async def _send(
        self, attempt: SendAttempt, reminder: Reminder, ctx: Context, routes: tuple[Route, ...]
    ) -> Sent | Outcome:
        if self.handler is None:
            return await attempt.send(routes, self.channels)
        # What the handler commits together with the job's completion was sent.
        ctx.finish_with = lambda dialect, result: self._recorder.record_in(
            dialect, self._record(attempt.sent_by_handler(result), reminder, ctx)
        )
        return await attempt.call(self.handler, reminder)

    def _outgoing(self, ready: Ready, ctx: Context) -> Outgoing:
        reminder = ready.reminder
        to = reminder.to

        def make(address: str | None, key: str) -> Message:
            tz = None if to is None else to.tz
            return self.messages.make(reminder, address=address, key=key, now=ready.now, tz=tz)

        return Outgoing(
            reminder.key,
            {
                # What a digest did with it under the digest's key, it now does under its own.
                name: msgspec.structs.replace(known, key=reminder.key)
                if known.key.startswith(DIGEST_PREFIX) and not known.status.accepted
                else known
                for name, known in ready.deliveries.items()
            },
            ready.now,
            reminder.run_at or ready.now,
            ctx.job.expires_at,
            make,
            reminder.rule.template,
        )

    async def _note(self, attempt: SendAttempt, reminder: Reminder) -> Skip | None:
        """Record what was tried; return why it is not to be tried again, if it was withdrawn."""
        if notes := attempt.notes:
            await perform(self._app, lambda s: s.note([reminder], notes))
        ready = await self._ready.submit(reminder.id)
        if ready is None:
            return Skip(Reason("subject_deleted"))
        if ready.reminder.status is not ReminderStatus.ARMED:
            return Skip(_ended(ready.reminder))
        return None

    def _record(self, attempt: SendAttempt, reminder: Reminder, ctx: Context) -> Record:
        """What a send leaves behind."""
        sent = SentReminder(reminder, attempt.notes, ctx.worker)
        return Record(sent, self.follow_up(reminder), ctx)

    def follow_up(self, reminder: Reminder) -> NewJob | None:
        """The job that tells the next recipient, if nobody acknowledges the reminder."""
        if reminder.rule.escalate is None or self.escalation is None:
            return None
        later = self.escalation.using(delay=reminder.rule.escalate)
        return later.job(reminder=reminder.id, snoozes=reminder.snoozes)


def _ended(reminder: Reminder) -> Reason:
    return Reason.of("reminder_ended", status=reminder.status.value, why=reminder.reason)
