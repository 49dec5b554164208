"""A message to send."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from duetime.channels.channel import Message

MESSAGE = Message(
    key="dtr_4f1a",
    subject="game:42",
    recipient="ann",
    title="Chess in an hour",
    body="Bring a clock.",
    due_at=datetime(2026, 3, 6, 14, tzinfo=UTC),
    rule="-1h",
    offset_minutes=60,
    data={"place": "Café Central", "seats": 2},
)


def message(**changes: object) -> Message:
    """The message with some fields changed."""
    return msgspec.structs.replace(MESSAGE, **changes)
