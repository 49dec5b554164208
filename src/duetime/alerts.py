"""Alerts: messages about dead jobs and missed ticks, through the app's own channels.

Nothing is written when a job dies. Each worker checks every few seconds whether something has
happened that was not reported, and enqueues the job of the alert, under a key: however many workers
see it, one message is sent. After a crash another worker sees the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from random import uniform
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.channels.channel import Message, NotSent
from duetime.domain.alert import ALERT_TASK, Alert, describe_alert, facts_of_alert
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.outcome import Cancel, Retry
from duetime.domain.jobs.retry import Exponential
from duetime.domain.jobs.task import TaskDefinition, TaskOptions
from duetime.engine.context import Context
from duetime.engine.followers import Follower, WorkerView
from duetime.settings import Settings
from duetime.storage.alerts import AlertStatements, Due, Incidents
from duetime.storage.store import Statements
from duetime.telemetry.events import log_event

if TYPE_CHECKING:
    from duetime.app import Duetime

log = logging.getLogger("duetime.alerts")

EVENT = "alert.raised"
"""The event of a message, as webhooks and brokers see it."""
CHECK_SECONDS = 5.0
SETTLE = timedelta(seconds=10)
"""An event is reported when it is so old. A burst is one message then, and everything that
committed late is in it."""
_RETRY = Exponential("10s", max="10m", max_attempts=30)


class AlertFollower(Follower):
    """Enqueues the jobs of alerts for one worker."""

    name = "alerts"

    def __init__(self, worker: WorkerView, alerts: Sequence[Alert], settings: Settings) -> None:
        self._store = worker.store
        self._alerts = alerts
        self._queue = settings.queues[0]
        self._statements = AlertStatements(worker.store.dialect)
        self.check_every = CHECK_SECONDS

    async def open(self) -> None:
        await self._store.transact(self._statements.open([alert.name for alert in self._alerts]))

    def check(self) -> Statements:
        due: list[Due] = yield from self._statements.next(self._alerts, SETTLE)
        return any(one.at <= one.now for one in due)

    async def repair(self) -> float:
        due = [one for one in await self._next() if one.at <= one.now]
        if due:
            await self._store.enqueue([self._job(one.name, one.now - SETTLE) for one in due])
        return CHECK_SECONDS * uniform(0.75, 1.25)

    async def next_repair(self) -> datetime | None:
        return min((one.at for one in await self._next()), default=None)

    async def _next(self) -> list[Due]:
        found: list[Due] = await self._store.transact(
            self._statements.next(self._alerts, SETTLE), reads=True
        )
        return found

    def _job(self, name: str, until: datetime) -> NewJob:
        args = msgspec.json.encode({"name": name, "until": until})
        return NewJob(
            task=ALERT_TASK,
            args=msgspec.Raw(args),
            # One that this worker serves: it knows the alert.
            queue=self._queue,
            priority=0,
            key=name,
            max_attempts=_RETRY.max_attempts,
        )


def alert_task(app: Duetime) -> TaskDefinition:
    """Return the task that sends the alerts of an app."""

    async def alert(name: str, until: datetime, ctx: Context) -> None:
        await _report(app, name, until, ctx)

    options = TaskOptions(
        queue=app.settings.queues[0],
        priority=0,
        retry=_RETRY,
        retry_on=(Exception,),
        max_attempts=_RETRY.max_attempts,
        timeout=timedelta(seconds=60),
        expires=None,
        keep_result=False,
    )
    return TaskDefinition(alert, name=ALERT_TASK, options=options, context_type=Context)


async def _report(app: Duetime, name: str, until: datetime, ctx: Context) -> None:
    """Send what happened since the last message, and record that it was sent.

    A crash in between sends it twice, with the same key.
    """
    alert = app._alerts.declared.get(name)
    if alert is None:
        raise Cancel(f"the alert {name!r} is not declared")
    store = await app.store()
    statements = AlertStatements(store.dialect)
    since: datetime | None = await store.transact(statements.since(alert), reads=True)
    if since is None or since >= until:
        return
    found: Incidents = await store.transact(statements.incidents(alert, since, until))
    if found.dead or found.missed:
        title, body = describe_alert(found.dead, found.missed, more=found.more)
        channel = await _send(
            app,
            alert,
            Message(
                # The job's own key is the same for every message of this alert.
                key=f"{ctx.key}-{int(until.timestamp())}",
                subject=f"alert:{name}",
                recipient=name,
                title=title,
                body=body,
                due_at=until,
                data=facts_of_alert(found.dead, found.missed),
                event=EVENT,
            ),
        )
        log_event(
            log,
            logging.INFO,
            "alert_sent",
            "Alert %(alert)s was sent through %(channel)s: %(title)s.",
            alert=name,
            channel=channel,
            title=title,
        )
    await store.transact(statements.reported(name, until))


async def _send(app: Duetime, alert: Alert, message: Message) -> str:
    """Try the channels in turn; return the name of the one that accepted it."""
    failures: list[str] = []
    waits: list[timedelta] = []
    for name, address in alert.channels.items():
        configured: Any = app._sender.channels.get(name)
        if configured is None:
            failures.append(f"the app has no channel {name!r}")
            continue
        try:
            await configured.channel.send(msgspec.structs.replace(message, address=address))
        except NotSent as error:
            failures.append(f"{name}: {error}")
            if error.retry_after is not None:
                waits.append(error.retry_after)
        else:
            return name
    # Also if the failure lasts, until somebody corrects it: the alert would only be enqueued again.
    raise Retry("; ".join(failures), after=max(waits, default=None))
