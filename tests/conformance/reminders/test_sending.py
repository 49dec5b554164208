"""What is sent is recorded, once, whatever the handler, the channel or the database does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from duetime import Constant, Context, Digest, Discard, Duetime, Reminder, Sent, Skip
from duetime.channels.channel import Message, NotSent
from duetime.domain.reasons import Reason
from tests.conformance.reminders.test_deliveries import HOUR, START, Box, only, put, told
from tests.conftest import Backend
from tests.waiting import PATIENCE, until

HOSTILE = {
    "a NUL": "CA\x0017",
    "half a letter": "CA\ud80017",
    "long": "x" * 100_000,
    "long and wide": "\U0001f514" * 3_000,
    "empty": "",
    "a number": 17,
    "too many digits": 10**5_000,
    "bytes": b"\x00\xff",
}


class Mute:
    """Cannot be shown as text."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Faceless:
    """Does not tell its class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no")


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url, retry_base="60s")


async def put_four(app: Duetime) -> None:
    """One goes alone at 01:00, the others in a digest at 02:00."""
    await app.recipients.put("ann", max_per_hour=1)
    for n in range(4):
        await app.subjects.put(f"game:{n}", due=START + 3 * HOUR, remind="-2h", recipients=["ann"])


# A handler that commits


async def test_the_handlers_transaction_records_the_reminder(app: Duetime) -> None:
    """Whatever becomes of the worker after the commit: what it says is true by then."""
    seen: list[tuple[str, int, bool]] = []

    @app.on_reminder
    async def call(reminder: Reminder, ctx: Context) -> Sent:
        async with ctx.transaction():
            pass
        now = await only(app)
        deliveries = await app.reminders.deliveries(now)
        escalations = await app.jobs.list(task="duetime.escalate")
        seen.append((now.status.value, len(deliveries), bool(escalations)))
        raise RuntimeError("the worker dies here")

    async with app.testing(now=START) as world:
        await put(app, "ann", "bob", remind={"rule": "-1h", "escalate": "10m"})
        await world.advance("61m")
        reminder = await only(app, "ann")
        audit = [event.action for event in await app.audit.list(entity="subject:game")]

    assert seen == [("sent", 1, True)]
    assert reminder.status == "sent"
    assert audit.count("reminder.sent") == 1


async def test_what_the_handler_rolls_back_was_not_sent(app: Duetime) -> None:
    calls: list[str] = []

    @app.on_reminder
    async def call(reminder: Reminder, ctx: Context) -> Sent:
        if not calls:
            calls.append("failed")
            async with ctx.transaction():
                raise RuntimeError("no")
        calls.append("sent")
        async with ctx.transaction():
            pass
        return Sent("call-1")

    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("60m30s")
        between, tried = await only(app), await told(app)
        await world.advance("5m")
        reminder, deliveries = await only(app), await told(app)
        audit = [event.action for event in await app.audit.list(entity="subject:game")]

    assert (between.status, tried) == ("armed", [("handler", "pending", 1)])
    assert calls == ["failed", "sent"]
    assert (reminder.status, reminder.external_id) == ("sent", "call-1")
    assert deliveries == [("handler", "sent", 2)]
    assert audit.count("reminder.sent") == 1


async def test_a_handler_may_tell_the_receivers_id_as_it_completes(app: Duetime) -> None:
    seen: list[str | None] = []

    @app.on_reminder
    async def call(reminder: Reminder, ctx: Context) -> None:
        store = await app.store()
        async with store.transaction() as connection:
            await ctx.complete(Sent("call-1"), tx=connection)
        seen.append((await only(app)).external_id)

    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("65m")
        audit = await app.audit.list(entity="subject:game")

    assert seen == ["call-1"]
    assert [e.after["external_id"] for e in audit if e.action == "reminder.sent"] == ["call-1"]


@pytest.mark.parametrize("answer", [Skip("no"), Discard("no"), Sent("late")])
async def test_what_the_handler_says_after_its_commit_does_not_undo_the_send(
    app: Duetime, answer: Any
) -> None:
    @app.on_reminder
    async def call(reminder: Reminder, ctx: Context) -> Any:
        async with ctx.transaction():
            pass
        return answer

    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("3h")
        reminder, deliveries = await only(app), await told(app)

    assert reminder.status == "sent"
    assert deliveries == [("handler", "sent", 1)]


def test_a_sync_handlers_transaction_records_the_reminder(app: Duetime) -> None:
    seen: list[str] = []

    @app.on_reminder
    def call(reminder: Reminder, ctx: Context) -> Sent:
        with ctx.transaction_sync():
            pass
        seen.append(app.sync(only(app)).status.value)
        return Sent("call-1")

    with app.testing(now=START) as world:
        app.sync(put(app, "ann"))
        app.sync(world.advance("65m"))
        reminder = app.sync(only(app))

    assert seen == ["sent"]
    assert reminder.external_id == "call-1"


async def test_a_sync_handler_that_raises_stop_iteration_is_tried_again(app: Duetime) -> None:
    tries: list[int] = []

    @app.on_reminder(retry=Constant("1m"))
    def call(reminder: Reminder) -> Sent:
        tries.append(reminder.id)
        if len(tries) == 1:
            raise StopIteration
        return Sent("call-2")

    async with app.testing(now=START) as world, asyncio.timeout(PATIENCE):
        await put(app, "ann")
        await world.advance("3h")
        reminder = await only(app)

    assert (reminder.status, reminder.external_id) == ("sent", "call-2")


async def test_the_digest_handlers_transaction_records_all_that_is_in_it(app: Duetime) -> None:
    seen: list[list[str]] = []

    @app.on_reminder
    async def call(reminder: Reminder) -> Sent:
        return Sent()

    @app.on_digest
    async def call_for_all(digest: Digest, ctx: Context) -> Sent:
        async with ctx.transaction():
            pass
        seen.append(sorted(one.status.value for one in await app.reminders.list()))
        raise RuntimeError("the worker dies here")

    async with app.testing(now=START) as world:
        await put_four(app)
        await world.advance("4h")
        after = [one.status.value for one in await app.reminders.list()]

    assert seen == [["sent"] * 4]
    assert after == ["sent"] * 4


# Whatever a receiver answers


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=list(HOSTILE))
async def test_whatever_id_a_receiver_gives_is_stored_and_found_again(
    app: Duetime, answer: Any
) -> None:
    asked: list[Message] = []

    class Odd(Box):
        async def send(self, message: Message) -> Sent:
            asked.append(message)
            return Sent(answer)

    Odd(app, "push")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        reminder = await only(app)
        changed = 1
        if isinstance(answer, str) and answer:
            changed = await app.receipt(answer, "delivered")

    assert len(asked) == 1
    assert reminder.status == "sent"
    assert changed == 1


@pytest.mark.parametrize("make", [Faceless, lambda: Sent(Mute())])  # type: ignore[arg-type]
async def test_whatever_a_handler_returns_it_is_not_called_again(
    app: Duetime, make: Callable[[], Any]
) -> None:
    calls: list[int] = []

    @app.on_reminder
    async def call(reminder: Reminder) -> Any:
        calls.append(reminder.id)
        return make()

    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        reminder = await only(app)

    assert len(calls) == 1
    assert reminder.status == "sent"


@pytest.mark.parametrize("text", ["no\x00 room", "no \ud800 room", "no room " * 10_000])
async def test_whatever_a_channel_says_of_a_failure_the_next_one_sends_once(
    app: Duetime, text: str
) -> None:
    gone = NotSent(text, transient=False, disable=True)
    push, mail = Box(app, "push", gone), Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        deliveries = await told(app)
        ann = await app.recipients.get("ann")

    assert (len(push.asked), len(mail.asked)) == (1, 1)
    assert deliveries == [("push", "failed", 1), ("mail", "sent", 1)]
    assert [one.channel for one in ann.disabled] == ["push"]


async def test_a_digest_with_a_hostile_id_goes_out_once(app: Duetime) -> None:
    asked: list[str] = []

    class Odd(Box):
        async def send(self, message: Message) -> Sent:
            asked.append(message.key)
            return Sent("a\x00\ud800" + "x" * 100_000)

    Odd(app, "push")
    async with app.testing(now=START) as world:
        await put_four(app)
        await world.advance("4h")
        statuses = [one.status.value for one in await app.reminders.list()]

    assert len(asked) == len(set(asked)) == 2
    assert statuses == ["sent"] * 4


async def test_a_reason_with_a_nul_skips_a_digest(app: Duetime) -> None:
    @app.on_reminder
    async def call(reminder: Reminder) -> Sent:
        return Sent()

    @app.on_digest
    async def skip(digest: Digest) -> Skip:
        return Skip("not\x00 now \ud800")

    async with app.testing(now=START) as world:
        await put_four(app)
        await world.advance("4h")
        statuses = sorted(one.status.value for one in await app.reminders.list())

    assert statuses == ["sent", "skipped", "skipped", "skipped"]


async def test_a_receipt_may_say_anything(app: Duetime) -> None:
    Box(app, "push")
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("61m")
        changed = await app.receipt("push-1", "failed", reason="no\x00 line \ud800" * 9_000)

    assert changed == 1


# Failures that pass


async def test_a_failure_that_passes_is_retried_until_the_reminder_expires(app: Duetime) -> None:
    """Three attempts are over after three minutes; the outage lasts longer."""
    down = NotSent("the broker is away", transient=True)
    broker = Box(app, "broker", *[down] * 5)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        reminder, deliveries = await only(app), await told(app)

    assert broker.to == [("ann", 60 + 1 + 2 + 4 + 8 + 16)]
    assert reminder.status == "sent"
    assert deliveries == [("broker", "sent", 6)]


async def test_a_wait_that_is_too_long_is_cut_to_what_is_left(app: Duetime) -> None:
    """After 31 minutes the next wait would be 32, with 29 left."""
    down = NotSent("the broker is away", transient=True)
    broker = Box(app, "broker", *[down] * 6)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("3h")
        reminder = await only(app)

    assert broker.to == [("ann", 60 + 31 + 14.5)]
    assert reminder.status == "sent"


async def test_what_never_expires_is_retried_for_a_day_or_as_long_as_its_channel_says(
    app: Duetime,
) -> None:
    down = [NotSent("the broker is away", transient=True)] * 10_000
    box = Box(app, "broker", *down)
    async with app.testing(now=START) as world:
        await put(app, "ann", remind={"rule": "-1h", "expires": "never"})
        await world.advance("24h")
        before = await only(app)
        await world.advance("2h")
        after = await only(app)
        app.add_channel(box, retry_for="30m", replace=True)
        await app.reminders.resend(after)
        await world.advance("29m")
        short = await only(app)
        await world.advance("2m")
        ended = await only(app)

    assert (before.status, after.status) == ("armed", "failed")
    assert (short.status, ended.status) == ("armed", "failed")


async def test_while_one_channel_is_down_the_next_is_asked_and_the_first_not_forgotten(
    app: Duetime,
) -> None:
    down, busy = NotSent("down", transient=True), NotSent("busy", transient=True)
    push, mail = Box(app, "push", *[down] * 4), Box(app, "mail", *[busy] * 99)
    async with app.testing(now=START) as world:
        await put(app, "ann")
        await world.advance("2h")
        deliveries = await told(app)

    assert push.to == [("ann", 60 + 1 + 2 + 4 + 8)]
    assert len(mail.asked) >= 3
    assert [one[:2] for one in deliveries] == [("push", "sent"), ("mail", "failed")]


async def test_a_digest_waits_for_a_channel_that_is_down_and_records_what_failed(
    app: Duetime,
) -> None:
    class Broker(Box):
        async def send(self, message: Message) -> Sent:
            if message.event == "reminder.digest":
                return await super().send(message)
            return Sent("alone")

    down = NotSent("the broker is away", transient=True)
    broker = Broker(app, "broker", *[down] * 5, tries=6)
    mail = Box(app, "mail")
    async with app.testing(now=START) as world:
        await put_four(app)
        await world.advance("2h03m")
        waiting = [one for one in await app.reminders.list() if one.status == "armed"]
        pending = await app.reminders.deliveries(waiting[0])
        await world.advance("2h")
        statuses = [one.status.value for one in await app.reminders.list()]

    assert len(waiting) == 3
    assert [(one.channel, one.status.value, one.error) for one in pending] == [
        ("broker", "pending", Reason.of("not_sent", text="the broker is away"))
    ]
    assert pending[0].attempts >= 2
    assert len({message.key for message in broker.asked}) == 1
    assert len(broker.asked) == 6
    assert mail.asked == []
    assert statuses == ["sent"] * 4


async def test_a_digest_obeys_the_tries_of_its_channels(app: Duetime) -> None:
    class Broker(Box):
        async def send(self, message: Message) -> Sent:
            if message.event == "reminder.digest":
                return await super().send(message)
            return Sent("alone")

    down = NotSent("the broker is away", transient=True)
    broker, mail = Broker(app, "broker", *[down] * 99, tries=2), Box(app, "mail")
    async with app.testing(now=START) as world:
        await put_four(app)
        await world.advance("4h")
        [one, *_] = [one for one in await app.reminders.list() if one.channel == "mail"]
        deliveries = await app.reminders.deliveries(one)

    assert (len(broker.asked), len(mail.asked)) == (2, 1)
    assert [(one.channel, one.status.value, one.attempts) for one in deliveries] == [
        ("broker", "failed", 2),
        ("mail", "sent", 1),
    ]


# Options


async def test_the_apps_own_options_hold_for_what_was_armed_before_a_worker_started(
    backend: Backend,
) -> None:
    producer = Duetime(backend.url, migrate=True)
    now = await producer.now()
    await producer.subjects.put("game", due=now, remind={"rule": "0s", "past": "send_now"})
    await producer.close()
    calls: list[tuple[int, timedelta | None]] = []
    app = Duetime(backend.url)

    @app.on_reminder(retry=Constant("10ms", max_attempts=5), timeout="7s")
    async def fail(reminder: Reminder, ctx: Context) -> None:
        calls.append((ctx.job.max_attempts, ctx.job.timeout))
        raise RuntimeError("no")

    async def failed() -> bool:
        return (await only(app)).status == "failed"

    async with app.worker():
        await until(failed)
    await app.close()

    assert calls == [(5, timedelta(seconds=7))] * 5
