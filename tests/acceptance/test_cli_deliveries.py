"""`duetime reminders deliveries`, `ack` and `snooze`, as people and scripts use them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from duetime import Duetime, Sent
from duetime.channels.channel import Message, NotSent
from duetime.domain.reminders.reminder import ReminderStatusLike
from tests.acceptance.test_cli_reminders import duetime, rows
from tests.conftest import Backend
from tests.waiting import until

on_both = pytest.mark.parametrize("backend", ["postgres18", "sqlite"], indirect=True)


class Box:
    def __init__(self, name: str, failure: NotSent | None = None) -> None:
        self.name = name
        self.failure = failure

    async def send(self, message: Message) -> Sent:
        if self.failure is not None:
            raise self.failure
        return Sent(f"{self.name}-{message.recipient}")

    async def close(self) -> None: ...


@on_both
async def test_deliveries_are_shown_acknowledged_and_snoozed(
    backend: Backend, app: Duetime
) -> None:
    app.add_channel(Box("push", NotSent("no such token", transient=False)))
    app.add_channel(Box("mail"))
    due = datetime.now(UTC) + timedelta(hours=1)
    rule = {"rule": "-2h", "past": "send_now"}

    async def all_sent() -> bool:
        return len(await app.reminders.list(status="sent")) == 2

    async with app.worker():
        await app.subjects.put("game", due=due, remind=rule, recipients=["ann", "bob"])
        await until(all_sent)
    ids = {one.recipient: str(one.id) for one in await app.reminders.list()}

    table = duetime(backend.url, "reminders", "deliveries", ids["ann"])
    plain = duetime(backend.url, "reminders", "deliveries", ids["ann"], "--json")
    explained = duetime(backend.url, "reminders", "explain", ids["ann"])
    acknowledged = duetime(backend.url, "reminders", "acknowledge", ids["ann"], "--by", "ann")
    again = duetime(backend.url, "reminders", "acknowledge", "--external-id", "mail-ann", "--json")
    snoozed = duetime(backend.url, "reminders", "snooze", ids["bob"], "10m", "--by", "bob")
    preview = duetime(backend.url, "reminders", "preview")
    events = [(event.action, event.actor) for event in await app.audit.list(entity="subject:game")]

    assert rows(table)[0] == ["CHANNEL", "STATUS", "ATTEMPTS", "AT", "THERE", "REMARKS"]
    assert [row[:3] for row in rows(table)[1:]] == [
        ["push", "failed", "1"],
        ["mail", "sent", "1"],
    ]
    assert rows(table)[1][-1] == "no such token"
    assert [(one["channel"], one["attempts"]) for one in plain.json] == [("push", 1), ("mail", 1)]
    assert "Before that, push failed: no such token." in explained.out
    assert acknowledged.out == f"Reminder {ids['ann']} is acknowledged.\n"
    assert again.json == {"reminder": "mail-ann", "new": False}
    assert re.fullmatch(rf"Reminder {ids['bob']} will be sent again at \S+\.\n", snoozed.out)
    assert "bob" in preview.out
    assert events[:2] == [("reminder.snoozed", "bob"), ("reminder.acknowledged", "ann")]


@on_both
async def test_a_reminder_that_failed_is_sent_again(backend: Backend, app: Duetime) -> None:
    box = Box("mail", NotSent("no such address", transient=False))
    app.add_channel(box)
    due = datetime.now(UTC) + timedelta(hours=1)
    rule = {"rule": "-2h", "past": "send_now"}

    async def is_there(status: ReminderStatusLike) -> bool:
        return bool(await app.reminders.list(status=status))

    async with app.worker():
        await app.subjects.put("game", due=due, remind=rule, recipients=["ann"])
        await until(lambda: is_there("failed"))
    [failed] = await app.reminders.list()
    box.failure = None
    requeued = duetime(backend.url, "jobs", "requeue", str(failed.job_id))
    resent = duetime(backend.url, "reminders", "resend", str(failed.id), "--by", "eve")
    twice = duetime(backend.url, "reminders", "resend", str(failed.id))
    async with app.worker():
        await until(lambda: is_there("sent"))
    again = duetime(backend.url, "reminders", "resend", str(failed.id), "--json")
    completed = duetime(backend.url, "subjects", "complete", "game", "--reason", "over")
    [event, *_] = await app.audit.list(entity="subject:game")

    assert requeued.code == 1
    assert f"`duetime reminders resend {failed.id}`" in requeued.err
    assert re.fullmatch(rf"Reminder {failed.id} is due now, as job \d+\.\n", resent.out)
    assert (twice.code, "is armed" in twice.err) == (1, True)
    assert (again.json["status"], again.json["key"]) == ("armed", f"{failed.key}_1")
    assert completed.code == 0
    assert (event.action, event.reason) == ("subject.complete", "over")


@on_both
async def test_reminders_that_failed_are_sent_again_by_a_filter(
    backend: Backend, app: Duetime
) -> None:
    box = Box("mail", NotSent("no such address", transient=False))
    app.add_channel(box)
    due = datetime.now(UTC) + timedelta(hours=1)
    rule = {"rule": "-2h", "past": "send_now"}

    async def failed() -> bool:
        return len(await app.reminders.list(status="failed")) == 3

    async with app.worker():
        for ref, who in (("game:1", "ann"), ("game:2", "bob"), ("game:3", "bob")):
            await app.subjects.put(ref, due=due, remind=rule, recipients=[who])
        await until(failed)
    [third] = await app.reminders.list(subject="game:3")
    await app.subjects.complete("game:3")
    both = duetime(backend.url, "reminders", "resend", "1", "--status", "failed")
    one = duetime(backend.url, "reminders", "resend", "--recipient", "ann", "--yes")
    rest = duetime(backend.url, "reminders", "resend", "--within", "1h", "--yes", "--json")
    none = duetime(backend.url, "reminders", "resend", "--status", "expired", "--yes")

    assert (both.code, "Give either" in both.err) == (2, True)
    assert one.out == "1 reminder sent again.\n"
    assert len(rest.json["resent"]) == 1
    assert list(rest.json["refused"]) == [str(third.id)]
    assert none.out == "No reminders match (expired). Nothing changed.\n"


@on_both
async def test_what_cannot_be_done_says_why(backend: Backend, app: Duetime) -> None:
    app.add_channel(Box("mail"))
    due = datetime.now(UTC) + timedelta(hours=9)
    await app.subjects.put("game", due=due, remind="-1h", recipients=["ann"])
    [reminder] = await app.reminders.list()
    known = str(reminder.id)

    for arguments, message, code in (
        (("acknowledge", known), f"Reminder {known} is armed: only one that was sent", 1),
        (("snooze", known, "10m"), "only one that was sent can be snoozed", 1),
        (("snooze", known, "soon"), "soon", 2),
        (("acknowledge", "999"), "There is no reminder 999", 1),
        (("acknowledge", "--external-id", "x"), "No delivery has the external id 'x'", 1),
        (("acknowledge",), "Give either", 2),
        (("acknowledge", known, "--external-id", "x"), "Give either", 2),
        (("deliveries", "x"), "not an integer", 2),
    ):
        answer = duetime(backend.url, "reminders", *arguments)

        assert (answer.code, message in answer.err) == (code, True), answer.err
    none = duetime(backend.url, "reminders", "deliveries", known)

    assert none.out == f"No channel has tried to send reminder {known}.\n"
