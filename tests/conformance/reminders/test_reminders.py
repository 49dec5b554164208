"""Reminders on every backend, under a driven clock: they follow their subjects."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Duetime, Reminder, Retry, Sent, Skip
from duetime.channels.channel import Message, NotSent
from duetime.channels.console import Console
from duetime.domain.reminders.reminder import ReminderStatus
from duetime.errors import InvalidInput, ReminderNotFound, ScopeNotFound, SubjectNotFound
from tests.conftest import Backend
from tests.counting import Counted

START = datetime(2026, 3, 2, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


class Outbox:
    """A handler that notes what it sends, and when."""

    def __init__(self, app: Duetime) -> None:
        self.sent: list[tuple[str, str, str, float]] = []
        self.keys: list[str] = []
        self.answer: Callable[[Reminder], Any] = lambda reminder: Sent(f"ext-{reminder.id}")

        @app.on_reminder(max_attempts=3)
        async def send(reminder: Reminder) -> Any:
            hours = (await app.now() - START) / HOUR
            outcome = self.answer(reminder)
            if isinstance(outcome, Sent):
                place = (reminder.subject, reminder.rule.text, reminder.recipient, hours)
                self.sent.append(place)
                self.keys.append(reminder.key)
            return outcome

    @property
    def times(self) -> list[float]:
        return [hours for *_, hours in self.sent]


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


@pytest.fixture
def outbox(app: Duetime) -> Outbox:
    return Outbox(app)


async def statuses(app: Duetime, subject: str) -> list[tuple[str, str]]:
    found = await app.reminders.list(subject=subject)
    return [(reminder.rule.text, reminder.status.value) for reminder in found]


async def test_reminders_are_sent_at_their_times_through_inherited_rules(
    app: Duetime, outbox: Outbox
) -> None:
    async with app.testing(now=START) as world:
        await app.scopes.put("guild:1", remind=["-1d", "-1h"])
        await app.scopes.put("channel:9", parent="guild:1")
        answer = await app.subjects.put(
            "game:42", scope="channel:9", due=START + 2 * DAY, recipients=["ann", "bob"]
        )
        rules = await app.subjects.rules("game:42")
        await world.advance("3d")
        found = await app.reminders.list(subject="game:42")

    assert answer == "added"
    assert rules == (["-1d", "-1h"], "guild:1")
    assert outbox.sent == [
        ("game:42", "-1d", "ann", 24.0),
        ("game:42", "-1d", "bob", 24.0),
        ("game:42", "-1h", "ann", 47.0),
        ("game:42", "-1h", "bob", 47.0),
    ]
    assert len(set(outbox.keys)) == 4
    assert {reminder.status for reminder in found} == {ReminderStatus.SENT}
    assert found[0].external_id == f"ext-{found[0].id}"


async def test_a_moved_subject_supersedes_and_arms_anew(app: Duetime, outbox: Outbox) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("game", due=START + 10 * HOUR, remind=["-1h", "-5h"])
        await world.advance("6h")
        await app.subjects.put("game", due=START + 20 * HOUR, remind=["-1h", "-5h"])
        waiting = await world.enqueued()
        await world.advance("1d")
        found = await app.reminders.list(subject="game", status="superseded")
        why = str(await app.reminders.explain(found[0].id))

    assert outbox.times == [5.0, 15.0, 19.0]
    assert len(waiting) == 2, "the job of the superseded one is gone"
    assert [reminder.rule.text for reminder in found] == ["-1h"]
    assert "not sent: superseded, the subject moved to 2026-03-02T20:00:00Z" in why


async def test_an_unrelated_edit_sends_nothing_again(app: Duetime, outbox: Outbox) -> None:
    async with app.testing(now=START) as world:
        due = START + 10 * HOUR
        await app.subjects.put("game", due=due, remind=["-5h", "-1h"], data={"title": "a"})
        await world.advance("6h")
        answer = await app.subjects.put("game", due=due, remind=["-5h", "-1h"], data={"title": "b"})
        same = await app.subjects.put("game", due=due, remind=["-5h", "-1h"], data={"title": "b"})
        await world.advance("1d")

    assert (answer, same) == ("changed", "same")
    assert outbox.times == [5.0, 9.0]


async def test_moved_away_and_back_is_not_sent_twice(app: Duetime, outbox: Outbox) -> None:
    async with app.testing(now=START) as world:
        due = START + 10 * HOUR
        await app.subjects.put("game", due=due, remind=["-5h", "-1h"])
        await world.advance("6h")
        await app.subjects.put("game", due=due + DAY, remind=["-5h", "-1h"])
        await app.subjects.put("game", due=due, remind=["-5h", "-1h"])
        await world.advance("2d")

    assert outbox.times == [5.0, 9.0]


@pytest.mark.parametrize("verb", ["complete", "delete"])
async def test_a_closed_subject_is_not_reminded_of(app: Duetime, outbox: Outbox, verb: str) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("game", due=START + 10 * HOUR, remind=["-5h", "-1h"])
        await world.advance("6h")
        await getattr(app.subjects, verb)("game")
        await world.advance("1d")
        left = await statuses(app, "game")

    assert outbox.times == [5.0]
    assert left == ([] if verb == "delete" else [("-5h", "sent"), ("-1h", "cancelled")])


async def test_a_subject_that_was_closed_while_its_reminder_waited_to_be_sent(
    app: Duetime, outbox: Outbox
) -> None:
    """The reminder is claimed, and looks at its subject right before it is sent."""
    async with app.testing(now=START) as world:
        await app.subjects.put("a", due=START + HOUR, remind=["-30m"])
        await app.subjects.put("b", due=START + HOUR, remind=["-30m"])

        def answer(reminder: Reminder) -> Any:
            return Sent()

        outbox.answer = answer
        first = (await app.reminders.list(subject="b"))[0]
        await world.outage("30m")
        job, _ = await world._worker.claim(world.now)
        assert job is not None
        assert job.args is not None
        other = "b" if f'"reminder":{first.id}' not in job.args.replace(" ", "") else "a"
        mine = "a" if other == "b" else "b"
        await app.subjects.complete(mine)
        await world._run(job)
        await world.drain()

    assert [sent[0] for sent in outbox.sent] == [other]


async def test_changed_rules_of_a_scope_re_arm_everything_below(
    app: Duetime, outbox: Outbox
) -> None:
    async with app.testing(now=START) as world:
        await app.scopes.put("guild", remind=["-5h"])
        await app.scopes.put("quiet", parent="guild", remind=[])
        await app.scopes.put("channel", parent="guild")
        for ref, scope in (("a", "guild"), ("b", "channel"), ("c", "quiet")):
            await app.subjects.put(ref, scope=scope, due=START + 10 * HOUR)
        put = await app.scopes.put("guild", remind=["-2h"])
        await world.advance("1d")
        locked = await app.scopes.put("guild", remind=["-2h"], locked=True)

    assert (put, put.affected) == ("changed", 3)
    assert sorted(outbox.sent) == [("a", "-2h", "", 8.0), ("b", "-2h", "", 8.0)]
    assert (locked, locked.affected) == ("changed", 3)


async def test_past_times_are_skipped_or_sent_now(app: Duetime, outbox: Outbox) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put(
            "game",
            due=START + HOUR,
            remind=["-7d", {"rule": "-2h", "past": "send_now"}, "-30m", "+1h"],
        )
        await world.advance("1d")
        found = await statuses(app, "game")

    assert outbox.times == [0.0, 0.5, 2.0]
    assert ("-7d", "skipped") in found


async def test_too_late_is_a_visible_expired(app: Duetime, outbox: Outbox) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("game", due=START + HOUR, remind=["-30m"])
        await world.outage("2h")
        await world.drain()
        found = await statuses(app, "game")
        [reminder] = await app.reminders.list(subject="game")
        why = str(await app.reminders.explain(reminder.id))

    assert outbox.sent == []
    assert found == [("-30m", "expired")]
    assert "it had to start before 2026-03-02T01:00:00" in why


async def test_wall_time_rules_follow_the_subjects_zone(app: Duetime, outbox: Outbox) -> None:
    async with app.testing(now="2026-03-06T00:00Z") as world:
        await app.subjects.put(
            "game",
            due=datetime(2026, 3, 9, 18, tzinfo=UTC),
            tz="America/New_York",
            remind=["-2d at 09:00", "-0d at 09:00"],
        )
        found = await app.reminders.list(subject="game")
        await world.advance("5d")

    assert [f"{reminder.time:%d %H}" for reminder in found] == ["07 14", "09 13"]
    assert len(outbox.sent) == 2


async def test_a_handler_can_retry_and_skip(app: Duetime, outbox: Outbox) -> None:
    tries: list[int] = []

    def answer(reminder: Reminder) -> Any:
        tries.append(reminder.id)
        if reminder.subject == "skip":
            return Skip("opted out")
        return Retry("busy", after="10m") if tries.count(reminder.id) == 1 else Sent("x")

    outbox.answer = answer
    async with app.testing(now=START) as world:
        await app.subjects.put("retry", due=START + 5 * HOUR, remind=["-1h"])
        await app.subjects.put("skip", due=START + 5 * HOUR, remind=["-1h"])
        await world.advance("1d")
        skipped = await app.reminders.list(subject="skip")

    assert outbox.times == [pytest.approx(4 + 10 / 60)]
    assert [(r.status.value, str(r.reason)) for r in skipped] == [("skipped", "opted out")]


class Mailbox:
    """A channel that fails as it is told to."""

    def __init__(self, name: str, failure: NotSent | None = None) -> None:
        self.name = name
        self.failure = failure
        self.messages: list[Message] = []

    async def send(self, message: Message) -> Sent:
        if self.failure is not None:
            raise self.failure
        self.messages.append(message)
        return Sent(f"{self.name}-1")

    async def close(self) -> None: ...


async def test_what_is_not_a_channel_is_refused(app: Duetime) -> None:
    with pytest.raises(InvalidInput, match=r"must have a name, an async send\(message\)"):
        app.add_channel("mail")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="tries must be between 1 and"):
        app.add_channel(Mailbox("mail"), tries=0)


async def test_channels_are_tried_in_turn_and_receipts_come_back(app: Duetime) -> None:
    push, mail = Mailbox("push", NotSent("no token", transient=False)), Mailbox("mail")
    app.add_channel(push)
    app.add_channel(mail)
    async with app.testing(now=START) as world:
        await app.subjects.put("game", due=START + HOUR, remind=["-30m"], recipients=["ann"])
        await world.advance("1h")
        count = await app.receipt("mail-1", "delivered")
        [reminder] = await app.reminders.list(subject="game")

    [message] = mail.messages
    assert message.key == reminder.key
    assert (reminder.channel, reminder.delivery, count) == ("mail", "delivered", 1)


async def test_every_change_and_every_send_is_audited(app: Duetime, outbox: Outbox) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("game", due=START + HOUR, remind=["-30m"], by="ann")
        await app.subjects.put("game", due=START + 2 * HOUR, remind=["-30m"], by="bob")
        await world.advance("3h")
        events = await app.audit.list(entity="subject:game")

    assert [(event.action, event.actor) for event in reversed(events)] == [
        ("subject.put", "ann"),
        ("subject.put", "bob"),
        ("reminder.sent", "test world"),
    ]
    assert events[1].before["due_at"] == "2026-03-02T01:00:00Z"


async def test_a_put_in_a_transaction_that_rolls_back_changes_nothing(
    pg_url: str,
) -> None:
    app = Duetime(pg_url, migrate=True)
    Outbox(app)
    await app.store()
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await app.subjects.put("kept", due=START + 9000 * DAY, remind=["-1d"], tx=connection)
        await connection.commit()
        await app.subjects.put("gone", due=START + 9000 * DAY, remind=["-1d"], tx=connection)
        await connection.rollback()
    found = await app.reminders.list()
    await app.close()

    assert [reminder.subject for reminder in found] == ["kept"]


@pytest.mark.parametrize(
    "option",
    [{"expires": "90m"}, {"urgent": True}, {"template": "soon"}, {"channels": ["b", "a"]}],
    ids=["expires", "urgent", "template", "order of channels"],
)
async def test_a_rule_with_other_options_sends_nothing_again(
    app: Duetime, outbox: Outbox, option: dict[str, Any]
) -> None:
    rule = {"rule": "-2h", "past": "send_now", "channels": ["a", "b"]}
    async with app.testing(now=START) as world:
        await app.subjects.put("game", due=START + 3 * HOUR, remind=rule)
        await world.advance("70m")
        await app.subjects.put("game", due=START + 3 * HOUR, remind=rule | option)
        await world.advance("3h")

    assert outbox.times == [1.0]


@pytest.mark.parametrize(
    ("rule", "option"),
    [("-2h", {"channels": ["a"]}), ("at 01:00", {"zone": "recipient"})],
    ids=["channels", "zone"],
)
async def test_other_channels_or_another_zone_make_another_rule(
    app: Duetime, outbox: Outbox, rule: str, option: dict[str, Any]
) -> None:
    game = {"due": START + 3 * HOUR, "recipients": ["ann"]}
    before = {"rule": rule, "past": "send_now"}
    async with app.testing(now=START) as world:
        await app.subjects.put("game", remind=before, **game)  # type: ignore[arg-type]
        await world.advance("90m")
        await app.subjects.put("game", remind=before | option, **game)  # type: ignore[arg-type]
        await world.advance("3h")

    assert outbox.times == [1.0, 1.5]


async def test_bad_input_is_refused_and_changes_nothing(app: Duetime, outbox: Outbox) -> None:
    async with app.testing(now=START):
        for options, message in (
            ({"due": datetime(2026, 3, 3)}, "no time zone"),
            ({"due": START, "remind": ["soon"]}, "soon"),
            ({"due": START, "scope": "nowhere"}, "no scope 'nowhere'"),
            ({"due": START, "tz": "Mars/Olympus"}, "Mars"),
            ({"due": START, "remind": "-99999d"}, "at most 10 years: write '3653d' or less"),
            ({"due": START, "remind": 1.5}, "whole number of minutes .*, got 1.5. Write '-1m30s'"),
            ({"due": START, "remind": True}, "A rule must be a text such as '-1h'.*, got True"),
            ({"due": START, "data": {"x": object()}}, "encoded as JSON"),
            ({"due": START, "data": [1]}, r"data must be a mapping, .* got \[1\]"),
            ({"due": START, "data": []}, r"data must be a mapping, .* got \[\]"),
            ({"due": START, "data": "x"}, "data must be a mapping, .* got 'x'"),
            ({"due": START, "data": {"a": "x\0y"}}, "data of a subject contains a NUL character"),
            ({"due": START, "data": {"a": "x" * 65_536}}, "at most 65,536 bytes .*, got 65,544"),
        ):
            with pytest.raises(InvalidInput, match=message):
                await app.subjects.put("game", **options)
        with pytest.raises(SubjectNotFound):
            await app.subjects.complete("game")
        await app.scopes.put("a")
        await app.scopes.put("b", parent="a")
        with pytest.raises(InvalidInput, match="inside itself"):
            await app.scopes.put("a", parent="b")
        with pytest.raises(InvalidInput, match="locked must be True or False"):
            await app.scopes.put("a", locked="yes")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"returned by subjects\.define"):
            await app.subjects.put_many(["game"])  # type: ignore[list-item]
        with pytest.raises(InvalidInput, match=r"subjects\.define\(\) in a list .*, got None"):
            await app.subjects.put_many(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"task\.job\(\) in a list .*, got None"):
            await app.enqueue_many(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"returned by define\(\) in a list .*, got 5"):
            await app.schedules.apply(5)  # type: ignore[arg-type]

        assert await app.reminders.list() == []


async def test_scopes_that_are_too_deep_to_be_followed_are_refused(app: Duetime) -> None:
    async with app.testing(now=START):
        await app.scopes.put("level:1", remind=["-1h"])
        for level in range(2, 100):
            await app.scopes.put(f"level:{level}", parent=f"level:{level - 1}")
        await app.subjects.put("game", due=START + timedelta(days=1), scope="level:99")

        with pytest.raises(InvalidInput, match="at most 99 levels"):
            await app.scopes.put("level:100", parent="level:99")

        assert await app.subjects.rules("game") == (["-1h"], "level:1")
        assert len(await app.reminders.list(subject="game")) == 1


async def test_trees_of_scopes_that_are_too_deep_together_are_not_joined(app: Duetime) -> None:
    async with app.testing():
        for tree, levels in (("above", 60), ("below", 40)):
            for level in range(levels):
                parent = None if level == 0 else f"{tree}:{level - 1}"
                await app.scopes.put(f"{tree}:{level}", parent=parent)
        await app.scopes.put("below:side", parent="below:0")
        before = await app.scopes.list()
        with pytest.raises(InvalidInput, match="at most 99 levels deep") as refused:
            await app.scopes.put("below:0", parent="above:59")

        assert "'below:0' would be at level 61, with 39 levels inside it" in str(refused.value)
        assert await app.scopes.list() == before
        assert len(await app.audit.list(entity="scope:below:0")) == 1
        await app.scopes.put("below:0", parent="above:58")
        # What is as deep as can be is still changed in place.
        await app.scopes.put("below:0", parent="above:58", remind="-1h")


@pytest.mark.parametrize("names", ["ann", b"ann", {"ann": 1}, 7])
async def test_a_text_is_not_a_list_of_recipients(app: Duetime, names: Any) -> None:
    with pytest.raises(InvalidInput, match=r"recipients=\['ann', 'bob'\]"):
        await app.subjects.put("game", due=START, recipients=names)


@pytest.mark.parametrize("verb", ["complete", "delete"])
async def test_why_a_subject_was_closed_is_told(app: Duetime, outbox: Outbox, verb: str) -> None:
    async with app.testing(now=START):
        await app.subjects.put("game", due=START + DAY, remind="-1h")
        [armed] = await app.reminders.list(subject="game")
        assert armed.job_id is not None
        await getattr(app.subjects, verb)("game", reason="too few players", by="bob")
        [event, *_] = await app.audit.list(entity="subject:game")
        job = await app.jobs.get(armed.job_id)
        found = await app.reminders.list(subject="game")

    why = f"the subject was {verb}d: too few players"
    assert (event.action, event.reason) == (f"subject.{verb}", "too few players")
    assert job.error == why
    assert [str(one.reason) for one in found] == ([why] if verb == "complete" else [])


async def test_a_reason_is_of_a_whole_subject_and_a_text(app: Duetime) -> None:
    with pytest.raises(InvalidInput, match="cannot be combined with occurrence="):
        await app.subjects.complete("game", occurrence=START, reason="x")
    with pytest.raises(InvalidInput, match="A reason must have 1 to"):
        await app.subjects.complete("game", reason="")
    with pytest.raises(InvalidInput, match=r"characters, got 1,001\."):
        await app.subjects.delete("game", reason="x" * 1001)
    with pytest.raises(InvalidInput, match=r"The reason must be a string, got 5\."):
        await app.subjects.complete("game", reason=5)  # type: ignore[arg-type]


async def test_explain_takes_a_reminder_or_its_id(app: Duetime, outbox: Outbox) -> None:
    async with app.testing(now=START):
        await app.subjects.put("game", due=START + DAY, remind="-1h")
        [armed] = await app.reminders.list(subject="game")
        by_id = await app.reminders.explain(armed.id)
        assert (await app.reminders.explain(armed)).sentence == by_id.sentence
        with pytest.raises(ReminderNotFound):
            await app.reminders.explain(999)
        with pytest.raises(InvalidInput, match="positive integer"):
            await app.reminders.explain("1")  # type: ignore[arg-type]


async def test_an_explanation_does_not_repeat_our_own_key(app: Duetime) -> None:
    app.add_channel(Console(io.StringIO()))
    async with app.testing(now=START) as world:
        rule = {"rule": "-1h", "past": "send_now"}
        await app.subjects.put("game", due=START + 30 * MINUTE, remind=rule)
        await world.drain()
        [sent] = await app.reminders.list(subject="game")
        why = str(await app.reminders.explain(sent))

    assert sent.external_id == sent.key
    assert why == (
        f"Reminder {sent.id} (-1h of 'game') was sent by console at 2026-03-02T00:00:00Z. "
        "Its time 2026-03-01T23:30:00Z had passed when the subject was put, and its rule sends it "
        "late."
    )


async def test_the_audit_names_what_it_has(app: Duetime) -> None:
    for entity in ("game:1", "game", ""):
        with pytest.raises(InvalidInput, match="scope:…, subject:…, recipient:…"):
            await app.audit.list(entity=entity)


async def test_subjects_are_listed_by_scope_with_all_inside_it(app: Duetime) -> None:
    async with app.testing(now=START):
        await app.scopes.put("guild:1")
        await app.scopes.put("channel:9", parent="guild:1")
        await app.scopes.put("guild:2")
        await app.subjects.put("late", scope="channel:9", due=START + 2 * DAY)
        await app.subjects.put("soon", scope="guild:1", due=START + DAY)
        await app.subjects.put("open end", scope="guild:1", due=None)
        await app.subjects.put("elsewhere", scope="guild:2", due=START + HOUR)
        await app.subjects.complete("late")

        async def refs(**which: Any) -> list[str]:
            return [subject.ref for subject in await app.subjects.list(**which)]

        assert await refs() == ["elsewhere", "soon", "late", "open end"]
        assert await refs(scope="guild:1") == ["soon", "late", "open end"]
        assert await refs(scope="guild:1", status="open") == ["soon", "open end"]
        assert await refs(scope="channel:9", status="done") == ["late"]
        assert await refs(scope="nowhere") == []
        with pytest.raises(InvalidInput, match="Use one of: open, done"):
            await app.subjects.list(status="closed")  # type: ignore[arg-type]


async def test_a_scope_is_deleted_only_when_nothing_is_inside_it(app: Duetime) -> None:
    async with app.testing(now=START):
        await app.scopes.put("guild:1", remind=["-1h"])
        await app.scopes.put("channel:9", parent="guild:1")
        await app.subjects.put("game:42", scope="channel:9", due=START + DAY)
        with pytest.raises(InvalidInput, match="1 scope and 0 subjects"):
            await app.scopes.delete("guild:1")
        with pytest.raises(InvalidInput, match="0 scopes and 1 subject\\."):
            await app.scopes.delete("channel:9")
        await app.subjects.delete("game:42")

        await app.scopes.delete("channel:9", by="ann")
        await app.scopes["guild:1"].delete()
        with pytest.raises(ScopeNotFound):
            await app.scopes.delete("guild:1")
        assert await app.scopes.list() == []
        [deleted, _] = await app.audit.list(entity="scope:channel:9")

    assert (deleted.actor, deleted.action) == ("ann", "scope.delete")


async def test_many_subjects_are_put_by_few_statements(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that is new or has moved is armed and audited; the others are left alone."""
    counted = Counted(await app.store(), monkeypatch)

    def define(number: int, due: datetime) -> Any:
        return app.subjects.define(f"game:{number:04}", due=due, remind=["-1h"])

    many = 1_100
    async with app.testing(now=START):
        added = await app.subjects.put_many(define(n, START + DAY) for n in range(many))
        ran_to_add = counted.ran()
        moved = await app.subjects.put_many(
            [define(n, START + DAY + (n % 2) * HOUR) for n in range(many)], by="ann"
        )
        ran_to_move = counted.ran()
        found = await app.reminders.list(subject="game:0001")
        still = await app.reminders.list(subject="game:1098")
        trail = await app.audit.list(entity="subject:game:0001")

    assert set(added.values()) == {"added"}
    assert moved == {f"game:{n:04}": "changed" if n % 2 else "same" for n in range(many)}
    assert [reminder.status.value for reminder in found] == ["superseded", "armed"]
    assert [reminder.status.value for reminder in still] == ["armed"]
    assert [(event.actor, event.action) for event in trail] == [
        ("ann", "subject.put"),
        ("unknown", "subject.put"),
    ]
    assert ran_to_add < 100
    assert ran_to_move < 100
    await app.close()


@pytest.mark.parametrize(
    ("zone", "hour"), [("CET", 7), ("MET", 7), ("EET", 6), ("WET", 8), ("Europe/Berlin", 7)]
)
async def test_zones_that_are_named_like_abbreviations_have_summer_time(
    app: Duetime, zone: str, hour: int
) -> None:
    summer = datetime(2026, 7, 10, 18, tzinfo=UTC)
    async with app.testing(now=START):
        await app.scopes.put("guild:1", remind=["-2d at 09:00"])
        # The rules of a scope are armed by the database, those of a new subject by this process.
        await app.subjects.put("game:1", scope="guild:1", due=summer, tz=zone)
        await app.scopes.put("guild:1", remind=["-1d at 09:00"])
        armed = [one.time for one in await app.reminders.list(subject="game:1", status="armed")]

    assert armed == [datetime(2026, 7, 9, hour, tzinfo=UTC)]
