"""A digest: what had to wait for one recipient, as one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from duetime.domain.duration import format_time
from duetime.domain.reminders.recipient import Recipient
from duetime.domain.reminders.reminder import Reminder
from duetime.domain.schedules.cron import parse_zone

DIGEST_TASK = "duetime.digest"
MAX_REMINDERS = 1000
_MAX_LINES = 100


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """Reminders of one recipient that go out together, by the time at which they are due."""

    id: int
    key: str
    """The idempotency key to hand to a provider: opaque, and the same in every attempt."""
    recipient: str
    to: Recipient
    reminders: tuple[Reminder, ...]
    beyond: int | None = None
    """It goes out although the recipient got so many in the last hour: one would expire."""

    @property
    def title(self) -> str:
        count = len(self.reminders)
        return "1 reminder" if count == 1 else f"{count:,} reminders"

    @property
    def body(self) -> str:
        """One line for each, with its due time on the recipient's clock, else the subject's."""
        lines = [_line(reminder, self.to.tz) for reminder in self.reminders[:_MAX_LINES]]
        if (more := len(self.reminders) - _MAX_LINES) > 0:
            lines.append(f"and {more:,} more")
        return "\n".join(lines)

    @property
    def data(self) -> dict[str, Any]:
        """What programs read: `{"reminders": [{"subject": …, "due_at": …}, …]}`."""
        return {
            "reminders": [
                {
                    "subject": reminder.subject,
                    "due_at": format_time(reminder.due_at),
                    "rule": reminder.rule.text,
                    "offset_minutes": reminder.offset_minutes,
                    "key": reminder.key,
                    "data": reminder.data,
                }
                for reminder in self.reminders
            ]
        }


def in_order(reminders: Sequence[Reminder]) -> tuple[Reminder, ...]:
    """As a digest lists them: by due time."""
    return tuple(sorted(reminders, key=lambda one: (one.due_at, one.time, one.id)))


def _line(reminder: Reminder, tz: str | None) -> str:
    zone = tz or reminder.tz
    local = reminder.due_at.astimezone(parse_zone(zone))
    title = " ".join(str(reminder.data.get("title", reminder.subject)).split())
    return f"- {local:%a %Y-%m-%d %H:%M} ({zone})  {title}"
