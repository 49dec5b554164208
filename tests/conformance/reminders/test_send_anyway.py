"""A reminder that waits for its recipient is sent now on request, on every backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from duetime import Duetime, Reminder, Sent
from duetime.channels.channel import Message, NotSent
from duetime.errors import InvalidInput, ReminderNotFound, TransactionConflict
from tests import effects
from tests.conformance.hand import Hand
from tests.conformance.mailbox import HOUR, START, Mailbox, explain, put_games
from tests.conformance.reminders.test_deliveries import Box
from tests.conftest import Backend


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url, retry_base="60s")


async def only(app: Duetime, subject: str = "game:0") -> Reminder:
    [reminder] = await app.reminders.list(subject=subject)
    return reminder


async def test_one_that_waits_for_quiet_hours_is_sent_now(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-20:00")
        await put_games(app, 1)
        await world.advance("2h")
        armed = await app.reminders.send_anyway(await only(app), by="eve")
        await world.advance("1s")
        sent = await only(app)
        why = await explain(app, "game:0")
        [event] = [
            e
            for e in await app.audit.list(entity="subject:game:0")
            if e.action == "reminder.sent_anyway"
        ]

    assert (armed.status, sent.status) == ("armed", "sent")
    assert mail.hours == [2.0]
    assert "Eve sent it at once; otherwise it waits until 20:00" in why
    assert event.actor == "eve"


async def test_one_in_a_digest_goes_out_alone_and_only_once(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4)
        await world.advance("65m")
        waiting = [one for one in await app.reminders.list(status="armed") if one.reason]
        await app.reminders.send_anyway(waiting[0])
        await world.advance("1s")
        at_once = [message.subject for message in mail.messages]
        await world.advance("3h")
        ended = await app.reminders.list(status="sent")

    assert len(waiting) == 3
    assert at_once[1:] == [waiting[0].subject]
    assert len(mail.messages) == 3, "the first, the one let out, and a digest of two"
    assert len(ended) == 4


async def test_it_stays_let_out_when_its_channel_fails_first(app: Duetime) -> None:
    box = Box(app, "push", NotSent("no answer", transient=True))
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-20:00")
        await put_games(app, 1)
        await world.advance("2h")
        await app.reminders.send_anyway(await only(app))
        await world.advance("10m")

    assert len(box.messages) == 1


async def test_asking_twice_sends_once(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-20:00")
        await put_games(app, 1)
        await world.advance("2h")
        first = await app.reminders.send_anyway(await only(app))
        again = await app.reminders.send_anyway(first)
        await world.advance("9h")

    assert again == first
    assert mail.hours == [2.0]


async def test_an_opt_out_still_holds(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-20:00")
        await put_games(app, 1)
        await world.advance("2h")
        reminder = await only(app)
        await app.recipients.mute("ann", "all")
        await app.reminders.send_anyway(reminder)
        await world.advance("1s")
        skipped = await only(app)

    assert mail.messages == []
    assert skipped.status == "skipped"


async def test_nothing_is_sent_before_its_time_or_after_its_end(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    async with app.testing(now=START) as world:
        await put_games(app, 1)
        early = await only(app)
        with pytest.raises(InvalidInput, match=r"Nothing holds reminder .* back: it goes out at "):
            await app.reminders.send_anyway(early)
        await world.advance("2h")
        with pytest.raises(InvalidInput, match=r"is sent: it does not wait.*reminders resend"):
            await app.reminders.send_anyway(early)
        with pytest.raises(ReminderNotFound):
            await app.reminders.send_anyway(early.id + 1000)
        await app.subjects.complete("game:0")

    assert len(mail.messages) == 1


async def test_one_that_is_snoozed_afterwards_is_held_again(app: Duetime) -> None:
    """It was let out once, and not for every time that it comes."""
    mail = Mailbox(app, "mail")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-20:00")
        await put_games(app, 1)
        await world.advance("2h")
        await app.reminders.send_anyway(await only(app))
        await world.advance("1s")
        await app.reminders.snooze((await only(app)).id, "1h", by="ann")
        await world.advance("12h")

    assert mail.hours == [2.0, 8.0]


class Digests(Mailbox):
    """Does something else while a digest is being sent."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def send(self, message: Message) -> Sent:
        if self.messages and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().send(message)


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("is_known", [True, False])
async def test_one_whose_digest_is_being_sent_is_not_let_out(
    app: Duetime, backend: Backend, level: str, is_known: bool
) -> None:
    """Also in a transaction that began before the digest was closed."""
    mail = Digests(app, "mail")
    asked: list[bool] = []
    async with (
        app.testing(now=START) as world,
        await psycopg.AsyncConnection.connect(backend.url) as connection,
    ):
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4)
        await world.advance("65m")
        waiting = [one for one in await app.reminders.list(status="armed") if one.reason]
        if not is_known:
            await app.recipients.delete("ann")
        await connection.execute(f"set transaction isolation level {level}")
        await connection.execute("select 1")

        async def send_it_too() -> None:
            with pytest.raises((InvalidInput, TransactionConflict, psycopg.Error)):
                await app.reminders.send_anyway(waiting[0], tx=connection)
            await connection.rollback()
            asked.append(True)

        mail.meanwhile = send_it_too
        await world.advance("3h")

    assert len(waiting) == 3
    assert asked == [True]
    assert len(mail.messages) == 2, "the first, and a digest of three"


async def test_one_that_is_being_processed_stays_as_it_is(app: Duetime, backend: Backend) -> None:
    """Also if the caller commits all the same."""
    Mailbox(app, "mail")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-20:00")
        await put_games(app, 1)
        await world.advance("2h")
        before = await only(app)
        url, schema = app.settings.database, app.settings.schema
        due, at = (
            (f"{schema}.due", f"{schema}.now()") if backend.is_postgres else ("duetime_due", "0")
        )
        effects.run(url, f"update {due} set run_at = {at}")
        hand = await Hand.register(await app.store(), ["default"], 24 * HOUR, "hand")
        [_] = await hand.claim()
        connect: Any = psycopg.connect if backend.is_postgres else sqlite3.connect
        with closing(connect(url.removeprefix("sqlite:///"))) as connection:
            with pytest.raises(InvalidInput, match="is being processed at this moment"):
                await app.reminders.send_anyway(before, tx=connection)
            connection.commit()
        after = await only(app)
        trail = [event.action for event in await app.audit.list(entity="subject:game:0")]

    assert after == before
    assert "reminder.sent_anyway" not in trail
