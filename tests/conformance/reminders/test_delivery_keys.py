"""Keys that are handed to providers, and receipts that come late, on every backend."""

from __future__ import annotations

import re

import pytest

from duetime import Constant, Context, Digest, Duetime, Reminder, Sent
from duetime.channels.channel import Message, NotSent
from duetime.domain.reminders.delivery import ReceiptStatus
from duetime.errors import InvalidInput
from tests.conformance.reminders.test_deliveries import HOUR, START, Box, only, put
from tests.conftest import Backend

PLAIN = re.compile(r"[a-z0-9_]{8,60}", re.ASCII)
LOST = NotSent("no answer", transient=True)


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url, retry_base="60s")


# What they look like


async def test_keys_are_short_plain_and_name_nobody(app: Duetime) -> None:
    seen: list[tuple[str, str]] = []

    @app.on_reminder
    async def call(reminder: Reminder, ctx: Context) -> Sent:
        seen.append((reminder.key, ctx.key))
        return Sent()

    @app.on_digest
    async def call_for_all(digest: Digest, ctx: Context) -> Sent:
        seen.append((digest.key, ctx.key))
        return Sent()

    who = "Jürgen | " + "x" * 150
    async with app.testing(now=START) as world:
        await app.recipients.put(who, max_per_hour=1)
        for n in range(4):
            await put(app, who, ref=f"Spiel {n} für Jürgen", remind={"rule": "-2h"})
        await world.advance("5h")

    assert len(seen) == 2
    assert all(key == of_job for key, of_job in seen)
    assert all(PLAIN.fullmatch(key) for key, _ in seen)
    assert len({key for key, _ in seen}) == len(seen)


async def test_a_jobs_key_is_its_own_or_that_of_all_with_the_same_key(app: Duetime) -> None:
    seen: list[str] = []

    @app.task(name="pay", max_attempts=2, retry=Constant("1s", max_attempts=2))
    async def pay(ctx: Context) -> None:
        seen.append(ctx.key)
        if ctx.attempt == 1:
            raise RuntimeError("no")

    @app.task(name="bill", max_attempts=1)
    async def bill(ctx: Context) -> None:
        seen.append(ctx.key)

    async with app.testing(now=START) as world:
        for task in (pay, pay.using(key="Rechnung für Jürgen"), bill.using(key="Rechnung")):
            await task.enqueue()
            await world.advance("5s")
        await bill.using(key="Rechnung").enqueue()
        await world.drain()

    assert all(PLAIN.fullmatch(key) for key in seen)
    first, again, named, named_again, bill_once, bill_twice = seen
    assert (first, named, bill_once) == (again, named_again, bill_twice)
    assert len(set(seen)) == 3


async def test_two_installations_share_no_key(app: Duetime) -> None:
    """Staging and production: the same subject, rule, time and ids."""
    keys: list[list[str]] = []

    @app.on_reminder
    async def call(reminder: Reminder, ctx: Context) -> Sent:
        keys[-1].append(reminder.key)
        return Sent()

    @app.task(name="pay")
    async def pay(ctx: Context) -> None:
        keys[-1].append(ctx.key)

    for _ in range(2):
        keys.append([])
        async with app.testing(now=START) as world:
            await put(app, "ann")
            await pay.enqueue()
            await pay.using(key="invoice").enqueue()
            await world.advance("2h")

    assert [len(one) for one in keys] == [3, 3]
    assert not set(keys[0]) & set(keys[1])


async def test_one_that_is_withdrawn_and_armed_again_keeps_its_key(app: Duetime) -> None:
    """Its answer was lost before its subject moved away and back: the phone must not ring twice."""
    box = Box(app, "phone", LOST)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("60m1s")
        await app.subjects.complete("game")
        await put(app, "ann", remind={"rule": "-1h", "past": "send_now"})
        await world.advance("10m")
        statuses = sorted(one.status.value for one in await app.reminders.list())

    assert statuses == ["cancelled", "sent"]
    assert [message.key for message in box.asked] == [box.asked[0].key] * 2


# Late receipts


@pytest.mark.parametrize("reported", ["delivered", "acknowledged"])
@pytest.mark.parametrize("wait", ["3h", "61m"], ids=["after it failed", "while it is retried"])
async def test_a_late_receipt_settles_a_reminder_whose_answers_were_lost(
    app: Duetime, reported: ReceiptStatus, wait: str
) -> None:
    box = Box(app, "phone", *[LOST] * 99)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance(wait)
        before = await only(app)
        changed = await app.receipt("call-1", reported, key=before.key)
        after = await only(app)
        asked = len(box.asked)
        await world.advance("3h")
        jobs = await app.jobs.list(task="duetime.remind", state=["pending", "retrying"])
        audit = [event.action for event in await app.audit.list(entity="subject:game")]

    assert before.status in ("failed", "armed")
    assert changed == 1
    assert (after.status, after.channel, after.external_id) == ("sent", "phone", "call-1")
    assert (after.acknowledged_by is not None) == (reported == "acknowledged")
    assert len(box.asked) == asked, "it is not sent again"
    assert jobs == []
    assert audit.count("reminder.sent") == 1


@pytest.mark.parametrize("change", ["complete", "move"])
async def test_a_late_receipt_settles_one_that_was_withdrawn(app: Duetime, change: str) -> None:
    Box(app, "phone", *[LOST] * 99)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("61m")
        first = await only(app)
        if change == "complete":
            await app.subjects.complete("game")
        else:
            await app.subjects.put("game", due=START + 9 * HOUR, remind="-1h", recipients=["ann"])
        await app.receipt(None, "delivered", key=first.key)
        [after] = [one for one in await app.reminders.list() if one.id == first.id]

    assert after.status == "sent"
    assert "before that it was" in str(after.reason)


async def test_what_a_late_receipt_settles_still_escalates(app: Duetime) -> None:
    box = Box(app, "phone", LOST, LOST)
    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", remind={"rule": "-1h", "escalate": "10m"})
        await world.advance("60m30s")
        await app.receipt(None, "delivered", key=box.asked[0].key)
        await world.advance("15m")

    assert [message.recipient for message in box.asked] == ["ann", "bob", "bob"]


async def test_a_person_may_acknowledge_what_seemed_to_have_failed(app: Duetime) -> None:
    Box(app, "phone", *[LOST] * 99)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        with pytest.raises(InvalidInput, match="only one that was sent"):
            await app.reminders.acknowledge(await only(app))
        await world.advance("3h")
        failed = await only(app)
        new = await app.reminders.acknowledge(failed, by="ann")
        after = await only(app)

    assert failed.status == "failed"
    assert new
    assert (after.status, after.acknowledged_by) == ("sent", "ann")


async def test_an_early_receipt_holds_against_the_expiry(app: Duetime) -> None:
    """The worker dies in its send, and nobody tries again before the reminder expires."""
    expires = {"rule": "-1h", "expires": "30s"}

    class Fast(Box):
        async def send(self, message: Message) -> Sent:
            self.asked.append(message)
            await app.receipt("call-1", "delivered", key=message.key, channel=self.name)
            raise NotSent("no answer", transient=True, retry_after=HOUR)

    box = Fast(app, "phone")
    async with app.testing(now=START) as world:
        await put(app, "ann", remind=expires)
        await world.advance("3h")
        reminder = await only(app)

    assert len(box.asked) == 1
    assert reminder.status == "sent"


async def test_a_late_receipt_settles_all_of_a_digest_that_failed(app: Duetime) -> None:
    class Lossy(Box):
        async def send(self, message: Message) -> Sent:
            if message.event == "reminder.digest":
                return await super().send(message)
            return Sent("alone")

    box = Lossy(app, "phone", *[LOST] * 99, tries=2)
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        for n in range(4):
            await put(app, "ann", ref=f"game:{n}", remind="-2h")
        await world.advance("6h")
        failed = await app.reminders.list(status="failed")
        changed = await app.receipt("call-1", "delivered", key=box.asked[0].key)
        statuses = {one.status.value for one in await app.reminders.list()}

    assert len(failed) == 3
    assert changed == 3
    assert statuses == {"sent"}


# Sent again


async def test_a_channel_whose_answer_was_lost_keeps_its_key_when_it_is_sent_again(
    app: Duetime,
) -> None:
    """The mail bounced, so this is another message; but the phone may have rung."""
    phone = Box(app, "phone", *[LOST] * 2, tries=2)
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("65m")
        await app.receipt("mail-1", "bounced")
        await world.advance("1m")
        failed = await only(app)
        await app.reminders.resend(failed)
        await world.advance("1m")
        sent = await only(app)

    assert (failed.status, sent.status, sent.channel) == ("failed", "sent", "phone")
    assert {message.key for message in phone.asked} == {failed.key}
    assert len(phone.asked) == 3
    assert len(mail.asked) == 1


async def test_a_receipt_finds_a_message_under_the_key_that_it_kept(app: Duetime) -> None:
    phone = Box(app, "phone", *[LOST] * 99, tries=2)
    Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("65m")
        await app.receipt("mail-1", "bounced")
        await world.advance("1m")
        await app.reminders.resend(await only(app))
        await world.advance("10s")
        changed = await app.receipt(None, "delivered", key=phone.asked[0].key, channel="phone")
        reminder, asked = await only(app), len(phone.asked)
        await world.advance("1h")

    assert changed == 1
    assert reminder.status == "sent"
    assert len(phone.asked) == asked == 3
