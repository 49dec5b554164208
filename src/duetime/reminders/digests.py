"""`duetime.digest`: the task that sends what had to wait for one recipient as one message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from duetime.channels.channel import NotSent, Sent
from duetime.domain.admission import routes_of
from duetime.domain.delivery import HANDLER, Delivery, say_failures
from duetime.domain.digest import Digest
from duetime.domain.outcome import Completed, Discard, Outcome, Retry, Skip, Snooze
from duetime.domain.recipient import Route
from duetime.engine.context import Context
from duetime.errors import InvalidInput
from duetime.reminders import deliveries
from duetime.reminders.handlers import call
from duetime.reminders.recipients import disable
from duetime.storage.deliveries import DeliveryStatements
from duetime.storage.digest_ends import DigestEnds
from duetime.storage.digests import DigestStatements
from duetime.storage.store import Dialect, Statements

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.reminders.posting import Line
    from duetime.reminders.sending import Sender


async def send_digest(app: Duetime, sender: Sender, digest_id: int, ctx: Context) -> Outcome | None:
    """Send one digest, by the handler, else by the first channel that takes it; record it."""
    begun: Digest | Outcome = await app._perform(
        lambda dialect: DigestStatements(dialect).begin_digest(digest_id, job_id=ctx.id)
    )
    if isinstance(begun, Outcome):
        return begun
    handled = sender.digest_handler is not None
    routes = routes_of(begun.to, None if handled else list(sender.lines))
    if isinstance(routes, str):
        # Each of them says why, when it is looked at by itself.
        await app._perform(lambda dialect: DigestStatements(dialect).drop_digest(digest_id))
        return Skip(routes)
    outcome, channel = await _hand_over(app, sender, begun, routes, ctx)
    if isinstance(outcome, Skip):
        reason = outcome.reason
        while await app._perform(lambda dialect: DigestEnds(dialect).skip(digest_id, reason)):
            pass
    if isinstance(outcome, Outcome):
        return outcome
    await _record(app, sender, begun, outcome, channel, ctx)
    return None


async def _hand_over(
    app: Duetime, sender: Sender, digest: Digest, routes: tuple[Route, ...], ctx: Context
) -> tuple[Sent | Outcome, str]:
    """Have it sent, unless that was done; return what came of it, and which channel took it."""
    known = await deliveries.perform(app, lambda s: s.digest_deliveries(digest), reads=True)
    if (taken := _taken(digest, known)) is not None:
        return Sent(taken.external_id), taken.channel
    gave_up = _given_up(digest, known)
    handled = sender.digest_handler is not None
    left = tuple(route for route in routes if route.channel not in gave_up)
    if HANDLER in gave_up if handled else routes and not left:
        return Discard(say_failures(gave_up.values())), ""
    if handled:
        return await _ask_handler(sender, digest, ctx), HANDLER
    return await _through(app, digest, left, sender, ctx)


def _taken(digest: Digest, known: Sequence[Delivery]) -> Delivery | None:
    """A channel took it before, as it told by a receipt; the answer to us was lost."""
    return next((one for one in known if one.key == digest.key and one.status.accepted), None)


def _given_up(digest: Digest, known: Sequence[Delivery]) -> dict[str, Delivery]:
    """The channels that are not asked again: they failed for all that is in it."""
    failed: dict[str, list[Delivery]] = {}
    for one in known:
        if one.status.gave_up:
            failed.setdefault(one.channel, []).append(one)
    return {name: one[0] for name, one in failed.items() if len(one) == len(digest.reminders)}


async def _ask_handler(sender: Sender, digest: Digest, ctx: Context) -> Sent | Outcome:
    assert sender.digest_handler is not None
    try:
        outcome = await call(sender.digest_handler, digest, ctx)
    except Outcome as raised:
        outcome = raised
    if isinstance(outcome, Outcome) and not isinstance(outcome, Completed):
        return outcome
    return outcome if isinstance(outcome, Sent) else Sent()


async def _through(
    app: Duetime,
    digest: Digest,
    routes: tuple[Route, ...],
    sender: Sender,
    ctx: Context,
) -> tuple[Sent | Outcome, str]:
    """Through the recipient's channels in turn: the first that takes it."""
    if not routes:
        return Discard("there is neither an @app.on_digest handler nor a channel"), ""
    failures: list[tuple[str, NotSent]] = []
    now = await app.now()
    for route in routes:
        name = route.channel
        line = sender.lines.get(name)
        if line is None:
            failures.append((name, NotSent(f"there is no channel {name!r} here", passing=False)))
            continue
        try:
            message = sender.messages.make_digest(digest, address=route.address, now=now)
        except InvalidInput as error:
            return Discard(str(error)), ""
        if (full := await _wait_for_place(app, name, line, ctx)) is not None:
            return full, ""
        try:
            sent = await line.channel.send(message)
        except NotSent as failure:
            failures.append((name, failure))
            if failure.disable:
                await disable(app, digest.recipient, route, reason=str(failure), worker=ctx.worker)
        except Exception as error:  # noqa: BLE001 A channel may raise anything: others are asked.
            failures.append((name, NotSent(f"{type(error).__name__}: {error}", passing=True)))
        else:
            return sent if isinstance(sent, Sent) else Sent(), name
    told = "; ".join(f"{name}: {failure}" for name, failure in failures)
    if any(failure.passing for _, failure in failures):
        waits = [failure.retry_after for _, failure in failures if failure.retry_after]
        return Retry(told, after=min(waits) if waits else None), ""
    return Discard(told), ""


async def _wait_for_place(app: Duetime, name: str, line: Line, ctx: Context) -> Snooze | None:
    """A channel with a rate takes no more just now."""
    rate = line.rate
    if rate is None:
        return None
    wait: timedelta | None = await deliveries.perform(
        app, lambda s: s.take_place(name, rate, ctx.job.run_at)
    )
    return None if wait is None else Snooze(max(wait, timedelta(0)), f"{name} takes {rate}")


async def _record(
    app: Duetime, sender: Sender, digest: Digest, sent: Sent, channel: str, ctx: Context
) -> None:
    """Record all that went out, the audit events and the job's completion: all or nothing."""
    store = await app.store()
    external_id = None if sent.external_id is None else str(sent.external_id)

    def record(dialect: Dialect) -> Statements:
        told = yield from DigestStatements(dialect).digest_sent(
            digest, channel=channel, external_id=external_id, worker=ctx.worker
        )
        yield from DeliveryStatements(dialect).heed(told)
        if sender.escalation is not None:
            jobs = [
                sender.escalation.using(delay=one.rule.escalate).job(
                    reminder=one.id, snoozes=one.snoozes
                )
                for one in digest.reminders
                if one.rule.escalate is not None
            ]
            if jobs:
                yield from store.enqueue_in(jobs)

    if ctx.completed:
        # The handler has completed the job in a transaction of its own.
        await app._perform(record)
        return
    async with ctx.transaction() as connection:
        await app._perform(record, connection)
