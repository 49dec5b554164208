"""Recipients on every backend, under a driven clock: where and when they are reached."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from duetime import Duetime
from duetime.channels.channel import NotSent
from duetime.domain.reminders.recipient import Route
from duetime.errors import InvalidInput, RecipientNotFound
from tests.conformance.mailbox import HOUR, START, Mailbox, explain, put_games
from tests.conformance.reminders.test_deliveries import Box
from tests.conftest import Backend


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


@pytest.fixture
def mail(app: Duetime) -> Mailbox:
    return Mailbox(app, "mail")


async def test_put_get_find_and_delete(app: Duetime) -> None:
    async with app.testing(now=START):
        results = [
            await app.recipients.put("ann", tz="Europe/Berlin", by="bob"),
            await app.recipients.put("ann", tz="Europe/Berlin", by="bob"),
            await app.recipients.put("ann", quiet="22:00-7:00", by="eve"),
            await app.recipients.put("bob", channels=[("push", "t-1"), "mail"], max_per_hour=3),
        ]
        ann, bob = await app.recipients.get("ann"), await app.recipients.get("bob")
        found = await app.recipients.list(limit=1)
        after = await app.recipients.list(limit=1, after=found.next)
        await app.recipients.delete("bob", by="eve")
        with pytest.raises(RecipientNotFound):
            await app.recipients.get("bob")
        with pytest.raises(RecipientNotFound):
            await app.recipients.delete("bob")
        events = await app.audit.list(entity="recipient:ann")
        deleted = await app.audit.list(entity="recipient:bob")

    assert results == ["added", "same", "changed", "added"]
    assert (ann.tz, ann.quiet) == (None, "22:00-07:00")
    assert bob.channels == (Route("push", "t-1"), Route("mail", None))
    assert (found, after, after.next) == ([ann], [bob], None)
    assert [(event.action, event.actor) for event in events] == [
        ("recipient.put", "eve"),
        ("recipient.put", "bob"),
    ]
    assert events[0].before["tz"] == "Europe/Berlin"
    assert (deleted[0].action, deleted[0].after) == ("recipient.delete", None)


async def test_a_bad_put_changes_nothing(app: Duetime) -> None:
    async with app.testing(now=START):
        with pytest.raises(InvalidInput):
            await app.recipients.put("ann", quiet="late")

        assert await app.recipients.list() == []


async def test_one_who_was_never_put_is_reached_at_their_reference(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await put_games(app, 1)
        await world.advance("2h")

    assert [message.address for message in mail.messages] == ["ann"]


async def test_channels_are_tried_in_the_recipients_order_at_their_addresses(app: Duetime) -> None:
    mail, push, call = (Mailbox(app, name) for name in ("mail", "push", "call"))
    push.failures = [NotSent("no such token", transient=False)] * 1
    async with app.testing(now=START) as world:
        await app.recipients.put(
            "ann", channels={"push": "token", "mail": "ann@example.org", "call": "+1"}
        )
        await put_games(app, 1)
        await world.advance("2h")
        await app.subjects.put(
            "urgent",
            due=START + 3 * HOUR,
            remind=[{"rule": "0s", "channels": ["call", "fax", "mail"]}],
            recipients=["ann"],
        )
        await app.subjects.put(
            "fax",
            due=START + 3 * HOUR,
            remind=[{"rule": "0s", "channels": ["fax"]}],
            recipients=["ann"],
        )
        await world.advance("2h")
        why = await explain(app, "fax")

    assert (len(push.tried), push.messages) == (1, [])
    assert [(m.subject, m.address) for m in mail.messages] == [("game:0", "ann@example.org")]
    assert [(m.subject, m.address) for m in call.messages] == [("urgent", "+1")]
    assert "not sent: skipped, ann has none of the rule's channels: fax" in why


@pytest.mark.parametrize("known", [True, False])
async def test_an_address_that_wants_nothing_more_is_not_tried_until_put_again(
    app: Duetime, mail: Mailbox, known: bool
) -> None:
    push = Mailbox(app, "push")
    mail.failures = [NotSent("410 Gone", transient=False, disable=True)]
    options: dict[str, Any] = {"channels": {"mail": "ann@x.org", "push": "token"}}
    async with app.testing(now=START) as world:
        if known:
            await app.recipients.put("ann", **options)
        await put_games(app, 2, due=START + HOUR)
        await world.advance("2h")
        tried = len(mail.tried)
        [off] = (await app.recipients.get("ann")).disabled
        events = await app.audit.list(entity="recipient:ann")
        await app.recipients.put("ann", **(options if known else {}))
        again = (await app.recipients.get("ann")).disabled
        await put_games(app, 1, due=START + 3 * HOUR)
        await world.advance("2h")

    assert tried == 1
    assert (off.channel, off.address, off.reason) == ("mail", "ann@x.org" if known else "ann",
                                                      "410 Gone")  # fmt: skip
    assert len(push.messages) == 2
    assert events[0].action == "recipient.disabled"
    assert again == ()
    assert mail.subjects == ["game:0"]


async def test_all_addresses_disabled_is_a_skip_that_says_so(app: Duetime, mail: Mailbox) -> None:
    mail.failures = [NotSent("410 Gone", transient=False, disable=True)]
    async with app.testing(now=START) as world:
        await put_games(app, 1)
        await world.advance("2h")
        await put_games(app, 2, due=START + 3 * HOUR)
        await world.advance("2h")
        why = await explain(app, "game:1")

    assert len(mail.tried) == 1
    assert "no channel of ann is left: mail is disabled (410 Gone)" in why


# Quiet hours


async def test_quiet_hours_hold_a_reminder_until_they_end(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", tz="Europe/Berlin", quiet="13:00-15:30")
        await put_games(app, 1)
        await world.advance("1h5m")
        waits = await explain(app, "game:0")
        [job_id] = [one.job_id for one in await app.reminders.list(subject="game:0")]
        assert job_id is not None
        attempts = (await app.jobs.get(job_id)).attempts
        await world.advance("2h")
        was = await explain(app, "game:0")

    assert mail.hours == [2.5]
    assert "is due at 2026-03-02T14:30:00Z" in waits
    assert (
        "It waits until 15:30 (Europe/Berlin) because of the quiet hours 13:00-15:30 of ann"
        in waits
    )
    assert attempts == 0
    assert "It waited until 15:30 (Europe/Berlin) because of the quiet hours" in was


async def test_urgent_and_expiring_reminders_do_not_wait(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-15:00")
        await app.subjects.put(
            "urgent", due=START + 9 * HOUR, recipients=["ann"],
            remind=[{"rule": "-8h", "urgent": True}],
        )  # fmt: skip
        await app.subjects.put("soon", due=START + 2 * HOUR, recipients=["ann"], remind=["-1h"])
        await app.subjects.put("later", due=START + 4 * HOUR, recipients=["ann"], remind=["-3h"])
        await world.advance("5h")
        why = await explain(app, "soon")

    assert dict(zip(mail.subjects, mail.hours, strict=True)) == {
        "urgent": 1.0,
        "soon": 1.0,
        "later": 3.0,
    }
    assert "It was sent in the quiet hours 12:00-15:00 of ann: it would have expired at" in why


async def test_quiet_hours_that_are_taken_back_hold_nothing_any_more(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-20:00")
        await put_games(app, 1)
        await world.advance("2h")
        await app.recipients.put("ann")
        await world.advance("1m")
        why = await explain(app, "game:0")

    assert mail.hours == [2.0]
    assert (
        "Its wait ended early because the settings of ann were changed; otherwise it waits until "
        "20:00 (UTC) because of the quiet hours 12:00-20:00 of ann."
    ) in why


@pytest.mark.parametrize("limit", [None, 5])
async def test_one_whose_quiet_hours_were_taken_back_is_due_from_then_on(
    app: Duetime, mail: Mailbox, limit: int | None
) -> None:
    """Its channel fails: it says neither that it was sent nor that it is due when they end."""
    mail.failures = [NotSent("no answer", transient=True)]
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-20:00", max_per_hour=limit)
        await put_games(app, 1, {"rule": "0s", "expires": "never"})
        await world.advance("2h")
        await app.recipients.put("ann", max_per_hour=limit)
        await world.advance("1ms")
        [tried] = await app.reminders.list()
        why = await explain(app, "game:0")

    assert (len(mail.tried), len(mail.messages)) == (1, 0)
    assert tried.run_at == START + 2 * HOUR
    assert " is due, as job " in why
    assert "Mail failed: no answer. Mail is tried again at " in why
    assert "20:00:00Z" not in why
    assert "sent" not in why


async def test_the_tries_of_a_channel_count_from_the_end_of_the_wait(app: Duetime) -> None:
    mail = Box(app, "mail", *[NotSent("no answer", transient=True)] * 999, retry_for="10m")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-20:00")
        await put_games(app, 1, {"rule": "0s", "expires": "never"})
        await world.advance("2h")
        await app.recipients.put("ann")
        await world.advance("1h")
        [reminder] = await app.reminders.list()

    assert reminder.status == "failed"
    assert len(mail.asked) > 1


async def test_a_subject_that_ends_in_quiet_hours_is_not_reminded_of(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:00-15:00")
        await put_games(app, 1)
        await world.advance("2h")
        await app.subjects.complete("game:0")
        await world.advance("9h")

    assert mail.messages == []


# Opt-outs


async def test_muted_reminders_are_skipped_and_say_why(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.scopes.put("guild:1")
        await app.scopes.put("channel:9", parent="guild:1")
        await app.recipients.mute("ann", "scope:guild:1", "subject:b", "rule:-30m", by="ann")
        for ref, scope, rule in (
            ("a", "channel:9", "0s"),
            ("b", None, "0s"),
            ("c", None, "-30m"),
            ("d", None, "0s"),
        ):
            await app.subjects.put(
                ref, scope=scope, due=START + HOUR, remind=[rule], recipients=["ann", "bob"]
            )
        await world.advance("2h")
        found = await app.reminders.list(status="skipped")
        reasons = {one.subject: str(one.reason) for one in found if one.recipient == "ann"}
        why = str(await app.reminders.explain(found[0].id))
        [event] = await app.audit.list(entity="recipient:ann")
        result = await app.recipients.unmute("ann", "subject:b")
        left = (await app.recipients.get("ann")).muted
        with pytest.raises(RecipientNotFound):
            await app.recipients.unmute("nobody", "all")

    assert reasons == {
        "a": "ann has muted scope guild:1",
        "b": "ann has muted subject b",
        "c": "ann has muted rule -30m",
    }
    assert "was not sent: skipped, ann has muted" in why
    assert sorted(mail.subjects) == ["a", "b", "c", "d", "d"]
    assert (event.actor, event.before) == ("ann", None)
    assert (result, left) == ("changed", ("scope:guild:1", "rule:-30m"))


async def test_a_muted_channel_is_left_out(app: Duetime, mail: Mailbox) -> None:
    push = Mailbox(app, "push")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", muted=["channel:mail"])
        await put_games(app, 1)
        await world.advance("2h")

    assert (mail.tried, push.subjects) == ([], ["game:0"])


# The recipient's clock


NINE = {"rule": "-0d at 09:00", "zone": "recipient"}
NOON_FRIDAY = datetime(2026, 3, 6, 12, tzinfo=UTC)


async def times_of(app: Duetime, recipient: str) -> list[str]:
    found = await app.reminders.list(status="armed")
    return [f"{one.time:%d %H:%M}" for one in found if one.recipient == recipient]


async def test_rules_follow_the_recipients_clock_and_its_changes(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", tz="Asia/Tokyo")
        await app.subjects.put("game", due=NOON_FRIDAY, remind=[NINE], recipients=["ann", "bob"])
        await app.subjects.put("plain", due=NOON_FRIDAY, remind=["-1h"], recipients=["ann"])
        first = await times_of(app, "ann"), await times_of(app, "bob")
        await app.recipients.put("ann", tz="America/New_York", by="ann")
        second = await times_of(app, "ann")
        await app.recipients.put("bob", tz="Asia/Tokyo")
        third = await times_of(app, "bob")
        await app.recipients.delete("ann")
        fourth = await times_of(app, "ann")
        gone = await app.reminders.list(status="superseded")
        plain = (await app.subjects.get("plain")).revision
        await world.advance("7d")

    assert first == (["06 00:00", "06 11:00"], ["06 09:00"])
    assert second == ["06 11:00", "06 14:00"]
    assert third == ["06 00:00"]
    assert fourth == ["06 09:00", "06 11:00"]
    assert {str(one.reason) for one in gone} == {
        "the time zone of ann changed",
        "the time zone of bob changed",
    }
    assert plain == 1
    assert len(mail.messages) == 3


async def test_a_clock_that_does_not_change_re_arms_nothing(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START):
        await app.recipients.put("ann", tz="Asia/Tokyo")
        await app.subjects.put("game", due=NOON_FRIDAY, remind=[NINE], recipients=["ann"])
        await app.recipients.put("ann", tz="Asia/Tokyo", quiet="22:00-07:00")
        found = await app.reminders.list()

    assert [one.status.value for one in found] == ["armed"]


async def test_a_scopes_rules_follow_the_recipients_clock(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START):
        await app.recipients.put("ann", tz="Asia/Tokyo")
        await app.scopes.put("guild", remind=["-1h"])
        await app.subjects.put("game", scope="guild", due=NOON_FRIDAY, recipients=["ann"])
        await app.scopes.put("guild", remind=[NINE])
        times = await times_of(app, "ann")
        await app.recipients.put("ann", tz="UTC")
        after = await times_of(app, "ann")

    assert (times, after) == (["06 00:00"], ["06 09:00"])


async def test_a_put_in_a_transaction_that_rolls_back_changes_nothing(pg_url: str) -> None:
    app = Duetime(pg_url, migrate=True)
    app.add_channel(Mailbox(app, "mail"))
    await app.store()
    due = datetime(2031, 6, 6, 12, tzinfo=UTC)
    await app.subjects.put("game", due=due, remind=[NINE], recipients=["ann"])
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await app.recipients.put("ann", tz="Asia/Tokyo", tx=connection)
        await connection.rollback()
        undone = await app.recipients.list(), await times_of(app, "ann")
        await app.recipients.put("ann", tz="Asia/Tokyo", tx=connection)
        await connection.commit()
    done = await times_of(app, "ann")
    events = await app.audit.list(entity="recipient:ann")
    await app.close()

    assert undone == ([], ["06 09:00"])
    assert done == ["06 00:00"]
    assert len(events) == 1
