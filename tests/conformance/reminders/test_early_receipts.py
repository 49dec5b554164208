"""Receipts that come before the send is recorded, by the message's key, on every backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Context, Digest, Duetime, Reminder, Sent
from duetime.channels.channel import Message, NotSent
from duetime.domain.reminders.delivery import ReceiptStatus
from duetime.errors import DeliveryNotFound, InvalidInput
from tests.conformance.reminders.test_deliveries import Box
from tests.conftest import Backend

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url, retry_base="60s")


async def put(app: Duetime, ref: str = "game", **more: Any) -> None:
    options: dict[str, Any] = {"remind": "-1h", "recipients": ["ann"]} | more
    await app.subjects.put(ref, **({"due": START + 2 * HOUR} | options))


async def only(app: Duetime) -> Reminder:
    [reminder] = await app.reminders.list()
    return reminder


class Hasty(Box):
    """Tells a receipt while it sends; then its answer is lost, if it is told so."""

    tells: ReceiptStatus = "delivered"
    lost = False
    id: str | None = "call-1"

    async def send(self, message: Message) -> Sent:
        self.asked.append(message)
        await self._app.receipt(
            self.id, self.tells, key=message.key, reason="told early", channel=self.name
        )
        if self.lost:
            raise NotSent("the line went dead", transient=True)
        return Sent(self.id)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("told", ["delivered", "acknowledged"])
async def test_a_receipt_before_the_record_is_kept_and_nothing_is_sent_twice(
    app: Duetime, told: ReceiptStatus, lost: bool
) -> None:
    box = Hasty(app, "phone")
    box.tells, box.lost = told, lost
    async with app.testing(now=START) as world:
        await put(app, ref="a|b|2026-01-01T00:00:00Z")
        await world.advance("70m")
        reminder = await only(app)
        [delivery] = await app.reminders.deliveries(reminder)
        late = await app.receipt("call-1", "delivered")

    assert len(box.asked) == 1
    assert reminder.status == "sent"
    assert (delivery.status, delivery.external_id) == (told, "call-1")
    assert (reminder.acknowledged_by is not None) == (told == "acknowledged")
    assert late == 0


async def test_without_an_id_the_key_is_enough(app: Duetime) -> None:
    box = Hasty(app, "phone")
    box.id = None
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("61m")
        reminder = await only(app)
        changed = await app.receipt(None, "acknowledged", key=reminder.key)
        [delivery] = await app.reminders.deliveries(reminder)

    assert (changed, delivery.status, reminder.status) == (1, "acknowledged", "sent")


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("told", ["failed", "bounced"])
async def test_an_early_failure_is_kept_and_the_next_channel_is_asked(
    app: Duetime, told: ReceiptStatus, lost: bool
) -> None:
    """As if it were told after the record."""
    box = Hasty(app, "phone")
    box.tells, box.lost = told, lost
    push = Box(app, "push")
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        reminder = await only(app)
        first, second = await app.reminders.deliveries(reminder)
        again = await app.receipt("call-1", told)
        late = await app.receipt("call-1", "delivered")
        audit = [event.action for event in await app.audit.list(entity="subject:game")]

    assert (len(box.asked), len(push.messages)) == (1, 1)
    assert (first.status, first.external_id, str(first.error)) == (told, "call-1", "told early")
    assert (second.channel, second.status) == ("push", "sent")
    assert (reminder.status, reminder.channel) == ("sent", "push")
    assert (again, late) == (0, 0)
    assert audit.count("delivery.receipt") == 1


async def test_an_early_failure_of_the_only_channel_fails_and_escalates(app: Duetime) -> None:
    box = Hasty(app, "phone")
    box.tells, box.id = "failed", None
    async with app.testing(now=START) as world:
        await put(app, remind={"rule": "-1h", "escalate": "10m"}, recipients=["ann", "bob"])
        await world.advance("61m")
        ann, bob = await app.reminders.list()
        jobs = await app.jobs.list(task="duetime.remind", state=["pending", "retrying"])

    assert [message.recipient for message in box.asked] == ["ann", "bob"]
    assert (ann.status, bob.status) == ("failed", "failed")
    assert str(ann.reason) == "phone accepted it, and reported later that it failed: told early"
    assert bob.reason == ann.reason
    assert jobs == []


async def test_who_acknowledges_after_an_early_failure_has_it(app: Duetime) -> None:
    """He saw it, whatever the provider thinks: no other channel is asked."""
    box = Hasty(app, "phone")
    box.tells, box.lost = "failed", True
    push = Box(app, "push")
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("60m")
        await app.receipt("call-1", "acknowledged")
        await world.advance("10m")
        reminder = await only(app)

    assert push.asked == []
    assert (reminder.status, reminder.channel) == ("sent", "phone")
    assert reminder.acknowledged_by == "ann"


async def test_an_early_failure_of_what_is_no_longer_true_changes_nothing(app: Duetime) -> None:
    """Its subject ends while it is sent: it is sent, and goes no other way."""

    class Slow(Box):
        async def send(self, message: Message) -> Sent:
            self.asked.append(message)
            await app.receipt("call-1", "failed", key=message.key, channel=self.name)
            await app.subjects.complete("game")
            return Sent("call-1")

    Slow(app, "phone")
    push = Box(app, "push")
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        reminder = await only(app)

    assert push.asked == []
    assert reminder.status == "sent"


async def test_a_handler_that_completed_its_job_is_told_of_an_early_failure(app: Duetime) -> None:
    calls: list[int] = []

    @app.on_reminder
    async def call(reminder: Reminder, ctx: Context) -> Sent:
        calls.append(reminder.id)
        await app.receipt("call-1", "failed", key=reminder.key, reason="busy")
        async with ctx.transaction():
            pass
        return Sent("call-1")

    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        reminder = await only(app)

    assert len(calls) == 1
    assert (reminder.status, str(reminder.reason)) == (
        "failed", "handler accepted it, and reported later that it failed: busy",
    )  # fmt: skip


async def test_a_handler_whose_answer_was_lost_is_not_called_again(app: Duetime) -> None:
    calls: list[int] = []

    @app.on_reminder
    async def call(reminder: Reminder) -> Sent:
        calls.append(reminder.id)
        await app.receipt("call-1", "delivered", key=reminder.key)
        raise TimeoutError("no answer")

    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("90m")
        reminder = await only(app)

    assert len(calls) == 1
    assert (reminder.status, reminder.external_id) == ("sent", "call-1")


async def test_a_key_finds_its_own_round(app: Duetime) -> None:
    Box(app, "push")
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("61m")
        first = await only(app)
        await app.reminders.snooze(first, "10m")
        await world.advance("11m")
        await app.receipt("unknown", "delivered", key=first.key)
        found = await app.reminders.deliveries(first)

    assert [(one.round, one.status.value) for one in found] == [(0, "delivered"), (1, "sent")]


async def test_a_key_of_nothing_and_no_name_at_all_are_told(app: Duetime) -> None:
    Box(app, "push")
    Box(app, "mail")
    async with app.testing(now=START):
        await put(app)
        armed = await only(app)
        for key in ("nonsense", "dtr_" + 32 * "0", "dtr_\x00", armed.key + "_1"):
            with pytest.raises(DeliveryNotFound) as unknown:
                await app.receipt(None, "delivered", key=key)
            assert str(unknown.value).startswith(f"No message has the key {key!r}. Give the key ")
            assert (unknown.value.external_id, unknown.value.key) == (None, key)
        with pytest.raises(DeliveryNotFound, match="'nonsense', and no delivery the external id"):
            await app.receipt("CA123", "delivered", key="nonsense")
        with pytest.raises(DeliveryNotFound, match=r"which channel it went through. Give channel="):
            await app.receipt(None, "delivered", key=armed.key)
        for bad in ("", 5):
            with pytest.raises(InvalidInput, match="key must be the key of the message, such as"):
                await app.receipt(None, "delivered", key=bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="give the provider's id, or key="):
            await app.receipt(None, "delivered")


# Digests


class HastyWithDigests(Hasty):
    """Tells of digests only; each has an id of its own."""

    async def send(self, message: Message) -> Sent:
        if message.event != "reminder.digest":
            return await Box.send(self, message)
        if self.id is not None:
            self.id = f"call-{len(self.asked)}"
        return await super().send(message)

    @property
    def digests(self) -> list[Message]:
        return [message for message in self.asked if message.event == "reminder.digest"]


async def put_four(app: Duetime, **more: Any) -> None:
    """One goes alone at 01:00, the others in a digest at 02:00."""
    await app.recipients.put("ann", max_per_hour=1)
    for n in range(4):
        await put(app, f"game:{n}", **({"due": START + 3 * HOUR, "remind": "-2h"} | more))


async def in_digest(app: Duetime) -> list[Reminder]:
    found = await app.reminders.list()
    alone = min(one.ended_at for one in found if one.ended_at is not None)
    return [one for one in found if one.ended_at != alone]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("told", ["delivered", "acknowledged"])
async def test_a_receipt_before_the_record_of_a_digest_is_kept(
    app: Duetime, told: ReceiptStatus, lost: bool
) -> None:
    box = HastyWithDigests(app, "phone")
    box.tells, box.lost = told, lost
    async with app.testing(now=START) as world:
        await put_four(app)
        await world.advance("4h")
        reminders = await in_digest(app)
        deliveries = [one for r in reminders for one in await app.reminders.deliveries(r)]
        late = await app.receipt("call-1", "delivered", key=box.digests[0].key)
        jobs = await app.jobs.list(state=["pending", "retrying"])

    assert [len(message.data["reminders"]) for message in box.digests] == [3]
    assert {(one.status.value, one.external_id) for one in deliveries} == {(told, "call-1")}
    assert {one.key for one in deliveries} == {box.digests[0].key}
    assert [one.status for one in reminders] == ["sent"] * 3
    assert {one.acknowledged_by for one in reminders} == {"ann" if told == "acknowledged" else None}
    assert late == 0
    assert jobs == []


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("told", ["failed", "bounced"])
async def test_an_early_failure_of_a_digest_has_the_next_channel_asked(
    app: Duetime, told: ReceiptStatus, lost: bool
) -> None:
    box = HastyWithDigests(app, "phone")
    box.tells, box.lost = told, lost
    push = Box(app, "push")
    async with app.testing(now=START) as world:
        await put_four(app, remind={"rule": "-1h", "expires": "never"})
        await world.advance("6h")
        reminders = await in_digest(app)
        first, second = await app.reminders.deliveries(reminders[0])
        events = await app.audit.list(entity=f"subject:{reminders[0].subject}")

    [digest] = push.messages
    assert len(box.digests) == 1
    assert len(digest.data["reminders"]) == 3
    assert (first.channel, first.status, str(first.error)) == ("phone", told, "told early")
    assert (second.channel, second.status) == ("push", "sent")
    assert {(one.status.value, one.channel) for one in reminders} == {("sent", "push")}
    assert [event.action for event in events].count("delivery.receipt") == 1


async def test_an_early_failure_of_the_only_channel_of_a_digest_fails_all_of_it(
    app: Duetime,
) -> None:
    box = HastyWithDigests(app, "phone")
    box.tells, box.id = "failed", None
    async with app.testing(now=START) as world:
        await put_four(app, remind={"rule": "-1h", "expires": "never"})
        await world.advance("12h")
        reminders = await in_digest(app)
        jobs = await app.jobs.list(state=["pending", "retrying"])

    assert len(box.digests) == 1
    assert [one.status for one in reminders] == ["failed"] * 3
    assert "phone accepted it, and reported later that it failed: told early" in str(
        reminders[0].reason
    )
    assert jobs == []


async def test_the_key_of_a_digest_is_enough_later_too(app: Duetime) -> None:
    """Also if the provider gave an id, which the receipt does not tell."""
    box = Box(app, "phone")
    Box(app, "push")
    async with app.testing(now=START) as world:
        await put_four(app)
        await world.advance("4h")
        key = box.asked[-1].key
        changed = await app.receipt(None, "acknowledged", key=key)
        again = await app.receipt(None, "acknowledged", key=key)
        reminders = await in_digest(app)

    assert key.startswith("dtd_")
    assert (changed, again) == (3, 0)
    assert {(one.acknowledged_by, one.external_id) for one in reminders} == {("ann", "phone-2")}


async def test_a_handler_of_digests_whose_answer_was_lost_is_not_called_again(app: Duetime) -> None:
    keys: list[str] = []

    @app.on_reminder
    async def call(reminder: Reminder) -> Sent:
        return Sent()

    @app.on_digest
    async def call_for_all(digest: Digest) -> Sent:
        keys.append(digest.key)
        await app.receipt("call-1", "delivered", key=digest.key)
        raise TimeoutError("no answer")

    async with app.testing(now=START) as world:
        await put_four(app)
        await world.advance("4h")
        reminders = await in_digest(app)

    assert len(keys) == 1
    assert {(one.status.value, one.external_id) for one in reminders} == {("sent", "call-1")}


async def test_a_key_of_a_digest_that_is_not_being_sent_is_told(app: Duetime) -> None:
    """One that waits has told its key to nobody; of several channels the receipt names one."""
    refused: list[str] = []

    class Curious(Box):
        async def send(self, message: Message) -> Sent:
            if message.event == "reminder.digest":
                with pytest.raises(DeliveryNotFound, match="Give channel="):
                    await app.receipt(None, "delivered", key=message.key)
                refused.append(message.key)
            return await super().send(message)

    Curious(app, "phone")
    Box(app, "push")
    async with app.testing(now=START) as world:
        await put_four(app)
        await world.advance("90m")
        for key in (
            "dtd_", "dtd_x_1", "dtd_0123456789abcdef_1", "dtd_0123456789abcdef_" + "9" * 30,
        ):  # fmt: skip
            with pytest.raises(DeliveryNotFound, match=f"No message has the key '{key}'"):
                await app.receipt(None, "delivered", key=key, channel="phone")
        await world.advance("2h")

    assert len(refused) == 1
