"""`duetime.digest`: the task that sends what had to wait for one recipient as one message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from duetime.channels.channel import Message, Sent
from duetime.domain.jobs.outcome import Outcome, Skip
from duetime.domain.reasons import Reason
from duetime.domain.reminders.admission import expiry, routes_of
from duetime.domain.reminders.delivery import Delivery, clean_error
from duetime.domain.reminders.digest import Digest
from duetime.domain.reminders.recipient import Route
from duetime.engine.context import Context
from duetime.reminders.recorder import record_surely
from duetime.reminders.send_attempt import Outgoing, SendAttempt
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.reminders.digests import DigestStatements
from duetime.storage.reminders.sends import SendStatements
from duetime.storage.reminders.unsent_digests import UnsentDigests
from duetime.storage.store import Dialect, Statements

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.reminders.sender import Sender


async def send_digest(app: Duetime, sender: Sender, digest_id: int, ctx: Context) -> Outcome | None:
    """Send one digest, by the handler, else by the first channel that takes it; record it."""
    begun: Digest | Outcome = await app._perform(
        lambda d: DigestStatements(d).begin_digest(digest_id, job_id=ctx.id)
    )
    if isinstance(begun, Outcome):
        return begun
    handled = sender.digest_handler is not None
    routes = routes_of(begun.to, None if handled else list(sender.channels))
    if isinstance(routes, Reason):
        # Each of them gets its own reason when it is checked by itself.
        await app._perform(lambda d: DigestStatements(d).drop_digest(digest_id))
        return Skip(routes)
    attempt = SendAttempt(app, await _outgoing(app, sender, begun), ctx)
    try:
        outcome = await _send(sender, attempt, begun, routes, ctx)
    except Exception:
        if not ctx.committed:
            await _record_attempt(app, attempt, begun)
        raise
    finally:
        ctx.finish_with = None
    if isinstance(outcome, Sent):
        await _record(app, sender, attempt, begun, ctx)
    elif ctx.committed:
        # The handler sent it in a transaction of its own, which has recorded it.
        return outcome
    else:
        await _record_attempt(app, attempt, begun)
        if isinstance(outcome, Skip):
            await _skip(app, digest_id, _reason_of(outcome))
    await attempt.disable_addresses(begun.recipient)
    return outcome if isinstance(outcome, Outcome) else None


async def _send(
    sender: Sender, attempt: SendAttempt, digest: Digest, routes: tuple[Route, ...], ctx: Context
) -> Sent | Outcome:
    if sender.digest_handler is None:
        return await attempt.send(routes, sender.channels)
    # What the handler commits together with the job's completion was sent.
    ctx.finish_with = lambda dialect, result: _write(
        dialect, sender, attempt.sent_by_handler(result), digest, ctx
    )
    return await attempt.call(sender.digest_handler, digest)


async def _outgoing(app: Duetime, sender: Sender, digest: Digest) -> Outgoing:
    known = await app._perform(lambda d: SendStatements(d).digest_deliveries(digest), reads=True)
    now = await app.now()

    def make(address: str | None, key: str) -> Message:
        return sender.messages.make_digest(digest, address=address, now=now)

    expiries = [expiry(one) for one in digest.reminders]
    return Outgoing(
        digest.key,
        _channels_of(digest, known),
        now,
        max((one.run_at for one in digest.reminders if one.run_at is not None), default=now),
        # What expires meanwhile leaves it: it is sent as long as anything is left.
        _last(expiries),
        make,
        sender.messages.digest,
    )


def _channels_of(digest: Digest, known: Sequence[Delivery]) -> dict[str, Delivery]:
    """What each channel did with a digest: the same with all that is in it."""
    by_channel: dict[str, list[Delivery]] = {}
    for one in known:
        by_channel.setdefault(one.channel, []).append(one)
    found: dict[str, Delivery] = {}
    for channel, deliveries in by_channel.items():
        mine = [one for one in deliveries if one.key == digest.key]
        failed = [one for one in deliveries if one.status.gave_up]
        if taken := [one for one in mine if one.status.accepted]:
            found[channel] = taken[0]
        elif len(failed) == len(digest.reminders):
            found[channel] = msgspec.structs.replace(failed[0], key=digest.key)
        elif mine:
            found[channel] = max(mine, key=lambda one: (not one.status.gave_up, one.attempts))
    return found


def _last(expiries: Sequence[datetime | None]) -> datetime | None:
    known = [expires_at for expires_at in expiries if expires_at is not None]
    return max(known) if len(known) == len(expiries) else None


async def _record_attempt(app: Duetime, attempt: SendAttempt, digest: Digest) -> None:
    """Record what was tried, with all that is in it."""
    if changes := attempt.changes:
        await app._perform(lambda d: SendStatements(d).record_attempt(digest.reminders, changes))


def _reason_of(skip: Skip) -> Reason:
    """Why the handler does not send it, in its words if it gave any."""
    given = skip.args[0]
    return given if isinstance(given, Reason) else Reason.of("skipped", text=clean_error(given))


async def _skip(app: Duetime, digest_id: int, reason: Reason) -> None:
    while await app._perform(lambda dialect: UnsentDigests(dialect).skip(digest_id, reason)):
        pass


async def _record(
    app: Duetime, sender: Sender, attempt: SendAttempt, digest: Digest, ctx: Context
) -> None:
    """Record all that went out, the audit events and the job's completion: all or nothing."""
    completed = ctx.completed

    async def record() -> None:
        if completed:
            # The handler has completed the job, and recorded this if that was committed.
            await app._perform(lambda dialect: _write_after(dialect, sender, attempt, digest, ctx))
            return
        async with ctx.transaction() as connection:
            await app._perform(
                lambda dialect: _write(dialect, sender, attempt, digest, ctx), connection
            )

    await record_surely(ctx, record)


def _write(
    dialect: Dialect, sender: Sender, attempt: SendAttempt, digest: Digest, ctx: Context
) -> Statements:
    statements = DeliveryStatements(dialect)
    early = yield from DigestStatements(dialect).digest_sent(
        digest, attempt.changes, worker=ctx.worker
    )
    yield from statements.apply_early(early)
    follow_ups = [sender.follow_up(one) for one in digest.reminders]
    if jobs := [job for job in follow_ups if job is not None]:
        yield from ctx._store.enqueue_in(jobs)


def _write_after(
    dialect: Dialect, sender: Sender, attempt: SendAttempt, digest: Digest, ctx: Context
) -> Statements:
    statements = DeliveryStatements(dialect)
    yield from statements.hold([one.id for one in digest.reminders])
    known = yield from statements.digest_deliveries(digest)
    recorded = [one for one in known if one.key == digest.key and one.sent_at is not None]
    if not recorded:
        yield from _write(dialect, sender, attempt, digest, ctx)
        return
    [change] = attempt.changes
    for one in recorded:
        yield from statements.provider_id(one, change["external_id"])
