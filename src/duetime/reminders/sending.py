"""How a due reminder goes out: asked again whether it holds, then sent, then recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from duetime.channels.channel import Sent
from duetime.domain.delivery import HANDLER, DeliveryStatus, say_failures
from duetime.domain.outcome import Completed, Discard, Outcome, Retry, Skip, Snooze
from duetime.domain.recipient import Route
from duetime.domain.reminder import Reminder, ReminderStatus
from duetime.engine.context import Context
from duetime.reminders.deliveries import perform
from duetime.reminders.digests import send_digest
from duetime.reminders.gathering import Gathering
from duetime.reminders.handlers import call
from duetime.reminders.messages import Messages
from duetime.reminders.posting import Line, Posting
from duetime.reminders.recipients import Gate, admit, disable, give_back
from duetime.reminders.recording import Recorder
from duetime.storage.sends import Handed, Ready
from duetime.task import Task

if TYPE_CHECKING:
    from duetime.app import Duetime

_TWIN_AGAIN = "250ms"


class Sender:
    """The task that every reminder runs as, and what it sends through."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self.lines: dict[str, Line] = {}
        self.handler: Callable[..., Any] | None = None
        self.digest_handler: Callable[..., Any] | None = None
        self.messages = Messages()
        self.options: dict[str, Any] = {}
        self.escalation: Task[..., Any] | None = None
        # The read begins after the ask, so after the job was claimed.
        self._ready: Gathering[int, Ready | None] = Gathering(self._read_ready)
        self._gate = Gate(app)
        self._recorder = Recorder(app)

    async def remind(self, reminder: int, ctx: Context) -> Any:
        """The task that every reminder runs as."""
        ready = await self._ready.get(reminder)
        refused = await self._refuse(ready, ctx.id)
        if ready is None or refused is not None:
            return refused
        admitted = await admit(
            self._app,
            self._gate,
            ready.reminder,
            ready.desk,
            channels=list(self.lines) if self.handler is None else None,
            digests=self.handler is None or self.digest_handler is not None,
        )
        if isinstance(admitted, Outcome):
            return admitted
        current, way = admitted
        ready = ready._replace(reminder=current)
        posting = Posting(self._app, ready, ctx)
        try:
            outcome = await self._send(posting, ready, ctx, way.routes)
        except Exception as error:
            if self.handler is not None:
                posting.note(HANDLER, DeliveryStatus.PENDING, error=_say(error))
            if (withdrawn := await self._note(posting, current)) is not None:
                return withdrawn
            raise
        for route, reason in posting.disabled:
            await disable(self._app, current.recipient, route, reason=reason, worker=ctx.worker)
        if isinstance(outcome, Skip):
            await give_back(self._app, current)
        if isinstance(outcome, Outcome):
            return await self._note(posting, current) or outcome
        await self._record(posting, current, ctx)
        return None

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
            return Skip("its subject was deleted")
        current = ready.reminder
        if current.status is not ReminderStatus.ARMED:
            return Skip(f"{current.status}: {current.reason}")
        if current.job_id != job_id:
            # Someone enqueued it by hand, or it is what is left of an earlier round.
            return Skip(f"reminder {current.id} is sent by job {current.job_id}, not by this one")
        if current.stale:
            return Snooze("50ms", "its subject has changed, and is yet to be armed again")
        if ready.twin is None or current.snoozes:
            return None
        # Its subject was closed and opened again as it was, or moved away and back.
        state, other = ready.twin
        if state == "sending":
            return Snooze(_TWIN_AGAIN, f"reminder {other}, which is the same, is being sent")
        reason = f"it was sent already, as reminder {other}"
        await perform(self._app, lambda s: s.withdraw(current.id, reason))
        return Skip(reason)

    async def digest(self, digest: int, ctx: Context) -> Any:
        """The task that sends what had to wait for one recipient."""
        return await send_digest(self._app, self, digest, ctx)

    async def _send(
        self, posting: Posting, ready: Ready, ctx: Context, routes: tuple[Route, ...]
    ) -> Sent | Outcome:
        if self.handler is None:
            to = ready.reminder.to
            tz = None if to is None else to.tz
            return await posting.send(routes, self.lines, self.messages, tz=tz)
        if (taken := posting.taken()) is not None:
            return taken
        if posting.known(HANDLER).status.gave_up:
            return Discard(say_failures(ready.deliveries.values()))
        try:
            outcome = await call(self.handler, ready.reminder, ctx)
        except Outcome as raised:
            outcome = raised
        if isinstance(outcome, Outcome) and not isinstance(outcome, Completed):
            if isinstance(outcome, Retry | Discard):
                lasts = isinstance(outcome, Discard)
                status = DeliveryStatus.FAILED if lasts else DeliveryStatus.PENDING
                posting.note(HANDLER, status, error=outcome.reason)
            return outcome
        sent = outcome if isinstance(outcome, Sent) else Sent()
        posting.note_sent(HANDLER, sent)
        return sent

    async def _note(self, posting: Posting, reminder: Reminder) -> Skip | None:
        """Record what was tried; return why it is not to be tried again, if it was withdrawn."""
        if notes := posting.notes:
            await perform(self._app, lambda s: s.note(reminder, notes))
        ready = await self._ready.get(reminder.id)
        if ready is None:
            return Skip("its subject was deleted")
        if ready.reminder.status is not ReminderStatus.ARMED:
            return Skip(f"{ready.reminder.status}: {ready.reminder.reason}")
        return None

    async def _record(self, posting: Posting, reminder: Reminder, ctx: Context) -> None:
        """Record the send, the audit event and the job's completion: all or nothing."""
        follow_up = None
        if reminder.rule.escalate is not None and self.escalation is not None:
            later = self.escalation.using(delay=reminder.rule.escalate)
            follow_up = later.job(reminder=reminder.id, snoozes=reminder.snoozes)
        handed = Handed(reminder, posting.notes, ctx.worker)
        await self._recorder.record(handed, follow_up, ctx)


def _say(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 An error may fail to describe itself.
        return type(error).__name__
