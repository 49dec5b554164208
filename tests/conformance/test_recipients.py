"""Recipients on every backend, under a driven clock: where, when, and how much they get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Context, Digest, Duetime, Reminder, Retry, Sent, Skip
from duetime.channels.channel import Message, NotSent
from duetime.domain.recipient import Route
from duetime.errors import InvalidInput, RecipientNotFound
from tests.conftest import Backend

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Mailbox:
    """A channel that notes what it sends, and when; it fails as it is told to."""

    carries_key = True

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


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


@pytest.fixture
def mail(app: Duetime) -> Mailbox:
    return Mailbox(app, "mail")


async def put_games(app: Duetime, count: int, rule: Any = "0s", **options: Any) -> None:
    """Games that all remind ann in an hour."""
    for n in range(count):
        due = START + HOUR + n * timedelta(seconds=1)
        given: dict[str, Any] = {"due": due, "recipients": ["ann"]} | options
        await app.subjects.put(f"game:{n}", remind=[rule], **given)


async def explain(app: Duetime, subject: str) -> str:
    [reminder] = await app.reminders.find(subject=subject)
    return await app.reminders.explain(reminder.id)


async def test_put_get_find_and_delete(app: Duetime) -> None:
    async with app.testing(now=START):
        results = [
            await app.recipients.put("ann", tz="Europe/Berlin", by="bob"),
            await app.recipients.put("ann", tz="Europe/Berlin", by="bob"),
            await app.recipients.put("ann", quiet="22:00-7:00", by="eve"),
            await app.recipients.put("bob", channels=[("push", "t-1"), "mail"], most_per_hour=3),
        ]
        ann, bob = await app.recipients.get("ann"), await app.recipients.get("bob")
        found = await app.recipients.find()
        after = await app.recipients.find(after="ann")
        await app.recipients.delete("bob", by="eve")
        with pytest.raises(RecipientNotFound):
            await app.recipients.get("bob")
        with pytest.raises(RecipientNotFound):
            await app.recipients.delete("bob")
        events = await app.audit("recipient:ann")
        deleted = await app.audit("recipient:bob")

    assert results == ["added", "same", "changed", "added"]
    assert (ann.tz, ann.quiet) == (None, "22:00-07:00")
    assert bob.channels == (Route("push", "t-1"), Route("mail", None))
    assert (found, after) == ([ann, bob], [bob])
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

        assert await app.recipients.find() == []


async def test_one_who_was_never_put_is_reached_at_their_reference(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await put_games(app, 1)
        await world.advance("2h")

    assert [message.address for message in mail.messages] == ["ann"]


async def test_channels_are_tried_in_the_recipients_order_at_their_addresses(app: Duetime) -> None:
    mail, push, call = (Mailbox(app, name) for name in ("mail", "push", "call"))
    push.failures = [NotSent("no such token", passing=False)] * 1
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
    mail.failures = [NotSent("410 Gone", passing=False, disable=True)]
    options: dict[str, Any] = {"channels": {"mail": "ann@x.org", "push": "token"}}
    async with app.testing(now=START) as world:
        if known:
            await app.recipients.put("ann", **options)
        await put_games(app, 2, due=START + HOUR)
        await world.advance("2h")
        tried = len(mail.tried)
        [off] = (await app.recipients.get("ann")).disabled
        events = await app.audit("recipient:ann")
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
    mail.failures = [NotSent("410 Gone", passing=False, disable=True)]
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
        [job_id] = [one.job_id for one in await app.reminders.find(subject="game:0")]
        assert job_id is not None
        attempts = (await app.jobs.get(job_id)).attempts
        await world.advance("2h")
        was = await explain(app, "game:0")

    assert mail.hours == [2.5]
    assert "is due at 2026-03-02T14:30:00Z" in waits
    assert "It waits until 15:30 (Europe/Berlin) for the quiet hours 13:00-15:30 of ann" in waits
    assert attempts == 0
    assert "It waited until 15:30 (Europe/Berlin) for the quiet hours" in was


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

    assert mail.hours == [2.0]


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
        found = await app.reminders.find(status="skipped")
        reasons = {one.subject: one.reason for one in found if one.recipient == "ann"}
        why = await app.reminders.explain(found[0].id)
        [event] = await app.audit("recipient:ann")
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


# At most so many per hour


async def test_what_is_more_than_the_limit_goes_out_in_one_digest(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=2, channels={"mail": "ann@x.org"})
        await put_games(app, 6, data={"title": "Catan"})
        await world.advance("1h30m")
        waits = await explain(app, "game:5")
        await world.advance("3h")
        why = await explain(app, "game:5")
        found = await app.reminders.find(status="sent")
        deliveries = [one for game in found for one in await app.reminders.deliveries(game.id)]
        audit = await app.audit("subject:game:5")
        jobs = [await app.jobs.get(one.job_id) for one in found if one.job_id]

    digest = mail.messages[2]
    assert mail.subjects[:2] == ["game:0", "game:1"]
    assert mail.hours == [1.0, 1.0 + 1 / 3600, 2.0]
    assert "It waits for digest 1: ann gets at most 2 in an hour" in waits
    assert (digest.title, digest.address) == ("4 reminders", "ann@x.org")
    assert digest.event == "reminder.digest"
    assert [one["subject"] for one in digest.data["reminders"]] == [
        f"game:{n}" for n in (2, 3, 4, 5)
    ]
    assert digest.body.count("Catan") == 4
    assert "was sent by mail at 2026-03-02T14:00:00Z, there known as mail-3." in why
    assert "It went out in digest 1, with 3 more." in why
    assert len(found) == 6
    assert [one.key for one in deliveries].count(digest.key) == 4
    assert {one.status.value for one in deliveries} == {"sent"}
    assert audit[0].after["digest"] == digest.key
    assert {job.state.value for job in jobs} == {"completed"}


async def test_a_digest_counts_as_one_and_others_wait_for_the_next(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 3)
        for n in range(2):
            await app.subjects.put(
                f"late:{n}", due=START + 2.5 * HOUR, remind=["0s"], recipients=["ann"]
            )
        await world.advance("9h")

    assert mail.hours == [1.0, 2.0, 3.0]
    assert [len(m.data.get("reminders", [1])) for m in mail.messages] == [1, 2, 2]


async def test_who_waits_goes_before_a_newcomer(app: Duetime, mail: Mailbox) -> None:
    """A place that frees is the digest's, also if another reminder is due just then."""
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 3)
        await world.outage("2h1m")
        # Sent late, at 14:01; then all is due at once again, at 15:01.
        await app.subjects.put(
            "new", due=START + 3 * HOUR + MINUTE, remind=["0s"], recipients=["ann"]
        )
        await world.advance("9h")

    sizes = [len(m.data.get("reminders", [1])) for m in mail.messages]
    assert sizes == [1, 3]


async def test_what_was_withdrawn_is_not_in_the_digest(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 5)
        await world.advance("1h30m")
        await app.subjects.complete("game:2")
        await app.subjects.delete("game:3")
        await world.advance("3h")

    assert [one["subject"] for one in mail.messages[1].data["reminders"]] == ["game:1", "game:4"]
    assert len(mail.messages) == 2


async def test_the_only_one_left_goes_as_itself(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 3)
        await world.advance("1h30m")
        await app.subjects.complete("game:2")
        await world.advance("3h")
        [reminder] = await app.reminders.find(subject="game:1")

    assert mail.subjects == ["game:0", "game:1"]
    assert mail.messages[1].key == reminder.key
    assert mail.hours == [1.0, 2.0]


async def test_a_digest_goes_out_before_one_of_it_would_expire(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 4, "-30m")
        await world.advance("5h")
        found = await app.reminders.find()
        why = await explain(app, "game:3")

    assert {one.status.value for one in found} == {"sent"}
    assert [len(m.data.get("reminders", [1])) for m in mail.messages] == [1, 3]
    assert mail.times[1] == START + HOUR - MINUTE + timedelta(seconds=1)
    assert "beyond 1 in an hour, before one would have expired" in why


async def test_urgent_ones_are_neither_limited_nor_counted(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 4, {"rule": "0s", "urgent": True})
        await app.subjects.put("plain", due=START + 1.5 * HOUR, remind=["0s"], recipients=["ann"])
        await world.advance("1h45m")

    assert len(mail.messages) == 5


async def test_a_digest_that_fails_is_tried_again_with_the_same_key(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h30m")
        mail.failures = [NotSent("busy", passing=True, retry_after=10 * MINUTE)]
        await world.advance("3h")

    assert mail.tried[1] == mail.tried[2]
    assert len(set(mail.tried)) == 2
    assert len(mail.messages) == 2
    assert len(mail.messages[1].data["reminders"]) == 3


async def test_a_digest_that_fails_for_good_fails_all_that_is_in_it(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h30m")
        mail.failures = [NotSent("no such address", passing=False)] * 9
        await world.advance("3h")
        found = await app.reminders.find(status="failed")

    assert len(found) == 3
    assert {one.reason for one in found} == {"digest 1, in which it was, could not be sent"}
    assert len(mail.tried) == 2


async def test_a_limit_that_is_taken_back_lets_all_out(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h30m")
        await app.recipients.put("ann")
        await world.advance("1m")
        found = await app.reminders.find(status="sent")

    assert len(found) == 4
    assert mail.hours[1] == pytest.approx(1.5, abs=0.01)


async def test_muting_all_ends_what_waits_in_a_digest(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h30m")
        await app.recipients.mute("ann", "all")
        await world.advance("3h")
        found = await app.reminders.find(status="skipped")

    assert {one.reason for one in found} == {"ann has muted everything"}
    assert len(found) == 3
    assert len(mail.messages) == 1


# Handlers


class Handler:
    """Handlers of an app, and what they got."""

    def __init__(self, app: Duetime, *, digests: bool) -> None:
        self.seen: list[Reminder] = []
        self.digests: list[Digest] = []
        self.times: list[float] = []
        self.answer: Callable[[Any], Awaitable[Any]] | None = None

        @app.on_reminder(max_attempts=3)
        async def send(reminder: Reminder) -> Any:
            self.seen.append(reminder)
            self.times.append((await app.now() - START) / HOUR)
            return Sent() if self.answer is None else await self.answer(reminder)

        if digests:

            @app.on_digest
            async def send_all(digest: Digest, ctx: Context) -> Any:
                assert ctx.attempt >= 1
                self.digests.append(digest)
                return Sent("all") if self.answer is None else await self.answer(digest)


async def test_a_handler_is_told_the_recipient_with_the_channels_it_may_use(app: Duetime) -> None:
    handler = Handler(app, digests=False)
    async with app.testing(now=START) as world:
        await app.recipients.put(
            "ann", tz="Asia/Tokyo", channels={"sms": "+1", "mail": "a@x.org"},
            muted=["channel:sms"],
        )  # fmt: skip
        await put_games(app, 1, recipients=["ann", "bob"])
        await world.advance("2h")

    ann, bob = (one.to for one in sorted(handler.seen, key=lambda one: one.recipient))
    assert ann is not None
    assert bob is not None
    assert (ann.tz, ann.address("mail"), ann.address("sms")) == ("Asia/Tokyo", "a@x.org", None)
    assert (bob.ref, bob.channels) == ("bob", ())


async def test_a_handler_of_digests_gets_what_waited(app: Duetime) -> None:
    handler = Handler(app, digests=True)
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=2, quiet="13:10-16:00")
        await put_games(app, 5)
        await world.advance("9h")
        found = await app.reminders.find()

    [digest] = handler.digests
    assert len(handler.seen) == 2
    assert [one.subject for one in digest.reminders] == ["game:2", "game:3", "game:4"]
    assert {(one.status.value, one.channel) for one in found} == {("sent", "handler")}
    assert found[4].external_id == "all"


async def test_a_handler_of_digests_can_retry_and_skip(app: Duetime) -> None:
    handler = Handler(app, digests=True)

    async def answer(what: Any) -> Any:
        if isinstance(what, Reminder):
            return Sent()
        return Skip("holiday") if len(handler.digests) > 1 else Retry("busy", after="5m")

    handler.answer = answer
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=2)
        await put_games(app, 5)
        await world.advance("9h")
        found = await app.reminders.find(status="skipped")

    assert len({digest.key for digest in handler.digests}) == 1
    assert {one.reason for one in found} == {"holiday"}
    assert len(found) == 3


async def test_without_a_handler_of_digests_each_waits_for_a_place(app: Duetime) -> None:
    handler = Handler(app, digests=False)
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=2)
        await put_games(app, 5)
        await world.advance("1h30m")
        waits = await explain(app, "game:4")
        await world.advance("9h")

    assert [round(hours, 2) for hours in handler.times] == [1.0, 1.0, 2.0, 2.0, 3.0]
    assert "It waits until 2026-03-02T14:00:00Z: ann gets at most 2 in an hour" in waits


async def test_what_a_handler_skips_takes_no_place(app: Duetime) -> None:
    handler = Handler(app, digests=False)

    async def answer(reminder: Any) -> Any:
        return Skip("not this one") if reminder.subject == "game:0" else Sent()

    handler.answer = answer
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 2)
        await world.advance("1h30m")
        found = await app.reminders.find(status="sent")

    assert [one.subject for one in found] == ["game:1"]


# The recipient's clock


NINE = {"rule": "-0d at 09:00", "zone": "recipient"}
NOON_FRIDAY = datetime(2026, 3, 6, 12, tzinfo=UTC)


async def times_of(app: Duetime, recipient: str) -> list[str]:
    found = await app.reminders.find(status="armed")
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
        gone = await app.reminders.find(status="superseded")
        plain = (await app.subjects.get("plain")).revision
        await world.advance("7d")

    assert first == (["06 00:00", "06 11:00"], ["06 09:00"])
    assert second == ["06 11:00", "06 14:00"]
    assert third == ["06 00:00"]
    assert fourth == ["06 09:00", "06 11:00"]
    assert {one.reason for one in gone} == {
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
        found = await app.reminders.find()

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


async def test_what_does_not_fit_into_a_digest_goes_in_the_next(
    app: Duetime, mail: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.storage.admissions.MOST_REMINDERS", 3)
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 9)
        await world.advance("9h")

    digests = [[one["subject"] for one in m.data["reminders"]] for m in mail.messages[1:]]
    assert digests == [[f"game:{n}" for n in part] for part in ((1, 2, 3), (4, 5, 6), (7, 8))]
    assert [round(hours, 1) for hours in mail.hours] == [1.0, 2.0, 3.0, 4.0]


async def test_an_escalating_rule_goes_on_after_a_digest(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 3, {"rule": "0s", "escalate": "10m"}, recipients=["ann", "bob"])
        await world.advance("9h")

    told = [(m.recipient, len(m.data.get("reminders", [1]))) for m in mail.messages]
    assert told == [("ann", 1), ("bob", 1), ("ann", 2), ("bob", 1), ("bob", 1)]


async def test_a_digest_keeps_to_the_rate_of_its_channel(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    app.add_channel(mail, rate="1/2h")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", most_per_hour=1)
        await put_games(app, 3)
        await world.advance("9h")

    assert mail.hours == [1.0, 3.0]
    assert len(mail.messages[1].data["reminders"]) == 2


async def test_a_put_in_a_transaction_that_rolls_back_changes_nothing(pg_url: str) -> None:
    app = Duetime(pg_url, migrate=True)
    app.add_channel(Mailbox(app, "mail"))
    await app.store()
    due = datetime(2031, 6, 6, 12, tzinfo=UTC)
    await app.subjects.put("game", due=due, remind=[NINE], recipients=["ann"])
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await app.recipients.put("ann", tz="Asia/Tokyo", tx=connection)
        await connection.rollback()
        undone = await app.recipients.find(), await times_of(app, "ann")
        await app.recipients.put("ann", tz="Asia/Tokyo", tx=connection)
        await connection.commit()
    done = await times_of(app, "ann")
    events = await app.audit("recipient:ann")
    await app.close()

    assert undone == ([], ["06 09:00"])
    assert done == ["06 00:00"]
    assert len(events) == 1
