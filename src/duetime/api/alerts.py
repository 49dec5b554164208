"""`app.alert`: have dead jobs and missed ticks reported through a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from duetime.domain.alert import ALERT_EVENTS, ALERT_TASK, Alert, AlertEvent, make_alert
from duetime.domain.duration import Duration
from duetime.errors import InvalidInput

if TYPE_CHECKING:
    from duetime.app import Duetime


class AlertRegistry:
    """The alerts that an app declares."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self.declared: dict[str, Alert] = {}

    def add(
        self,
        name: str,
        channels: Mapping[str, str | None] | Sequence[str],
        on: Sequence[AlertEvent] | None,
        every: Duration,
    ) -> None:
        from duetime.alerts import alert_task

        alert = make_alert(
            name, channels=channels, on=ALERT_EVENTS if on is None else on, every=every
        )
        known = self._app._sender.channels
        if missing := [channel for channel in alert.channels if channel not in known]:
            raise InvalidInput(
                f"The app has no channel {missing[0]!r}. Add it first, with app.add_channel()."
            )
        self._app._registrations.add(
            f"alert {alert.name!r}", alert, advice="Give one of them another name."
        )
        self.declared[alert.name] = alert
        self._app.tasks.setdefault(ALERT_TASK, alert_task(self._app))
