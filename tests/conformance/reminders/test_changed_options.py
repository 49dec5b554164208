"""Options of a rule that change while its reminders wait, on every backend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from duetime import Duetime
from duetime.channels.channel import NotSent
from tests.conformance.mailbox import HOUR, MINUTE, START, Mailbox
from tests.conftest import Backend

RULE = "-1h"
OTHERS: list[dict[str, Any]] = [
    {"expires": "never"},
    {"urgent": True},
    {"past": "send_now"},
    {"template": "short"},
    {"escalate": "10m"},
]


@pytest.fixture
def app(backend: Backend) -> Duetime:
    app = Duetime(backend.url)
    app.template("short", body="{{ subject }}")
    return app


@pytest.fixture
def mail(app: Duetime) -> Mailbox:
    return Mailbox(app, "mail")


async def put(app: Duetime, ref: str = "game", **options: Any) -> None:
    """Remind ann an hour after the start."""
    await app.subjects.put(
        ref, due=START + 2 * HOUR, remind=[{"rule": RULE} | options], recipients=["ann"]
    )


async def history(app: Duetime) -> list[tuple[str, str | None]]:
    """Of each reminder, its status and the code of its reason."""
    found = await app.reminders.list()
    return [(r.status, None if r.reason is None else r.reason.code) for r in found]


@pytest.mark.parametrize("options", OTHERS, ids=lambda options: next(iter(options)))
async def test_one_that_waits_for_quiet_hours_is_sent_with_the_new_options(
    app: Duetime, mail: Mailbox, options: dict[str, Any]
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:30-13:30")
        await put(app)
        await world.advance("65m")
        await put(app, **options)
        await world.advance("3h")
        [reminder] = await app.reminders.list()

    in_time = 65 * MINUTE if options.get("urgent") else 90 * MINUTE
    assert mail.times == [START + in_time]
    assert [reminder.status, reminder.rule.urgent] == ["sent", "urgent" in options]


async def test_one_that_became_urgent_says_so(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:30-13:30")
        await put(app)
        await world.advance("65m")
        await put(app, urgent=True)
        await world.advance("1s")
        [reminder] = await app.reminders.list()

    assert reminder.status == "sent"
    assert str(reminder.reason) == (
        "its wait ended early because its rule is urgent now; otherwise it waits until 13:30 (UTC) "
        "because of the quiet hours 12:30-13:30 of ann"
    )
    assert reminder.run_at == START + 65 * MINUTE


async def test_one_whose_channel_is_tried_again_is_sent(app: Duetime, mail: Mailbox) -> None:
    mail.failures = [NotSent("no answer", transient=True)]
    async with app.testing(now=START) as world:
        await app.scopes.put("club", remind=[RULE])
        await app.subjects.put("game", due=START + 2 * HOUR, scope="club", recipients=["ann"])
        await world.advance_to(START + HOUR)
        tried = len(mail.tried)
        await world.advance("1ms")
        await app.scopes.put("club", remind=[{"rule": RULE, "urgent": True}])
        await world.advance("1h")

        assert await history(app) == [("sent", None)]
    assert (tried, len(mail.tried)) == (1, 2)
    assert len(set(mail.tried)) == 1


async def test_one_that_waits_in_a_digest_is_sent(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        for number in range(3):
            await put(app, f"game:{number}")
        await world.advance("65m")
        for number in range(3):
            await put(app, f"game:{number}", expires="never")
        await world.advance("3h")

        found = await app.reminders.list()
    assert [reminder.status for reminder in found] == ["sent"] * 3
    assert len(mail.messages) == 2


async def test_one_that_waits_in_a_digest_and_becomes_urgent_is_sent_at_once(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        for number in range(4):
            await put(app, f"game:{number}", expires="never")
        await world.advance("65m")
        waiting = await app.reminders.list(status="armed")
        await put(app, waiting[0].subject, expires="never", urgent=True)
        await world.advance("1s")
        urgent = await app.reminders.get(waiting[0].id)
        others = [await app.reminders.get(one.id) for one in waiting[1:]]
        await world.advance("3h")
        in_the_end = await app.reminders.list()

    assert urgent.status == "sent"
    assert str(urgent.reason).startswith(
        "its wait ended early because its rule is urgent now; otherwise it waits for digest"
    )
    assert [one.status for one in others] == ["armed", "armed"]
    assert [one.status for one in in_the_end] == ["sent"] * 4
    assert [message.subject for message in mail.messages][1] == urgent.subject
    assert mail.times[:2] == [START + HOUR, START + 65 * MINUTE]
    assert [message.event for message in mail.messages][1:] == ["reminder.due", "reminder.digest"]


async def test_one_that_becomes_urgent_leaves_a_digest_of_two_to_the_other(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        for number in range(3):
            await put(app, f"game:{number}", expires="never")
        await world.advance("65m")
        waiting = await app.reminders.list(status="armed")
        await put(app, waiting[0].subject, expires="never", urgent=True)
        await world.advance("3h")
        found = await app.reminders.list()

    assert [one.status for one in found] == ["sent"] * 3
    assert [message.event for message in mail.messages] == ["reminder.due"] * 3
    assert mail.times == [START + HOUR, START + 65 * MINUTE, START + 2 * HOUR]


async def test_one_that_is_late_because_no_worker_ran_is_sent(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await put(app)
        await world.outage("90m")
        await put(app, expires="never")
        await world.advance("1h")

        assert await history(app) == [("sent", None)]
    assert len(mail.messages) == 1


async def test_one_that_is_snoozed_is_sent_when_the_snooze_ends(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await put(app)
        await world.advance("65m")
        [reminder] = await app.reminders.list()
        await app.reminders.snooze(reminder.id, "30m", by="ann")
        await world.advance("5m")
        await put(app, urgent=True)
        await world.advance("3h")

        assert await history(app) == [("sent", "reminder_snoozed")]
    assert mail.times == [START + HOUR, START + 95 * MINUTE]


async def test_an_occurrence_that_waits_is_sent(app: Duetime, mail: Mailbox) -> None:
    daily: dict[str, Any] = {"repeats": "0 14 * * *", "recipients": ["ann"]}
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:30-13:30")
        await app.subjects.put("game", remind=[RULE], **daily)
        await world.advance("65m")
        await app.subjects.put("game", remind=[{"rule": RULE, "expires": "never"}], **daily)
        await world.advance("3h")

        first = (await app.reminders.list(subject="game"))[0]
    assert first.status == "sent"
    assert mail.times == [START + 90 * MINUTE]


async def test_one_that_would_expire_while_it_waits_is_sent_before(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:30-13:50")
        await put(app)
        await world.advance("65m")
        await put(app, expires="20m")
        await world.advance("3h")

        assert await history(app) == [("sent", "sent_in_quiet_hours")]
    assert mail.times == [START + 65 * MINUTE]


async def test_one_that_has_expired_under_the_new_options_is_not_sent(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:30-13:50")
        await put(app)
        await world.advance("65m")
        await put(app, expires="2m")
        await world.advance("3h")
        [reminder] = await app.reminders.list()

    assert reminder.status == "expired"
    assert mail.messages == []


async def test_one_whose_time_is_to_come_is_armed_anew(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await put(app)
        await put(app, expires=timedelta(minutes=5))
        await world.advance("3h")

        assert sorted(await history(app)) == [("sent", None), ("superseded", "rule_removed")]
    assert mail.times == [START + HOUR]
