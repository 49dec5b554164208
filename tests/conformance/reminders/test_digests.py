"""At most so many messages per hour, and the rest in a digest, on every backend."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Context, Digest, Duetime, Reminder, Retry, Sent, Skip
from duetime.api.registration import Registrations
from duetime.channels.channel import NotSent
from duetime.domain.reminders.digest import MAX_REMINDERS
from duetime.domain.reminders.recipient import Recipient
from duetime.domain.reminders.reminder import ReminderStatus
from duetime.domain.reminders.rule_text import parse_rule
from duetime.errors import InvalidInput
from duetime.reminders.messages import Messages
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.reminders.unsent_digests import UnsentDigests
from duetime.storage.sqlite.store import SqliteStore
from duetime.storage.store import Statements, Store
from duetime.testing.world import World
from tests.conformance.mailbox import HOUR, MINUTE, START, Mailbox, explain, put_games
from tests.conftest import Backend, query


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


@pytest.fixture
def mail(app: Duetime) -> Mailbox:
    return Mailbox(app, "mail")


# At most so many per hour


@pytest.mark.parametrize("verb", ["snooze", "resend"])
async def test_what_is_sent_again_takes_another_place(
    app: Duetime, mail: Mailbox, verb: str
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=2)
        await put_games(app, 2)
        await world.advance("1h1m")
        assert len(mail.messages) == 2
        [first] = await app.reminders.list(subject="game:0")
        if verb == "snooze":
            await app.reminders.snooze(first.id, "5m")
        else:
            await app.reminders.resend(first.id)
        await world.advance("30m")
        within = len(mail.messages)
        await world.advance("1h")

    assert within == 2
    assert mail.subjects[2:] == ["game:0"]


async def test_an_hour_of_the_limit_has_60_minutes(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        for name, after in {"first": 1.0, "waits": 1.9, "at once": 3.1}.items():
            await app.subjects.put(
                name, due=START + after * HOUR, remind=["0s"], recipients=["ann"]
            )
        await world.advance("5h")

    assert mail.subjects == ["first", "waits", "at once"]
    assert mail.hours == [1.0, 2.0, 3.1]


async def test_what_is_more_than_the_limit_goes_out_in_one_digest(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=2, channels={"mail": "ann@x.org"})
        await put_games(app, 6, data={"title": "Catan"})
        await world.advance("1h30m")
        waits = await explain(app, "game:5")
        await world.advance("3h")
        why = await explain(app, "game:5")
        found = await app.reminders.list(status="sent", limit=1000)
        deliveries = [one for game in found for one in await app.reminders.deliveries(game.id)]
        audit = await app.audit.list(entity="subject:game:5")
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
    assert "was sent by mail at 2026-03-02T14:00:00Z, under the id mail-3." in why
    assert "It went out in digest 1, with 3 more." in why
    assert len(found) == 6
    assert [one.key for one in deliveries].count(digest.key) == 4
    assert {one.status.value for one in deliveries} == {"sent"}
    assert audit[0].after["digest"] == digest.key
    assert {job.state.value for job in jobs} == {"completed"}


async def test_a_digest_has_a_template_of_its_own(app: Duetime, mail: Mailbox) -> None:
    app.digest_template("all")
    app.template(
        "all",
        title="{{ reminders | length }} for {{ recipient }}",
        body="{% for one in reminders %}{{ one.data.n }} {{ one.due | local(one.tz, '%H:%M') }} "
        "{{ one.text }};{% endfor %}{{ text }}",
    )
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1, tz="Asia/Tokyo")
        await put_games(app, 3, data={"n": 7})
        await world.advance("3h")

    _, digest = mail.messages
    assert digest.title == "2 for ann"
    first, _, plain = digest.body.split(";")
    assert first == "7 22:00 game:1 was due 1 hour ago (Mon 22:00, Asia/Tokyo)"
    assert plain.startswith("- Mon 2026-03-02 22:00 (Asia/Tokyo)  game:1\n")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (None, "there is no template 'all' here: add it with app.template('all', …)"),
        ("{{ gone }}", "its template 'all' cannot be filled: "),
    ],
)
async def test_a_digest_whose_template_cannot_be_filled_fails_at_once(
    app: Duetime, mail: Mailbox, body: str | None, why: str
) -> None:
    app.digest_template("all")
    if body is not None:
        app.template("all", body=body)
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 3)
        await world.advance("3h")
        found = await app.reminders.list(status="failed", limit=1000)

    assert len(mail.tried) == 1
    assert len(found) == 2
    assert {str(one.reason).partition("failed: ")[2][: len(why)] for one in found} == {why}


def test_digests_have_one_template(app: Duetime) -> None:
    app.digest_template("all")
    app.digest_template("all")

    with pytest.raises(InvalidInput, match="The template of digests is registered twice"):
        app.digest_template("some")
    with pytest.raises(InvalidInput, match="template"):
        app.digest_template("")


def test_the_largest_digest_is_not_too_much_for_a_template() -> None:
    """A thousand reminders, each with its line."""
    messages = Messages(Registrations())
    messages.add("all", body="{% for one in reminders %}{{ one.title }}\n{% endfor %}")
    messages.use_for_digests("all")
    ann = Recipient(ref="ann")
    game = Reminder(
        id=1, subject="game", scope=None, due_at=START, rule=parse_rule("0s"), time=START,
        recipient="ann", run_at=START, status=ReminderStatus.ARMED, reason=None, job_id=1,
        tz="UTC", data={}, channel=None, external_id=None, delivery=None, ended_at=None,
    )  # fmt: skip
    digest = Digest(id=1, key="k", recipient="ann", to=ann, reminders=(game,) * MAX_REMINDERS)

    assert messages.make_digest(digest, address=None, now=START).body.count("game") == 1000


async def test_a_digest_counts_as_one_and_others_wait_for_the_next(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
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
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 3)
        await world.outage("2h1m")
        # Sent late, at 14:01; then all is due at once again, at 15:01.
        await app.subjects.put(
            "new", due=START + 3 * HOUR + MINUTE, remind=["0s"], recipients=["ann"]
        )
        await world.advance("9h")

    sizes = [len(m.data.get("reminders", [1])) for m in mail.messages]
    assert sizes == [1, 3]


async def test_a_reminder_joins_a_digest_that_is_overdue(app: Duetime, mail: Mailbox) -> None:
    """Workers were down, and other jobs come before the digest's."""
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 2)
        await world.advance("1h1m")
        [digest] = await app.jobs.list(task="duetime.digest")
        await app.jobs.reprioritise(digest.id, 9)
        await app.jobs.reschedule(digest.id, START)
        rule = {"rule": "-1h", "past": "send_now"}
        await app.subjects.put("late", due=START + 2 * HOUR, remind=[rule], recipients=["ann"])
        await world.advance("2h")
        [late] = await app.reminders.list(subject="late")
        assert late.job_id is not None
        history = (await app.jobs.get(late.job_id)).history

    assert late.status is ReminderStatus.SENT
    assert {one.outcome for one in history} <= {"snoozed", "completed", "cancelled"}


async def test_what_was_withdrawn_is_not_in_the_digest(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 5)
        await world.advance("1h30m")
        await app.subjects.complete("game:2")
        await app.subjects.delete("game:3")
        await world.advance("3h")

    assert [one["subject"] for one in mail.messages[1].data["reminders"]] == ["game:1", "game:4"]
    assert len(mail.messages) == 2


async def test_a_stale_reminder_is_not_in_the_digest(app: Duetime, mail: Mailbox) -> None:
    """Its subject has changed, and a worker is yet to arm it again."""
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h30m")
        store = await app.store()
        # A moment before it goes out, an hour after the first message.
        await store.transact(_mark_stale(store, "game:2", after=3597))
        await world.advance("3h")

    assert [one["subject"] for one in mail.messages[1].data["reminders"]] == ["game:1", "game:3"]


async def test_a_stale_reminder_is_not_sent_before_its_subject_is_armed_again(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await put_games(app, 1)
        store = await app.store()
        await store.transact(_mark_stale(store, "game:0", after=-1))
        await world.advance("1h1s")
        before = len(mail.messages)
        await world.advance("1h")

    assert before == 0
    assert len(mail.messages) == 1


def _mark_stale(store: Store, subject: str, *, after: int) -> Statements:
    """As a change of a tracked row does, so many seconds after the due time."""
    if isinstance(store, PostgresStore):
        table, later = f"{store.schema}.subject", f"{after} * interval '1 second'"
    else:
        assert isinstance(store, SqliteStore)
        table, later = f"{store.prefix}subject", str(after * 1_000_000)
    yield f"update {table} set rearm_at = due_at + {later} where ref = '{subject}'", ()


async def test_what_expired_is_not_in_the_digest(app: Duetime, mail: Mailbox) -> None:
    """No worker was there in time."""
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 3)
        soon = {"rule": "0s", "expires": "20m"}
        await app.subjects.put("soon over", due=START + HOUR, remind=[soon], recipients=["ann"])
        await world.advance("1h5m")
        await world.outage("2h")
        await world.advance("1h")

    assert [one["subject"] for one in mail.messages[1].data["reminders"]] == ["game:1", "game:2"]


async def test_the_only_one_left_goes_as_itself(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 3)
        await world.advance("1h30m")
        await app.subjects.complete("game:2")
        await world.advance("3h")
        [reminder] = await app.reminders.list(subject="game:1")

    assert mail.subjects == ["game:0", "game:1"]
    assert mail.messages[1].key == reminder.key
    assert mail.hours == [1.0, 2.0]


async def test_a_digest_goes_out_before_one_of_it_would_expire(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4, "-30m")
        await world.advance("5h")
        found = await app.reminders.list(limit=1000)
        why = await explain(app, "game:3")

    assert {one.status.value for one in found} == {"sent"}
    assert [len(m.data.get("reminders", [1])) for m in mail.messages] == [1, 3]
    assert mail.times[1] == START + HOUR - MINUTE + timedelta(seconds=1)
    assert "beyond 1 in an hour, before one would have expired" in why


async def test_the_only_one_of_a_digest_says_that_it_goes_beyond_the_limit(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 2, "-30m")
        await world.advance("5h")
        [reminder] = await app.reminders.list(subject="game:1")
        why = await explain(app, "game:1")

    assert mail.subjects == ["game:0", "game:1"]
    assert mail.messages[1].key == reminder.key
    assert mail.times[1] < START + HOUR + timedelta(seconds=1)
    assert (
        "It was sent although ann gets at most 1 in an hour: it would have expired at "
        "2026-03-02T13:00:01Z." in why
    )


async def test_urgent_ones_are_neither_limited_nor_counted(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4, {"rule": "0s", "urgent": True})
        await app.subjects.put("plain", due=START + 1.5 * HOUR, remind=["0s"], recipients=["ann"])
        await world.advance("1h45m")

    assert len(mail.messages) == 5


async def test_a_digest_that_fails_is_tried_again_with_the_same_key(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h30m")
        mail.failures = [NotSent("busy", transient=True, retry_after=10 * MINUTE)]
        await world.advance("3h")

    assert mail.tried[1] == mail.tried[2]
    assert len(set(mail.tried)) == 2
    assert len(mail.messages) == 2
    assert len(mail.messages[1].data["reminders"]) == 3


async def test_a_digest_that_fails_for_good_fails_all_that_is_in_it(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h30m")
        mail.failures = [NotSent("no such address", transient=False)] * 9
        await world.advance("3h")
        found = await app.reminders.list(status="failed", limit=1000)
        why = await explain(app, "game:2")
        jobs = [await app.jobs.get(one.job_id) for one in found if one.job_id]

    told = "it was to go out in digest 1, which failed: mail failed: no such address"
    assert len(found) == 3
    assert {str(one.reason) for one in found} == {told}
    # At once, not when each of them looks again.
    assert {one.ended_at for one in found} == {START + 2 * HOUR}
    assert told in why
    assert {job.state.value for job in jobs} == {"superseded"}
    assert len(mail.tried) == 2


LADDER = {"rule": "0s", "escalate": "10m"}


async def _fail_a_digest(app: Duetime, mail: Mailbox, world: World, count: int = 3) -> None:
    """Games of ann, then bob: ann is told the first one, and sees it; the others fail."""
    await app.recipients.put("ann", max_per_hour=1)
    await put_games(app, count, LADDER, recipients=["ann", "bob"])
    await world.advance("1h1m")
    [first, *_] = await app.reminders.list(subject="game:0")
    await app.reminders.acknowledge(first)
    mail.failures = [NotSent("no such address", transient=False)]
    await world.advance("1h")


async def test_what_is_in_a_digest_that_fails_escalates_at_once(
    app: Duetime, mail: Mailbox
) -> None:
    async with app.testing(now=START) as world:
        await _fail_a_digest(app, mail, world)
        ann, bob = await app.reminders.list(subject="game:2")
        audit = [event.action for event in await app.audit.list(entity="subject:game:2")]

    assert [(m.recipient, m.subject) for m in mail.messages] == [
        ("ann", "game:0"), ("bob", "game:1"), ("bob", "game:2"),
    ]  # fmt: skip
    assert mail.hours[1:] == [2.0, 2.0]
    assert (ann.status, bob.status) == ("failed", "sent")
    assert str(bob.reason) == f"ann was not reached: {ann.reason}"
    assert audit == ["reminder.sent", "reminder.escalated", "subject.put"]


async def test_a_large_digest_that_fails_ends_in_parts(
    app: Duetime, mail: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.storage.reminders.unsent_digests._PART", 2)
    async with app.testing(now=START) as world:
        await _fail_a_digest(app, mail, world, 6)
        failed = await app.reminders.list(status="failed", limit=1000)

    assert len(failed) == 5
    assert [m.recipient for m in mail.messages] == ["ann", *["bob"] * 5]


@pytest.mark.parametrize("lost", [False, True], ids=["cancelled", "lost"])
async def test_a_digest_whose_job_is_taken_away_ends_with_it(
    app: Duetime, mail: Mailbox, backend: Backend, lost: bool
) -> None:
    """While it waits to be tried again: any worker finds it, whoever took it away."""
    async with app.testing(now=START, isolated=False) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 3, LADDER, recipients=["ann", "bob"])
        await world.advance("1h30m")
        told = len(mail.messages)
        mail.failures = [NotSent("busy", transient=True, retry_after=10 * MINUTE)]
        await world.advance("31m")
        [job] = await app.jobs.list(task="duetime.digest")
        if lost:
            forget(backend, job.id)
        else:
            await app.jobs.cancel(job.id, reason="no need")
        await world.advance("2m")
        found = [one for one in await app.reminders.list(limit=1000) if one.subject != "game:0"]

    how = "failed: its job is gone" if lost else "was cancelled: no need"
    ann = [one for one in found if one.recipient == "ann"]
    assert {str(one.reason) for one in ann} == {f"it was to go out in digest 1, which {how}"}
    assert {one.status.value for one in ann} == {"failed" if lost else "skipped"}
    assert [m.recipient for m in mail.messages[told:]] == ["bob", "bob"]


def forget(backend: Backend, job_id: int) -> None:
    """Delete a job that waits, as someone with SQL might, or a backup that was restored."""
    statements = [
        f"delete from duetime.{table} where {column} = {job_id}"
        for table, column in (("due", "job_id"), ("attempt", "job_id"), ("job", "id"))
    ]
    if backend.is_postgres:
        with psycopg.connect(backend.url) as connection:
            for statement in statements:
                connection.execute(statement)
        return
    path = backend.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=30)) as file, file:
        for statement in statements:
            file.execute(statement.replace("duetime.", "duetime_"))


async def test_of_workers_that_end_a_digest_at_once_one_escalates(
    app: Duetime, mail: Mailbox, backend: Backend
) -> None:
    async with app.testing(now=START, isolated=False) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4, LADDER, recipients=["ann", "bob"])
        await world.advance("1h30m")
        mail.failures = [NotSent("busy", transient=True, retry_after=10 * MINUTE)]
        await world.advance("31m")
        [job] = await app.jobs.list(task="duetime.digest")
        forget(backend, job.id)
        others = [Duetime(backend.url) for _ in range(3)]

        async def end(one: Duetime) -> None:
            store = await one.store()
            ends = UnsentDigests(store.dialect)
            for digest in await store.transact(ends.failed(), reads=True):
                while await store.transact(ends.fail(digest)):
                    pass

        await asyncio.gather(*(end(one) for one in others * 3))
        for one in others:
            await one.close()
        bob = await app.reminders.list(status="armed", limit=1000)
        left = await app.jobs.list(task="duetime.digest", state="pending")
        escalated = [
            event.action
            for n in (1, 2, 3)
            for event in await app.audit.list(entity=f"subject:game:{n}")
            if event.action == "reminder.escalated"
        ]

    assert sorted((one.subject, one.recipient) for one in bob) == [
        (f"game:{n}", "bob") for n in (1, 2, 3)
    ]
    assert len(escalated) == 3
    assert left == []


async def test_a_limit_that_is_taken_back_lets_all_out(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h30m")
        await app.recipients.put("ann")
        await world.advance("1m")
        found = await app.reminders.list(status="sent", limit=1000)

    assert len(found) == 4
    assert mail.hours[1] == pytest.approx(1.5, abs=0.01)


async def test_muting_all_ends_what_waits_in_a_digest(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h30m")
        await app.recipients.mute("ann", "all")
        await world.advance("3h")
        found = await app.reminders.list(status="skipped", limit=1000)

    assert {str(one.reason) for one in found} == {"ann has muted everything"}
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
        await app.recipients.put("ann", max_per_hour=2, quiet="13:10-16:00")
        await put_games(app, 5)
        await world.advance("9h")
        found = await app.reminders.list(limit=1000)

    [digest] = handler.digests
    assert len(handler.seen) == 2
    assert [one.subject for one in digest.reminders] == ["game:2", "game:3", "game:4"]
    assert {(one.status.value, one.channel) for one in found} == {("sent", "handler")}
    assert found[0].external_id == "all"


async def test_a_handler_of_digests_can_retry_and_skip(app: Duetime) -> None:
    handler = Handler(app, digests=True)

    async def answer(what: Any) -> Any:
        if isinstance(what, Reminder):
            return Sent()
        return Skip("holiday") if len(handler.digests) > 1 else Retry("busy", after="5m")

    handler.answer = answer
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=2)
        await put_games(app, 5)
        await world.advance("9h")
        found = await app.reminders.list(status="skipped", limit=1000)

    assert len({digest.key for digest in handler.digests}) == 1
    assert {str(one.reason) for one in found} == {"holiday"}
    assert len(found) == 3


async def test_what_a_handler_of_digests_skips_escalates(app: Duetime) -> None:
    """As one that a handler skips alone."""
    handler = Handler(app, digests=True)

    async def answer(what: Any) -> Any:
        return Sent() if isinstance(what, Reminder) else Skip("holiday")

    handler.answer = answer
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 3, LADDER, recipients=["ann", "bob"])
        await world.advance("2h5m")
        skipped = await app.reminders.list(status="skipped", limit=1000)

    assert {(one.recipient, str(one.reason)) for one in skipped} == {("ann", "holiday")}
    told = [(one.recipient, one.subject) for one in handler.seen]
    assert told[-2:] == [("bob", "game:1"), ("bob", "game:2")]


async def test_without_a_handler_of_digests_each_waits_for_a_place(app: Duetime) -> None:
    handler = Handler(app, digests=False)
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=2)
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
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 2)
        await world.advance("1h30m")
        found = await app.reminders.list(status="sent", limit=1000)

    assert [one.subject for one in found] == ["game:1"]


async def test_what_does_not_fit_into_a_digest_goes_in_the_next(
    app: Duetime, mail: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.storage.reminders.digests.MAX_REMINDERS", 3)
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 9)
        await world.advance("9h")

    digests = [[one["subject"] for one in m.data["reminders"]] for m in mail.messages[1:]]
    assert digests == [[f"game:{n}" for n in part] for part in ((1, 2, 3), (4, 5, 6), (7, 8))]
    assert [round(hours, 1) for hours in mail.hours] == [1.0, 2.0, 3.0, 4.0]


async def test_an_escalating_rule_goes_on_after_a_digest(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 3, {"rule": "0s", "escalate": "10m"}, recipients=["ann", "bob"])
        await world.advance("9h")

    told = [(m.recipient, len(m.data.get("reminders", [1]))) for m in mail.messages]
    assert told == [("ann", 1), ("bob", 1), ("ann", 2), ("bob", 1), ("bob", 1)]


async def test_a_digest_keeps_to_the_rate_of_its_channel(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    app.add_channel(mail, rate="1/2h")
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 3)
        await world.advance("9h")

    assert mail.hours == [1.0, 3.0]
    assert len(mail.messages[1].data["reminders"]) == 2


# The hour, the clock, and what is stale


async def test_an_hour_is_sixty_minutes(app: Duetime) -> None:
    """One in an hour: a second before it is over the next one waits, and not any longer."""
    times: list[float] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        times.append((await app.now() - START) / timedelta(seconds=1))
        return Sent()

    second = timedelta(seconds=1)
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1)
        for ref, due in (
            ("first", START + HOUR),
            ("too early", START + 2 * HOUR - second),
            ("on time", START + 3 * HOUR),
            ("later", START + 4 * HOUR + second),
        ):
            await app.subjects.put(ref, due=due, remind=["0s"], recipients=["ann"])
        await world.advance("5h")

    assert times == [3600, 7200, 10800, 14401]


async def test_a_digest_keeps_the_quiet_hours_of_each_subject_for_one_without_a_zone(
    app: Duetime, mail: Mailbox
) -> None:
    """A place is free at 14:00 UTC, which is 23:00 in Tokyo."""
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1, quiet="22:30-07:00")
        await put_games(app, 3)
        for n in (3, 4):
            await app.subjects.put(
                f"game:{n}", due=START + HOUR, tz="Asia/Tokyo", remind=["+5s"], recipients=["ann"]
            )
        await world.advance("3h")
        why = await explain(app, "game:4")
        await world.advance("24h")

    assert mail.hours[:2] == [1.0, 2.0]
    assert [one["subject"] for one in mail.messages[1].data["reminders"]] == ["game:1", "game:2"]
    assert "It waits until 07:00 (Asia/Tokyo) because of the quiet hours 22:30-07:00 of ann." in why
    assert mail.hours[2] == 10.0
    assert len(mail.messages) == 4


async def test_a_digest_waits_for_the_quiet_hours_of_its_recipients_clock(
    app: Duetime, mail: Mailbox
) -> None:
    """13:00 UTC is 22:00 in Tokyo, where ann is, and noon where the games are."""
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", max_per_hour=1, quiet="22:30-07:00", tz="Asia/Tokyo")
        await put_games(app, 4, tz="Europe/London")
        await world.advance("24h")

    assert mail.hours == [1.0, 10.0], "07:00 in Tokyo is 22:00 UTC"
    assert len(mail.messages[1].data["reminders"]) == 3


def mark_stale(backend: Backend, ref: str, at: datetime, due: datetime | None = None) -> None:
    """As the trigger of a tracked table does, whose worker has not come yet."""

    def moment(value: datetime) -> str:
        if backend.is_postgres:
            return f"'{value.isoformat()}'"
        return str(int(value.timestamp() * 1_000_000))

    moved = "" if due is None else f", due_at = {moment(due)}"
    query(backend, f"update duetime.subject set rearm_at = {moment(at)}{moved} where ref = '{ref}'")


async def test_a_reminder_of_a_stale_subject_is_not_sent(
    app: Duetime, mail: Mailbox, backend: Backend
) -> None:
    """It moved, and nobody has computed yet what that means: the old time is not true any more."""
    async with app.testing(now=START, isolated=False) as world:
        await put_games(app, 1)
        await world.advance("59m59s900ms")
        # Just now: nobody looks after a lost job so soon.
        mark_stale(backend, "game:0", await app.now(), START + 9 * HOUR)
        await world.advance("200ms")
        waiting = list(mail.messages)
        [reminder] = await app.reminders.list(status="armed", limit=1000)
        await world.advance("10h")

    assert waiting == []
    assert reminder.stale or reminder.due_at == START + 9 * HOUR
    assert mail.hours == [9.0]


async def test_a_stale_reminder_is_left_out_of_a_digest(
    app: Duetime, mail: Mailbox, backend: Backend
) -> None:
    async with app.testing(now=START, isolated=False) as world:
        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 4)
        await world.advance("1h59m59s900ms")
        # Just now: nobody looks after a lost job so soon.
        mark_stale(backend, "game:2", await app.now(), START + 30 * HOUR)
        await world.advance("200ms")

    [_, digest] = mail.messages
    subjects = [one["subject"] for one in digest.data["reminders"]]
    assert subjects == ["game:1", "game:3"]
