"""A channel that notes what it sends, and games that remind ann."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from duetime import Duetime, Sent
from duetime.channels.channel import Message, NotSent

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Mailbox:
    """A channel that notes what it sends, and when; it fails as it is told to."""

    def __init__(self, app: Duetime, name: str) -> None:
        self.name = name
        self.failures: list[NotSent] = []
        self.messages: list[Message] = []
        self.tried: list[str] = []
        self.times: list[datetime] = []
        self._app = app
        app.add_channel(self, max_attempts=3)

    async def send(self, message: Message) -> Sent:
        self.tried.append(message.key)
        if self.failures:
            raise self.failures.pop(0)
        self.messages.append(message)
        self.times.append(await self._app.now())
        return Sent(f"{self.name}-{len(self.messages)}")

    async def close(self) -> None: ...

    @property
    def hours(self) -> list[float]:
        return [(at - START) / HOUR for at in self.times]

    @property
    def subjects(self) -> list[str]:
        return [message.subject for message in self.messages]


async def put_games(app: Duetime, count: int, rule: Any = "0s", **options: Any) -> None:
    """Games that all remind ann in an hour."""
    for n in range(count):
        due = START + HOUR + n * timedelta(seconds=1)
        given: dict[str, Any] = {"due": due, "recipients": ["ann"]} | options
        await app.subjects.put(f"game:{n}", remind=[rule], **given)


async def explain(app: Duetime, subject: str) -> str:
    [reminder] = await app.reminders.list(subject=subject)
    return str(await app.reminders.explain(reminder.id))
