"""The names of the events that a test has logged."""

from __future__ import annotations

import pytest

from duetime.telemetry.logs import event_of

__all__ = ["event_of", "events_of"]


def events_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [event_of(record) for record in caplog.records]
