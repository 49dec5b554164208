"""Receipts that come before the send is recorded, by the message's key, on every backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Duetime, Reminder, Sent
from duetime.channels.channel import Message, NotSent
from duetime.errors import DeliveryNotFound, InvalidInput
from tests.conformance.test_deliveries import Box
from tests.conftest import Backend

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url, retry_base="60s")


async def put(app: Duetime, ref: str = "game", **more: Any) -> None:
    options: dict[str, Any] = {"remind": "-1h", "recipients": ["ann"]} | more
    await app.subjects.put(ref, due=START + 2 * HOUR, **options)


async def only(app: Duetime) -> Reminder:
    [reminder] = await app.reminders.find()
    return reminder


class Hasty(Box):
    """Tells a receipt while it sends; then its answer is lost, if it is told so."""

    tells = "delivered"
    lost = False
    id: str | None = "call-1"

    async def send(self, message: Message) -> Sent:
        self.asked.append(message)
        await self._app.receipt(self.id, self.tells, key=message.key, reason="told early")
        if self.lost:
            raise NotSent("the line went dead", passing=True)
        return Sent(self.id)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("told", ["delivered", "acknowledged"])
async def test_a_receipt_before_the_record_is_kept_and_nothing_is_sent_twice(
    app: Duetime, told: str, lost: bool
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


async def test_an_early_failure_is_to_be_told_again(app: Duetime) -> None:
    box = Hasty(app, "phone", max_attempts=1)
    box.tells = "failed"
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("61m")
        [delivery] = await app.reminders.deliveries(await only(app))

    assert delivery.status == "failed"
    assert "DeliveryNotFound" in str(delivery.error)


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
        for key in ("nonsense", "reminder:x|2026-03-02T02:00:00Z|-1h|y|ann", armed.key):
            with pytest.raises(DeliveryNotFound):
                await app.receipt(None, "delivered", key=key)
        with pytest.raises(InvalidInput, match="give the provider's id, or key="):
            await app.receipt(None, "delivered")
