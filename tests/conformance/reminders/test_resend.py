"""Reminders that have ended are sent again on request, on every backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from duetime import Context, Duetime, Reminder, Retry, Sent, Skip
from duetime.channels.channel import NotSent
from duetime.errors import InvalidInput, ReminderNotFound
from tests.conformance.reminders.test_deliveries import LASTS, Box
from tests.conftest import Backend

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url, retry_base="60s")


async def put(app: Duetime, **more: Any) -> str:
    options: dict[str, Any] = {"due": START + 2 * HOUR, "remind": "-1h", "recipients": ["ann"]}
    return await app.subjects.put("game", **(options | more))


async def only(app: Duetime) -> Reminder:
    [reminder] = await app.reminders.list(subject="game")
    return reminder


async def test_a_failed_reminder_is_sent_again_under_its_key(app: Duetime) -> None:
    box = Box(app, "push", LASTS)
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        failed = await only(app)
        armed = await app.reminders.resend(failed, by="eve")
        await world.advance("1s")
        sent = await only(app)
        [delivery] = await app.reminders.deliveries(sent)
        [event] = [
            e for e in await app.audit.list(entity="subject:game") if e.action == "reminder.resent"
        ]

    assert (failed.status, armed.status, sent.status) == ("failed", "armed", "sent")
    assert armed.job_id != failed.job_id
    assert [m.key for m in box.asked] == [failed.key, failed.key]
    assert box.to == [("ann", 65)]
    assert (delivery.status, delivery.attempts, delivery.error) == ("sent", 1, None)
    assert event.actor == "eve"
    assert event.before == {"status": "failed", "reason": msgspec.to_builtins(failed.reason)}


async def test_one_that_failed_has_all_its_tries_again(app: Duetime) -> None:
    passes = NotSent("no answer", transient=True)
    box = Box(app, "push", *[passes] * 3, tries=2, max_attempts=5)
    async with app.testing(now=START) as world:
        await put(app, remind={"rule": "-1h", "expires": "never"})
        await world.advance("70m")
        failed = await only(app)
        await app.reminders.resend(failed.id)
        await world.advance("10m")
        sent = await only(app)

    assert (failed.status, sent.status) == ("failed", "sent")
    assert len(box.asked) == 4


@pytest.mark.parametrize("status", ["skipped", "expired"])
async def test_skipped_and_expired_ones_are_sent_on_request(app: Duetime, status: str) -> None:
    sent: list[str] = []
    skips = [Skip("not today")] if status == "skipped" else []

    @app.on_reminder
    async def send(reminder: Reminder) -> Any:
        if skips:
            return skips.pop()
        sent.append(reminder.key)
        return Sent("ext")

    async with app.testing(now=START) as world:
        due = START + (2 * HOUR if status == "skipped" else -HOUR)
        await put(app, due=due, remind={"rule": "-1h", "past": "send_now"})
        await world.advance("65m")
        ended = await only(app)
        await app.reminders.resend(ended)
        await world.advance("1s")
        last = await only(app)

    assert (ended.status, last.status) == (status, "sent")
    assert sent == [ended.key]


async def test_what_was_taken_is_another_message(app: Duetime) -> None:
    box = Box(app, "push")
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        first = await only(app)
        await app.receipt("push-1", "bounced", reason="no such phone")
        await world.advance("1s")
        bounced = await only(app)
        await app.reminders.resend(bounced)
        await world.advance("1s")
        again = await only(app)
        await app.reminders.resend(again)
        await world.advance("1s")
        rounds = [(d.round, d.status.value) for d in await app.reminders.deliveries(again.id)]

    assert (first.status, bounced.status, again.status) == ("sent", "failed", "sent")
    assert [m.key for m in box.asked] == [
        first.key,
        f"{first.key}_1",
        f"{first.key}_2",
    ]
    assert rounds == [(0, "bounced"), (1, "sent"), (2, "sent")]


@pytest.mark.parametrize("change", ["complete", "move", "recipients", "rule"])
async def test_what_is_no_longer_true_is_refused(app: Duetime, change: str) -> None:
    box = Box(app, "push", LASTS)
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        failed = await only(app)
        match change:
            case "complete":
                await app.subjects.complete("game")
            case "move":
                await put(app, due=START + 9 * HOUR)
            case "recipients":
                await put(app, recipients=["bob"])
            case "rule":
                await put(app, remind="-5m")
        with pytest.raises(InvalidInput, match="no longer true"):
            await app.reminders.resend(failed)
        await world.advance("10m")

    assert box.messages == []


async def test_a_subject_that_changes_after_the_request_withdraws_it(app: Duetime) -> None:
    box = Box(app, "push", LASTS)
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        await app.reminders.resend(await only(app))
        await app.subjects.complete("game", reason="called off")
        await world.advance("10m")
        reminder = await only(app)

    assert box.messages == []
    assert (reminder.status, str(reminder.reason)) == (
        "cancelled",
        "the subject was completed: called off",
    )


async def test_what_is_armed_withdrawn_or_not_there_is_refused(app: Duetime) -> None:
    Box(app, "push")
    async with app.testing(now=START):
        await put(app)
        armed = await only(app)
        with pytest.raises(
            InvalidInput, match=f"is armed: it is sent at .*, as job {armed.job_id}"
        ):
            await app.reminders.resend(armed)
        await put(app, due=START + 9 * HOUR)
        with pytest.raises(InvalidInput, match="is superseded"):
            await app.reminders.resend(armed)
        with pytest.raises(ReminderNotFound):
            await app.reminders.resend(999)


async def test_a_twin_that_was_sent_is_named(app: Duetime) -> None:
    """Its subject is closed and opened again while it is being sent."""
    sent: list[int] = []

    @app.on_reminder
    async def send(reminder: Reminder, ctx: Context) -> Sent | Retry:
        if ctx.attempt == 1:
            return Retry("busy", after="60s")
        await app.subjects.complete("game")
        await put(app)
        sent.append(reminder.id)
        return Sent("ext")

    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("62m")
        [first, second] = sorted(await app.reminders.list(subject="game"), key=lambda r: r.id)
        with pytest.raises(InvalidInput, match=f"was sent as reminder {first.id}"):
            await app.reminders.resend(second)
        await world.advance("1h")

    assert (first.status, second.status) == ("sent", "skipped")
    assert sent == [first.id]


async def test_requeue_of_a_reminders_job_says_what_to_do(app: Duetime) -> None:
    Box(app, "push", LASTS)

    @app.task(max_attempts=1)
    async def fails() -> None:
        raise RuntimeError("no")

    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        other = await fails.enqueue()
        await world.drain()
        failed = await only(app)
        assert failed.job_id is not None
        with pytest.raises(InvalidInput, match=f"duetime reminders resend {failed.id}"):
            await app.jobs.requeue(failed.job_id)
        with pytest.raises(InvalidInput, match=r"app\.reminders\.resend"):
            await app.jobs.requeue_many(task="duetime.remind")
        requeued = await app.jobs.requeue_many()
        job = await app.jobs.get(failed.job_id)

    assert requeued.jobs == [other.id]
    assert job.state == "dead"
    assert other.id != failed.job_id


# What still applies to one that is too late


async def test_one_that_is_too_late_waits_for_the_end_of_quiet_hours(app: Duetime) -> None:
    box = Box(app, "push", LASTS)
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="22:00-07:00")
        await put(app, due=START + 12 * HOUR)
        await world.advance("23h")
        await app.reminders.resend(await only(app))
        await world.advance("7h")
        waiting = await only(app)
        await world.advance("5h")
        sent = await only(app)

    assert (waiting.status, sent.status) == ("armed", "sent")
    assert waiting.reason is not None
    assert waiting.reason.code == "quiet_hours"
    assert box.to == [("ann", 31 * 60)]


async def test_those_that_are_too_late_go_out_in_one_digest(app: Duetime) -> None:
    box = Box(app, "push", *[LASTS] * 4)
    async with app.testing(now=START) as world:
        for n in range(4):
            await app.subjects.put(
                f"game:{n}", due=START + 2 * HOUR, remind="-1h", recipients=["ann"]
            )
        await world.advance("5h")
        await app.recipients.put("ann", max_per_hour=1)
        before = len(world.ran)
        resent = await app.reminders.resend_many()
        await world.advance("3h")
        attempts = len(world.ran) - before
        statuses = {one.status.value for one in await app.reminders.list()}

    assert len(resent.reminders) == 4
    assert statuses == {"sent"}
    assert [message.title for message in box.messages][1:] == ["3 reminders"]
    assert box.times == [5 * 60, 6 * 60]
    assert attempts < 20


async def test_one_that_is_too_late_and_bounces_goes_to_the_next_channel(app: Duetime) -> None:
    push, mail = Box(app, "push"), Box(app, "mail")
    async with app.testing(now=START) as world:
        await put(app, due=START - HOUR, remind={"rule": "-1h", "past": "send_now"})
        await app.reminders.resend(await only(app))
        await world.advance("1s")
        await app.receipt("push-1", "bounced")
        await world.advance("1s")
        sent = await only(app)

    assert (len(push.messages), len(mail.messages)) == (1, 1)
    assert (sent.status, sent.channel) == ("sent", "mail")


@pytest.mark.parametrize("failed_at", ["once", "in_a_later_round"])
async def test_one_that_failed_everywhere_and_bounces_goes_to_the_next_channel(
    app: Duetime, failed_at: str
) -> None:
    """All its channels are tried anew, also those after the one that accepts it first."""
    push, mail = Box(app, "push", LASTS), Box(app, "mail", LASTS)
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        if failed_at == "in_a_later_round":
            await app.reminders.resend(await only(app))
            await world.advance("1s")
            await app.reminders.resend(await only(app))
            push.failures, mail.failures = [LASTS], [LASTS]
            await world.advance("1s")
        failed = await only(app)
        await app.reminders.resend(failed)
        await world.advance("1s")
        accepted = await only(app)
        why = str(await app.reminders.explain(accepted.id))
        await app.receipt(f"push-{len(push.messages)}", "bounced")
        await world.advance("1s")
        sent = await only(app)
        deliveries = [
            (one.channel, one.status.value, one.attempts)
            for one in await app.reminders.deliveries(sent)
            if one.round == sent.snoozes
        ]

    assert (failed.status, accepted.channel) == ("failed", "push")
    assert "mail" not in why, "mail has not been tried since"
    assert (sent.status, sent.channel) == ("sent", "mail")
    assert deliveries == [("push", "bounced", 1), ("mail", "sent", 1)]


# Many at once


async def test_many_are_sent_again_by_what_they_have_in_common(app: Duetime) -> None:
    box = Box(app, "push", *[LASTS] * 9)
    async with app.testing(now=START) as world:
        await app.scopes.put("guild", remind="-1h")
        await app.scopes.put("channel", parent="guild")
        await app.subjects.put("a", due=START + 2 * HOUR, scope="channel", recipients=["ann"])
        await app.subjects.put("b", due=START + 2 * HOUR, scope="channel", recipients=["bob"])
        await app.subjects.put("c", due=START + 2 * HOUR, remind="-1h", recipients=["ann"])
        await app.subjects.put("d", due=START + 5 * HOUR, remind="-1h", recipients=["ann"])
        await world.advance("5h")
        box.failures.clear()
        found = {one.subject: one.id for one in await app.reminders.list(status="failed")}
        to_bob = await app.reminders.resend_many(recipient="bob", scope="guild")
        late = await app.reminders.resend_many(within="90m")
        await app.subjects.complete("c")
        rest = await app.reminders.resend_many(by="eve")
        none = await app.reminders.resend_many()
        await world.advance("1m")
        statuses = {one.subject: one.status.value for one in await app.reminders.list()}
        [event, *_] = [
            e for e in await app.audit.list(entity="subject:a") if e.action == "reminder.resent"
        ]
        with pytest.raises(InvalidInput, match="Use one of: failed, expired, skipped"):
            await app.reminders.resend_many(status="sent")  # type: ignore[arg-type]

    assert sorted(found) == ["a", "b", "c", "d"]
    assert (to_bob.reminders, late.reminders) == ([found["b"]], [found["d"]])
    assert rest.reminders == [found["a"]]
    assert list(rest.refused) == [found["c"]]
    assert "no longer true" in rest.refused[found["c"]]
    assert (none.reminders, list(none.refused)) == ([], [found["c"]])
    assert statuses == {"a": "sent", "b": "sent", "c": "failed", "d": "sent"}
    assert event.actor == "eve"
