"""Deliveries on every backend, under a driven clock: fallback, limits, receipts, escalation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duetime import Discard, Duetime, Exponential, Reminder, Retry, Sent
from duetime.channels.channel import Message, NotSent
from duetime.domain.reasons import Reason
from duetime.domain.reminders.delivery import Delivery
from duetime.errors import DeliveryNotFound, InvalidInput, ReminderNotFound
from duetime.testing.world import World
from tests.conftest import Backend

START = datetime(2026, 3, 2, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
PASSES = NotSent("no answer", transient=True)
LASTS = NotSent("no such number", transient=False)


class Box:
    """A channel that fails as often as it is told to, then accepts."""

    def __init__(self, app: Duetime, name: str, *failures: Exception, **options: Any) -> None:
        self.name = name
        self.failures = list(failures)
        self.asked: list[Message] = []
        self.messages: list[Message] = []
        self.times: list[float] = []
        self._app = app
        app.add_channel(self, **options)

    async def send(self, message: Message) -> Sent:
        self.asked.append(message)
        if self.failures:
            raise self.failures.pop(0)
        self.messages.append(message)
        self.times.append((await self._app.now() - START) / MINUTE)
        return Sent(f"{self.name}-{len(self.messages)}")

    async def close(self) -> None: ...

    @property
    def to(self) -> list[tuple[str, float]]:
        """Who got something, and after how many minutes."""
        return [(m.recipient, at) for m, at in zip(self.messages, self.times, strict=True)]


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url, retry_base="60s")


async def put(app: Duetime, *recipients: str, ref: str = "game", **more: Any) -> None:
    """A subject due in two hours, of which it is reminded after one."""
    options: dict[str, Any] = {"remind": "-1h", "data": {"title": "Game night"}} | more
    await app.subjects.put(ref, due=START + 2 * HOUR, recipients=recipients, **options)


async def only(app: Duetime, recipient: str | None = None) -> Reminder:
    [found] = [
        reminder
        for reminder in await app.reminders.list()
        if recipient in (None, reminder.recipient)
    ]
    return found


async def told(app: Duetime, recipient: str | None = None) -> list[tuple[Any, ...]]:
    """What each channel did: its name, status and attempts."""
    reminder = await only(app, recipient)
    return [
        (one.channel, one.status.value, one.attempts)
        for one in await app.reminders.deliveries(reminder.id)
    ]


async def actions(app: Duetime) -> list[tuple[str, str]]:
    events = await app.audit.list(entity="subject:game")
    return [(event.action.partition(".")[2], event.actor) for event in reversed(events)]


# Fallback


async def test_a_failure_that_lasts_goes_to_the_next_channel_at_once(app: Duetime) -> None:
    push, mail = Box(app, "push", LASTS), Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        deliveries = await told(app)
        reminder = await only(app)
        why = str(await app.reminders.explain(reminder.id))

    assert mail.to == [("ann", 60)]
    assert len(push.asked) == 1
    assert deliveries == [("push", "failed", 1), ("mail", "sent", 1)]
    assert (reminder.status.value, reminder.channel) == ("sent", "mail")
    assert why.endswith(
        "was sent by mail at 2026-03-02T01:00:00Z, under the id mail-1. "
        "Before that, push failed: no such number."
    )


async def test_a_failure_that_passes_is_tried_on_the_same_channel_first(app: Duetime) -> None:
    push, mail = Box(app, "push", *[PASSES] * 9, tries=3), Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("61m")
        pending = await told(app)
        waits = str(await app.reminders.explain((await only(app)).id))
        await world.advance("1h")
        deliveries = await told(app)
        why = str(await app.reminders.explain((await only(app)).id))

    assert pending == [("push", "pending", 2)]
    assert "Push failed 2 times: no answer. Push is tried again at 2026-03-02T01:03:00Z." in waits
    assert len(push.asked) == 3
    assert len({message.key for message in push.asked + mail.asked}) == 1
    assert mail.to == [("ann", 63)], "60 s and 120 s later"
    assert deliveries == [("push", "failed", 3), ("mail", "sent", 1)]
    assert "push failed 3 times: no answer" in why


async def test_every_channel_has_its_own_tries_beyond_the_jobs_attempts(app: Duetime) -> None:
    """The job has three attempts; the two channels need five between them."""
    push, mail = Box(app, "push", *[PASSES] * 9), Box(app, "mail", PASSES, PASSES)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        deliveries = await told(app)

    assert (len(push.asked), len(mail.asked)) == (3, 3)
    assert mail.to == [("ann", 66)], "1 + 2 minutes for each"
    assert deliveries == [("push", "failed", 3), ("mail", "sent", 3)]


async def test_when_all_have_failed_the_reminder_says_how(app: Duetime) -> None:
    Box(app, "push", LASTS)
    Box(app, "mail", *[PASSES] * 9, tries=2)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("3h")
        reminder = await only(app)
        deliveries = await told(app)

    assert reminder.status.value == "failed"
    assert str(reminder.reason) == "push failed: no such number; mail failed 2 times: no answer"
    assert deliveries == [("push", "failed", 1), ("mail", "failed", 2)]


async def test_a_try_that_would_come_too_late_is_made_elsewhere(app: Duetime) -> None:
    slow = NotSent("overloaded", transient=True, retry_after=2 * HOUR)
    push, mail = Box(app, "push", slow), Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("3h")

    assert push.messages == []
    assert mail.to == [("ann", 60)]


async def test_the_time_that_a_provider_asks_for_is_kept(app: Duetime) -> None:
    push = Box(app, "push", NotSent("busy", transient=True, retry_after=7 * MINUTE))
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")

    assert push.to == [("ann", 67)]


async def test_a_channel_that_breaks_counts_as_failed(app: Duetime) -> None:
    push, mail = Box(app, "push", *[KeyError("token")] * 9, tries=2), Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        [failed, _] = await app.reminders.deliveries((await only(app)).id)

    assert len(push.asked) == 2
    assert mail.to == [("ann", 61)]
    assert failed.error == Reason.of("exception", type="KeyError", text="'token'")
    assert "KeyError" in (world.failed[0].error or "")


async def test_an_unknown_channel_and_none_at_all_are_told(app: Duetime) -> None:
    @app.on_reminder
    async def never(reminder: Reminder) -> None: ...

    app._sender.handler = None
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await put(app, "bob", ref="b", remind={"rule": "-1h", "channels": ["pigeon"]})
        await world.advance("2h")
        reasons = {r.recipient: r.reason for r in await app.reminders.list()}

    assert "neither" in str(reasons["ann"])
    assert str(reasons["bob"]) == "pigeon was not tried: there is no channel 'pigeon' here"


async def test_options_of_an_earlier_channel_hold_for_all(app: Duetime) -> None:
    Box(app, "push", retry=Exponential("10m", max_attempts=2))
    Box(app, "mail")

    assert app.tasks["duetime.remind"].options.max_attempts == 2


# The handler


async def test_a_handlers_failures_are_recorded_too(app: Duetime) -> None:
    answers: list[Any] = [Retry("busy"), RuntimeError("boom"), Sent("CA1")]

    @app.on_reminder
    async def send(reminder: Reminder) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception) and not isinstance(answer, Retry):
            raise answer
        return answer

    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        [delivery] = await app.reminders.deliveries((await only(app)).id)
        why = str(await app.reminders.explain(delivery.reminder_id))

    assert (delivery.channel, delivery.status, delivery.attempts) == ("handler", "sent", 3)
    assert delivery.external_id == "CA1"
    assert "Before that, handler failed 2 times: RuntimeError: boom." in why


async def test_a_discarded_reminder_leaves_a_failed_delivery(app: Duetime) -> None:
    @app.on_reminder
    async def send(reminder: Reminder) -> Discard:
        return Discard("no such line")

    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        deliveries = await told(app)

    assert deliveries == [("handler", "failed", 1)]


async def test_a_handler_that_fails_for_the_last_time_leaves_nothing_pending(app: Duetime) -> None:
    @app.on_reminder(max_attempts=2)
    async def send(reminder: Reminder) -> None:
        raise RuntimeError("boom")

    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        deliveries = await told(app)

    assert deliveries == [("handler", "failed", 2)]


# Rates


async def test_a_channels_rate_is_kept_and_nobody_is_lost(app: Duetime) -> None:
    push = Box(app, "push", rate="2/m")
    people = [f"p{n}" for n in range(7)]
    async with app.testing(now=START) as world:
        await put(app, *people)
        await world.advance("2h")
        statuses = {reminder.status.value for reminder in await app.reminders.list()}

    assert statuses == {"sent"}
    assert push.times == [60, 60, 61, 61.5, 62, 62.5, 63]
    for start in push.times:
        assert sum(start <= at < start + 1 for at in push.times) <= 2
    assert len(world.ran) == 7 + 5, "each waits once"
    assert {ran.outcome for ran in world.ran} == {"completed", "snoozed"}


async def test_who_waits_for_a_place_says_so(app: Duetime) -> None:
    Box(app, "push", rate="1/30m")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob")
        await world.advance("61m")
        [waits] = await app.reminders.list(status="armed")
        why = str(await app.reminders.explain(waits.id))
        [delivery] = await app.reminders.deliveries(waits.id)

    assert "Push is tried again at 2026-03-02T01:30:00Z." in why
    assert (delivery.status, delivery.attempts) == ("pending", 0)


async def test_who_comes_later_does_not_take_a_promised_place(app: Duetime) -> None:
    push = Box(app, "push", rate="1/m")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", "cy")
        await put(app, "dan", ref="late", remind={"rule": timedelta(minutes=-58.5)})
        await world.advance("2h")

    assert [at for _, at in push.to] == [60, 61, 62, 63]
    assert push.to[-1][0] == "dan"


async def test_promises_of_what_was_withdrawn_hold_nobody_up(app: Duetime) -> None:
    push = Box(app, "push", rate="1/m")
    async with app.testing(now=START) as world:
        await put(app, *(f"p{n}" for n in range(30)))
        await put(app, "dan", ref="late", remind={"rule": "-50m"})
        await world.advance("62m")
        await app.subjects.complete("game")
        await world.advance("1h")

    assert [at for _, at in push.to] == [60, 61, 62, 70]


async def test_many_at_once_take_no_more_than_the_rate(app: Duetime) -> None:
    from duetime.domain.jobs.rate import parse_rate
    from duetime.storage.reminders.sends import SendStatements

    rate = parse_rate("10/m")
    async with app.testing(now=START):
        waits = await asyncio.gather(
            *(
                app._perform(lambda d: SendStatements(d).take_place("push", rate, None))
                for _ in range(60)
            )
        )

    assert waits.count(None) == 10
    assert len(set(waits)) == 51, "every other one has a place of its own"


@pytest.mark.parametrize("rate", ["10", "0/s", "x/s", "10/", "1/0s", "-1/s", "10/fortnight", 10])
def test_a_bad_rate_is_refused(app: Duetime, rate: Any) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        Box(app, "push", rate=rate)


@pytest.mark.parametrize("tries", [0, -1, 1.5, True])
def test_bad_tries_are_refused(app: Duetime, tries: Any) -> None:
    with pytest.raises(InvalidInput):
        Box(app, "push", tries=tries)


# Templates


async def test_the_text_is_a_sentence_with_the_local_time(app: Duetime) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann", tz="Europe/Paris")
        await put(app, "bob", ref="far", remind={"rule": "-8d", "past": "send_now"}, data={})
        await app.subjects.put(
            "trip", due=START + timedelta(days=400), remind="-365d", recipients=["cy"]
        )
        await app.subjects.put("bill", due=START, remind="+1d", recipients=["dan"])
        await world.advance("40d")

    bodies = {message.recipient: message.body for message in mail.messages}
    assert bodies == {
        "ann": "Game night is due in 1 hour (Mon 03:00, Europe/Paris)",
        "bob": "far is due in 2 hours (Mon 02:00, UTC)",
        "cy": "trip is due in 365 days (Tue 6 Apr 2027 00:00, UTC)",
        "dan": "bill was due 1 day ago (Mon 00:00, UTC)",
    }
    assert {message.title for message in mail.messages} == {"Game night", "far", "trip", "bill"}


async def test_a_rule_names_its_template(app: Duetime) -> None:
    mail = Box(app, "mail")
    app.template(
        "soon",
        title="{{ title }} {{ due | in_words }}",
        body="{{ recipient }}: {{ due | local(tz, '%H:%M') }} at {{ data.place }}",
    )
    async with app.testing(now=START) as world:
        await put(
            app, "ann", tz="Europe/Paris", remind={"rule": "-1h", "template": "soon"},
            data={"title": "Chess", "place": "the club"},
        )  # fmt: skip
        await world.advance("2h")

    [message] = mail.messages
    assert (message.title, message.body) == ("Chess in 1 hour", "ann: 03:00 at the club")


async def test_templates_come_from_a_folder(app: Duetime, tmp_path: Path) -> None:
    mail = Box(app, "mail")
    (tmp_path / "soon.txt").write_text("{{ title }} soon\n\nDear {{ recipient }},\n{{ text }}.\n")
    (tmp_path / "plain.txt").write_text("{{ text }}!\n")
    (tmp_path / "notes.md").write_text("{{ not one of them")
    names = app.template_folder(tmp_path)
    async with app.testing(now=START) as world:
        for name in names:
            await put(app, name, ref=name, remind={"rule": "-1h", "template": name})
        await world.advance("2h")

    texts = {message.recipient: (message.title, message.body) for message in mail.messages}
    assert names == ["plain", "soon"]
    assert texts == {
        "plain": ("Game night", "Game night is due in 1 hour (Mon 02:00, UTC)!"),
        "soon": (
            "Game night soon",
            "Dear soon,\nGame night is due in 1 hour (Mon 02:00, UTC).",
        ),
    }


async def test_a_template_that_is_not_there_or_cannot_be_filled_fails_at_once(
    app: Duetime,
) -> None:
    mail = Box(app, "mail")
    app.template("place", body="{{ data.place }}")
    async with app.testing(now=START) as world:
        await put(app, "ann", remind={"rule": "-1h", "template": "gone"})
        await put(app, "bob", ref="b", remind={"rule": "-1h", "template": "place"})
        await world.advance("2h")
        found = {r.recipient: (r.status.value, r.reason) for r in await app.reminders.list()}

    assert mail.asked == []
    assert len(world.ran) == 2, "no retry helps"
    assert found["ann"][0] == found["bob"][0] == "failed"
    assert "there is no template 'gone' here" in str(found["ann"][1])
    assert "there is no 'place'" in str(found["bob"][1])


def test_a_bad_template_is_refused_when_it_is_added(app: Duetime, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"Template 'x', body: Line 1"):
        app.template("x", body="{{ open")
    with pytest.raises(InvalidInput, match="template"):
        app.template("", body="x")
    with pytest.raises(InvalidInput, match="text, not 7"):
        app.template("x", body=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no template folder"):
        app.template_folder(tmp_path / "gone")
    app.template("same", body="x")
    app.template("same", body="x")
    with pytest.raises(InvalidInput, match="The template 'same' is registered twice"):
        app.template("same", body="y")


# Receipts


async def sent(app: Duetime, world: World, *recipients: str, **more: Any) -> Reminder:
    await put(app, *(recipients or ("ann",)), **more)
    await world.advance("1h")
    return await only(app, recipients[0] if recipients else "ann")


async def test_receipts_go_forward_only_and_once(app: Duetime) -> None:
    Box(app, "mail")
    async with app.testing(now=START) as world:
        reminder = await sent(app, world)
        changes = [
            await app.receipt("mail-1", status)
            for status in ("delivered", "delivered", "acknowledged", "delivered", "bounced")
        ]
        found = await only(app)
        await world.advance("1h")
        after = await only(app)
        trail = await actions(app)

    assert changes == [1, 0, 1, 0, 0]
    assert (found.delivery, found.acknowledged_by) == ("acknowledged", "ann")
    assert after == found, "nothing was sent again"
    assert reminder.delivery == "sent"
    assert trail[2:] == [
        ("receipt", "provider"),
        ("receipt", "provider"),
        ("acknowledged", "ann"),
    ]


async def test_a_receipt_of_nothing_is_told(app: Duetime) -> None:
    Box(app, "mail")
    async with app.testing(now=START) as world:
        await sent(app, world)
        with pytest.raises(DeliveryNotFound, match="No delivery has the external id 'nothing'"):
            await app.receipt("nothing", "delivered")
        with pytest.raises(DeliveryNotFound):
            await app.receipt("mail-1", "delivered", channel="push")
        with pytest.raises(
            InvalidInput, match=r"is not a status of a receipt\. Use one of: delivered, bounced"
        ):
            await app.receipt("mail-1", "opened")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"not be empty\. If the provider has none"):
            await app.receipt("", "delivered")
        with pytest.raises(InvalidInput, match="id must be a string, got 5"):
            await app.receipt(5, "delivered")  # type: ignore[arg-type]

        assert (await only(app)).delivery == "sent"


async def test_what_bounced_is_sent_by_the_next_channel(app: Duetime) -> None:
    mail, call = Box(app, "mail"), Box(app, "call")
    async with app.testing(now=START) as world:
        await sent(app, world)
        await world.advance("5m")
        changed = await app.receipt("mail-1", "bounced", reason="mailbox full")
        await world.advance("5m")
        again = await app.receipt("mail-1", "bounced", reason="mailbox full")
        await world.advance("1h")
        reminder = await only(app)
        deliveries = await told(app)
        why = str(await app.reminders.explain(reminder.id))

    assert (changed, again) == (1, 0)
    assert len(mail.asked) == 1
    assert call.to == [("ann", 65)]
    assert call.messages[0].key == mail.messages[0].key, "the same message, another way"
    assert deliveries == [("mail", "bounced", 1), ("call", "sent", 1)]
    assert (reminder.status.value, reminder.channel) == ("sent", "call")
    assert "Before that, mail bounced: mailbox full." in why


async def test_what_bounced_everywhere_has_failed(app: Duetime) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await sent(app, world)
        await app.receipt("mail-1", "failed")
        await world.advance("1h")
        reminder = await only(app)

    assert len(mail.asked) == 1
    assert reminder.status.value == "failed"
    assert str(reminder.reason) == "mail accepted it, and reported later that it failed"


@pytest.mark.parametrize("verb", ["complete", "move", "expire"])
async def test_what_bounced_is_not_sent_again_if_it_is_no_longer_true(
    app: Duetime, verb: str
) -> None:
    Box(app, "mail")
    call = Box(app, "call")
    async with app.testing(now=START) as world:
        await sent(app, world)
        if verb == "complete":
            await app.subjects.complete("game")
        elif verb == "move":
            await app.subjects.put("game", due=START + 9 * HOUR, recipients=["ann"], remind="-1h")
        else:
            await world.advance("1h")
        changed = await app.receipt("mail-1", "bounced")
        await world.advance("30m")
        first = (await app.reminders.list())[-1]

    assert changed == 1
    assert call.asked == []
    assert (first.status.value, first.delivery) == ("sent", "bounced")


async def test_a_subject_completed_after_the_bounce_is_not_sent(app: Duetime) -> None:
    Box(app, "mail")
    call = Box(app, "call")
    async with app.testing(now=START) as world:
        await sent(app, world)
        await app.receipt("mail-1", "bounced")
        await app.subjects.complete("game")
        await world.advance("1h")
        reminder = await only(app)

    assert call.asked == []
    assert reminder.status.value == "cancelled"


async def test_a_handlers_message_that_bounced_is_not_handled_again(app: Duetime) -> None:
    calls: list[int] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        calls.append(reminder.id)
        return Sent("CA1")

    async with app.testing(now=START) as world:
        await sent(app, world)
        await app.receipt("CA1", "bounced", reason="no such number")
        await world.advance("1h")
        reminder = await only(app)

    assert len(calls) == 1
    assert (reminder.status.value, str(reminder.reason)) == (
        "failed", "handler bounced: no such number",
    )  # fmt: skip


# Acknowledge and snooze


async def test_acknowledge_by_id_and_by_external_id(app: Duetime) -> None:
    Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob")
        with pytest.raises(InvalidInput, match="armed: only one that was sent"):
            await app.reminders.acknowledge((await only(app, "ann")).id)
        await world.advance("1h")
        ann, bob = await only(app, "ann"), await only(app, "bob")
        new = [await app.reminders.acknowledge(ann.id, by="ann") for _ in range(2)]
        other = await app.reminders.acknowledge(str(bob.external_id), by="bob")
        ann = await only(app, "ann")
        why = str(await app.reminders.explain(ann.id))
        with pytest.raises(ReminderNotFound):
            await app.reminders.acknowledge(99)
        with pytest.raises(DeliveryNotFound):
            await app.reminders.acknowledge("mail-99")
        with pytest.raises(InvalidInput, match=r"not be empty\. Without it, give the id of"):
            await app.reminders.acknowledge("")
        with pytest.raises(InvalidInput, match="reminder id"):
            await app.reminders.acknowledge(0)
        trail = await actions(app)

    assert (new, other) == ([True, False], True)
    assert (ann.delivery, ann.acknowledged_by) == ("acknowledged", "ann")
    assert ann.acknowledged_at == START + HOUR
    assert "It was acknowledged by ann at 2026-03-02T01:00:00Z." in why
    assert [one for one in trail if one[0] == "acknowledged"] == [
        ("acknowledged", "ann"),
        ("acknowledged", "bob"),
    ]


async def test_a_snoozed_reminder_comes_again_as_another_message(app: Duetime) -> None:
    mail = Box(app, "mail", PASSES)
    async with app.testing(now=START) as world:
        reminder = await sent(app, world)
        await world.advance("1m")
        at = await app.reminders.snooze(reminder.id, "10m", by="ann")
        waits = await only(app)
        waiting = str(await app.reminders.explain(reminder.id))
        with pytest.raises(InvalidInput, match="armed: only one that was sent can be snoozed"):
            await app.reminders.snooze(reminder.id, "10m")
        await world.advance("10m")
        await app.reminders.snooze(reminder.id, "20m", by="ann")
        await world.advance("20m")
        found = await only(app)
        deliveries: Sequence[Delivery] = await app.reminders.deliveries(reminder.id)
        trail = await actions(app)

    assert at == START + 71 * MINUTE
    assert (waits.status.value, waits.run_at) == ("armed", at)
    assert waits.reason == Reason("reminder_snoozed", {"by": "ann"})
    assert "is due again at 2026-03-02T01:11:00Z" in waiting
    assert "Snoozed by ann." in waiting
    assert [at for _, at in mail.to] == [61, 71, 91]
    keys = [message.key for message in mail.messages]
    assert keys == [reminder.key, f"{reminder.key}_1", f"{reminder.key}_2"]
    assert [(one.round, one.status.value, one.attempts) for one in deliveries] == [
        (0, "sent", 2),
        (1, "sent", 1),
        (2, "sent", 1),
    ]
    assert (found.status.value, found.external_id, found.snoozes) == ("sent", "mail-3", 2)
    assert [one for one in trail if one[0] == "snoozed"] == [("snoozed", "ann")] * 2


@pytest.mark.parametrize("verb", ["complete", "move", "retarget", "acknowledge"])
async def test_a_snooze_ends_with_what_it_is_about(app: Duetime, verb: str) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        reminder = await sent(app, world)
        await world.advance("1m")
        await app.reminders.snooze(reminder.id, "10m", by="ann")
        if verb == "complete":
            await app.subjects.complete("game")
        elif verb == "move":
            await app.subjects.put("game", due=START + 99 * HOUR, remind="-1h", recipients=["ann"])
        elif verb == "retarget":
            await put(app, "bob")
        else:
            await app.reminders.acknowledge(reminder.id, by="ann")
        await world.advance("30m")
        [found] = [one for one in await app.reminders.list() if one.id == reminder.id]

    assert len(mail.messages) == 1
    assert found.status.value == "sent", "it was, once"
    assert "it was sent before, and is not sent again" in str(found.reason)


async def test_a_snooze_that_ended_does_not_send_the_first_message_again(app: Duetime) -> None:
    """Moved away and back, with a rule that would send what is past."""
    mail = Box(app, "mail")
    remind = {"rule": "-1h", "past": "send_now"}
    async with app.testing(now=START) as world:
        reminder = await sent(app, world, remind=remind)
        await app.reminders.snooze(reminder.id, "10m", by="ann")
        await app.subjects.put("game", due=START + 9 * HOUR, remind=remind, recipients=["ann"])
        await put(app, "ann", remind=remind)
        await world.advance("30m")

    assert len(mail.messages) == 1


async def test_what_cannot_be_snoozed_says_why(app: Duetime) -> None:
    Box(app, "mail")
    async with app.testing(now=START) as world:
        reminder = await sent(app, world)
        for span, message in (
            ("0s", "greater than zero"),
            ("1h", "too late from 2026-03-02T02:00:00Z on"),
            ("soon", "soon"),
        ):
            with pytest.raises(InvalidInput, match=message):
                await app.reminders.snooze(reminder.id, span)
        with pytest.raises(ReminderNotFound):
            await app.reminders.snooze(99, "10m")
        await app.subjects.complete("game")
        with pytest.raises(InvalidInput, match="no longer true"):
            await app.reminders.snooze(reminder.id, "10m")


@pytest.mark.parametrize("verb", ["snooze", "resend"])
async def test_one_whose_next_round_is_withdrawn_says_when_it_was_sent(
    app: Duetime, verb: str
) -> None:
    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        return Sent(reminder.key)

    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("65m")
        sent = await only(app)
        if verb == "snooze":
            await app.reminders.snooze(sent, "30m")
        else:
            await app.reminders.resend(sent)
        await app.subjects.complete("game")
        await world.advance("1h")
        why = str(await app.reminders.explain(sent.id))

    assert "was sent by handler at 2026-03-02T01:00:00Z. It was sent before, and is not" in why


# Escalation

LADDER = {"rule": "-1h", "escalate": "10m"}


async def test_only_the_first_is_told_and_the_next_if_nobody_acknowledges(app: Duetime) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", "cy", remind=LADDER)
        armed = [reminder.recipient for reminder in await app.reminders.list()]
        await world.advance("2h")
        trail = await actions(app)
        found = [(r.recipient, r.status.value) for r in await app.reminders.list()]

    assert armed == ["ann"]
    assert mail.to == [("ann", 60), ("bob", 70), ("cy", 80)]
    assert found == [("cy", "sent"), ("bob", "sent"), ("ann", "sent")]
    assert [one[0] for one in trail] == ["put", "sent", "escalated", "sent", "escalated", "sent"]


@pytest.mark.parametrize("who", ["ann", "bob"])
async def test_whoever_acknowledges_stops_it(app: Duetime, who: str) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", "cy", remind=LADDER)
        await world.advance("75m")
        await app.reminders.acknowledge((await only(app, who)).id, by=who)
        await world.advance("1h")

    assert mail.to == [("ann", 60), ("bob", 70)]


async def test_a_failed_send_and_an_opt_out_escalate_at_once(app: Duetime) -> None:
    mail = Box(app, "mail", LASTS)
    async with app.testing(now=START) as world:
        await app.recipients.put("bob", muted=True)
        await put(app, "ann", "bob", "cy", "dan", remind=LADDER)
        await world.advance("61m")
        found = [(r.recipient, r.status.value) for r in await app.reminders.list()]

    assert mail.to == [("cy", 60)]
    assert found == [("cy", "sent"), ("bob", "skipped"), ("ann", "failed")]


async def test_a_snooze_puts_the_escalation_off(app: Duetime) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", remind=LADDER)
        await world.advance("65m")
        await app.reminders.snooze((await only(app, "ann")).id, "10m", by="ann")
        await world.advance("1h")

    assert mail.to == [("ann", 60), ("ann", 75), ("bob", 85)]


async def test_the_time_counts_from_the_last_send(app: Duetime) -> None:
    mail, call = Box(app, "mail"), Box(app, "call")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", remind=LADDER)
        await world.advance("65m")
        await app.receipt("mail-1", "bounced")
        await world.advance("1h")

    assert call.to == [("ann", 65)]
    assert mail.to == [("ann", 60), ("bob", 75)]


async def test_what_escalated_and_waits_is_withdrawn_by_an_acknowledgement(app: Duetime) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await app.recipients.put("bob", quiet="01:00-01:30")
        await put(app, "ann", "bob", remind=LADDER)
        await world.advance("75m")
        waits = await only(app, "bob")
        await app.reminders.acknowledge((await only(app, "ann")).id, by="ann")
        await world.advance("1h")
        after = await only(app, "bob")

    assert mail.to == [("ann", 60)]
    assert waits.status.value == "armed"
    assert (after.status.value, str(after.reason)) == ("cancelled", "acknowledged by ann")


async def test_what_escalated_and_waits_outlives_an_unrelated_change(app: Duetime) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await app.recipients.put("bob", quiet="01:00-01:30")
        await app.scopes.put("guild", remind=[LADDER])
        await put(app, "ann", "bob", scope="guild", remind=None)
        await world.advance("75m")
        await app.scopes.put("guild", remind=[LADDER, "-1m"])
        await put(app, "ann", "bob", scope="guild", remind=None, tz="Europe/Paris")
        await world.advance("20m")

    assert mail.to == [("ann", 60), ("bob", 90)]


@pytest.mark.parametrize("verb", ["complete", "delete", "move", "calm"])
async def test_a_subject_that_changed_does_not_escalate(app: Duetime, verb: str) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", remind=LADDER)
        await world.advance("65m")
        if verb == "move":
            await app.subjects.put("game", due=START + 9 * HOUR, remind=LADDER, recipients=["ann"])
        elif verb == "calm":
            await put(app, "ann", "bob")
        else:
            await getattr(app.subjects, verb)("game")
        await world.advance("1h")

    assert mail.to == [("ann", 60)]


@pytest.mark.parametrize(
    ("after", "recipients", "expected"),
    [
        ("75m", ["bob", "ann", "cy"], [("ann", 60), ("bob", 70), ("cy", 80)]),
        ("75m", ["cy", "ann", "bob"], [("ann", 60), ("bob", 70), ("cy", 80)]),
        ("65m", ["cy", "ann", "bob"], [("ann", 60), ("cy", 70), ("bob", 80)]),
        ("65m", ["bob", "cy"], [("ann", 60), ("bob", 70), ("cy", 80)]),
        ("75m", ["ann", "cy"], [("ann", 60), ("bob", 70), ("cy", 80)]),
        ("75m", ["ann", "bob", "dan", "cy"], [("ann", 60), ("bob", 70), ("dan", 80), ("cy", 90)]),
        ("85m", ["cy", "bob", "ann"], [("ann", 60), ("bob", 70), ("cy", 80)]),
    ],
)
async def test_it_goes_on_with_who_was_not_told_yet_if_the_recipients_change(
    app: Duetime, after: str, recipients: list[str], expected: list[tuple[str, float]]
) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", "cy", remind=LADDER)
        await world.advance(after)
        await put(app, *recipients, remind=LADDER)
        await world.advance("2h")

    assert mail.to == expected


async def test_one_who_is_told_twice_does_not_hurry_the_others(app: Duetime) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", "cy", "dan", remind=LADDER)
        await world.advance("71m")
        await app.reminders.snooze((await only(app, "ann")).id, "4m")
        await world.advance("1h")

    assert mail.to == [("ann", 60), ("bob", 70), ("ann", 75), ("cy", 80), ("dan", 90)]


AT_NINE = "-1d at 09:00"


async def test_a_wall_time_of_another_zone_is_not_escalated_snoozed_or_resent(
    app: Duetime,
) -> None:
    """09:00 is 08:00 UTC in Berlin, and 14:00 UTC in New York."""
    mail = Box(app, "mail")
    game: dict[str, Any] = {"due": START + 44 * HOUR, "recipients": ["ann", "bob"]}
    game |= {"remind": {"rule": AT_NINE, "escalate": "10m"}}
    async with app.testing(now=START) as world:
        await app.subjects.put("game", tz="Europe/Berlin", **game)
        await world.advance("8h5m")
        sent = await only(app, "ann")
        await app.subjects.put("game", tz="America/New_York", **game)
        with pytest.raises(InvalidInput, match="no longer true"):
            await app.reminders.snooze(sent.id, "30m")
        with pytest.raises(InvalidInput, match="no longer true"):
            await app.reminders.resend(sent.id)
        await world.advance("12h")

    assert mail.to == [("ann", 8 * 60), ("ann", 14 * 60), ("bob", 14 * 60 + 10)]


async def test_a_wall_time_of_the_recipients_former_zone_is_not_snoozed(app: Duetime) -> None:
    mail = Box(app, "mail")
    rule = {"rule": AT_NINE, "zone": "recipient"}
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", tz="Europe/Berlin")
        await app.subjects.put("game", due=START + 44 * HOUR, remind=rule, recipients=["ann"])
        await world.advance("8h5m")
        sent = await only(app)
        until = await app.reminders.snooze(sent.id, "10m")
        await world.advance("15m")
        await app.recipients.put("ann", tz="America/New_York")
        with pytest.raises(InvalidInput, match="no longer true"):
            await app.reminders.snooze(sent.id, "30m")

    assert until == START + 8 * HOUR + 15 * MINUTE
    assert mail.to == [("ann", 8 * 60), ("ann", 8 * 60 + 15)]


async def test_an_escalation_that_would_be_stale_is_shown_as_expired(app: Duetime) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", remind={"rule": "-5m", "escalate": "10m"})
        await world.advance("3h")
        bob = await only(app, "bob")

    assert mail.to == [("ann", 115)]
    assert bob.status.value == "expired"
    assert "ann did not acknowledge it in time, and it had to start before" in str(bob.reason)


async def test_one_without_escalation_is_not_touched_by_anothers_acknowledgement(
    app: Duetime,
) -> None:
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await app.recipients.put("bob", quiet="01:00-01:30")
        await put(app, "ann", "bob")
        await world.advance("61m")
        await app.reminders.acknowledge((await only(app, "ann")).id, by="ann")
        await world.advance("1h")

    assert mail.to == [("ann", 60), ("bob", 90)]


# Lists


async def test_a_reminder_with_many_deliveries_is_listed_once(app: Duetime) -> None:
    Box(app, "push", LASTS)
    Box(app, "mail")
    async with app.testing(now=START) as world:
        reminder = await sent(app, world)
        await app.reminders.snooze(reminder.id, "10m")
        await world.advance("10m")
        by_subject = await app.reminders.list(subject="game")
        by_status = await app.reminders.list(status="sent")
        deliveries = await app.reminders.deliveries(reminder.id)
        await app.subjects.put("later", due=START + timedelta(days=9), remind=["-1h"])
        [waiting] = await app.reminders.list(subject="later")
        none = await app.reminders.deliveries(waiting)

    assert len(by_subject) == len(by_status) == 1
    assert by_subject[0].channel == "push", "asked first again, and it accepted"
    assert len(deliveries) == 3
    assert none == []


async def test_only_a_failure_that_is_told_is_the_deliverys_error(app: Duetime) -> None:
    Box(app, "push", PASSES)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("65m")
        reminder = await only(app)
        await app.receipt("push-1", "delivered", reason="read on a watch")
        [delivered] = await app.reminders.deliveries(reminder)
        await app.receipt("push-1", "bounced", reason="gone")
        [bounced] = await app.reminders.deliveries(reminder)

    assert (delivered.status, str(delivered.error)) == ("delivered", "no answer")
    assert (bounced.status, bounced.error) == ("bounced", Reason.of("receipt", text="gone"))


async def test_what_was_told_later_is_explained_once(app: Duetime) -> None:
    Box(app, "phone")
    Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("65m")
        reminder = await only(app)
        await app.receipt("phone-1", "failed", reason="busy")
        await world.advance("1s")
        why = str(await app.reminders.explain(reminder))

    assert why.endswith(
        "was sent by mail at 2026-03-02T01:05:00Z, under the id mail-1. "
        "Before that, phone accepted it, and reported later that it failed: busy."
    )


async def test_a_failure_that_was_told_has_no_traceback_and_a_broken_channel_has(
    app: Duetime,
) -> None:
    told = NotSent("no answer", transient=True)
    told.__cause__ = OSError("connection refused")
    Box(app, "push", told, RuntimeError("broken"))
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("90m")
        reminder = await only(app)
        assert reminder.job_id is not None
        history = (await app.jobs.get(reminder.job_id)).history

    assert [(one.error, one.traceback is None) for one in history[:2]] == [
        ("push failed: no answer", True),
        ("push failed 2 times: RuntimeError: broken", False),
    ]
