"""How a due reminder goes out: asked again whether it holds, then sent, then recorded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duetime.channels.channel import Channel, Message, NotSent, Sent
from duetime.domain.outcome import Completed, Discard, Outcome, Retry, Skip
from duetime.domain.reminder import Reminder, ReminderStatus
from duetime.engine.context import Context
from duetime.reminders import perform
from duetime.storage.reminders import ReminderStatements
from duetime.storage.store import Statements

if TYPE_CHECKING:
    from duetime.app import Duetime


class Sender:
    """The task that every reminder runs as, and what it sends through."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self.channels: dict[str, Channel] = {}
        self.handler: Callable[..., Any] | None = None

    async def remind(self, reminder: int, ctx: Context) -> Any:
        """The task that every reminder runs as."""
        found = await perform(self._app, lambda s: s.find(ids=[reminder]), reads=True)
        if not found:
            return Skip("its subject was deleted")
        current: Reminder = found[0]
        if current.status is not ReminderStatus.ARMED:
            return Skip(f"{current.status}: {current.reason}")
        channel = "handler"
        try:
            if self.handler is not None:
                outcome = await _call(self.handler, current, ctx)
            else:
                outcome, channel = await self._send(current)
        except Exception:
            if (withdrawn := await self._withdrawn(reminder)) is not None:
                return withdrawn
            raise
        if isinstance(outcome, Outcome) and not isinstance(outcome, Completed):
            return await self._withdrawn(reminder) or outcome
        sent = outcome if isinstance(outcome, Sent) else Sent()
        external_id = None if sent.external_id is None else str(sent.external_id)

        def record(statements: ReminderStatements) -> Statements:
            return statements.sent(
                current, channel=channel, external_id=external_id, worker=ctx.worker
            )

        if ctx.completed:
            # The handler has completed the job in a transaction of its own.
            await perform(self._app, record)
            return None
        async with ctx.transaction() as connection:
            await perform(self._app, record, connection)
        return None

    async def _withdrawn(self, reminder: int) -> Skip | None:
        """Why a reminder that was not sent is not to be tried again."""
        found = await perform(self._app, lambda s: s.find(ids=[reminder]), reads=True)
        if not found:
            return Skip("its subject was deleted")
        if found[0].status is not ReminderStatus.ARMED:
            return Skip(f"{found[0].status}: {found[0].reason}")
        return None

    async def _send(self, reminder: Reminder) -> tuple[Any, str]:
        """Through the rule's channels in turn, else through all: the first that accepts it."""
        names = reminder.rule.channels or tuple(self.channels)
        if not names:
            return Discard("there is neither an @app.on_reminder handler nor a channel"), ""
        message = Message(
            key=reminder.key,
            subject=reminder.subject,
            recipient=reminder.recipient,
            title=str(reminder.data.get("title", reminder.subject)),
            body=f"{reminder.subject} is due at {reminder.due_at.isoformat()}",
            due_at=reminder.due_at,
            address=reminder.recipient or None,
            rule=reminder.rule.text,
            data=reminder.data,
        )
        failures: list[NotSent] = []
        for name in names:
            if name not in self.channels:
                failures.append(NotSent(f"there is no channel {name!r} here", passing=False))
                continue
            try:
                return await self.channels[name].send(message), name
            except NotSent as failure:
                failures.append(failure)
        told = "; ".join(
            f"{name}: {failure}" for name, failure in zip(names, failures, strict=True)
        )
        if any(failure.passing for failure in failures):
            waits = [failure.retry_after for failure in failures if failure.retry_after]
            return Retry(told, after=min(waits) if waits else None), ""
        return Discard(told), ""


async def _call(handler: Callable[..., Any], reminder: Reminder, ctx: Context) -> Any:
    wants_context = len(inspect.signature(handler).parameters) > 1
    args = (reminder, ctx) if wants_context else (reminder,)
    if inspect.iscoroutinefunction(handler):
        return await handler(*args)
    return await asyncio.to_thread(handler, *args)
