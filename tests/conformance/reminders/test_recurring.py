"""Subjects that repeat, on every backend, under a driven clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from random import Random
from typing import Any

import pytest

from duetime import Duetime, Reminder, Sent
from duetime.domain.reasons import Reason
from duetime.domain.reminders.plan_recurrence import HORIZON
from duetime.domain.reminders.recurrence import parse_repeats
from duetime.domain.reminders.rule import rule_times
from duetime.domain.reminders.rule_text import parse_rules
from duetime.errors import InvalidInput, SubjectNotFound
from duetime.reminders.rearm import rearm_stale
from tests.conftest import Backend

START = datetime(2026, 3, 2, tzinfo=UTC)  # A Monday.
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WORKDAYS = "0 9 * * 1-5"


class UndoneError(Exception):
    pass


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


@pytest.fixture
def sent(app: Duetime) -> list[tuple[datetime, datetime]]:
    """What is sent: when, and of which occurrence."""
    found: list[tuple[datetime, datetime]] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        found.append((await app.now(), reminder.due_at))
        return Sent()

    return found


def at(text: str) -> datetime:
    """`05T09:00` of March 2026, in UTC."""
    return datetime.fromisoformat(f"2026-03-{text}+00:00")


def times(found: Iterable[tuple[datetime, datetime]]) -> list[str]:
    return [f"{when:%dT%H:%M}" for when, _ in found]


async def armed(app: Duetime, ref: str) -> list[str]:
    found = await app.reminders.list(subject=ref, status="armed")
    return [f"{one.due_at:%dT%H:%M}" for one in found]


async def test_occurrences_are_reminded_of_for_ever(app: Duetime, sent: list[Any]) -> None:
    async with app.testing(now=START) as world:
        first = await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"])
        same = await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"])
        ahead = await armed(app, "standup")
        await world.advance("100d")
        subject = await app.subjects.get("standup")
        left = await app.reminders.list(subject="standup", status="armed")

    assert (first, same) == ("added", "same")
    assert ahead == [f"{day:02}T09:00" for day in (2, 3, 4, 5, 6, 9, 10, 11, 12, 13)]
    days = [START + n * DAY for n in range(100)]
    assert [when for when, _ in sent] == [
        day + 9 * HOUR - timedelta(minutes=10) for day in days if day.weekday() < 5
    ]
    assert subject.due_at is None
    # Never much more is armed than the horizon holds.
    assert 2 <= len(left) <= 2 * HORIZON.days


async def test_wall_times_stay_when_clocks_change(app: Duetime, sent: list[Any]) -> None:
    async with app.testing(now="2026-03-27T00:00Z") as world:
        await app.subjects.put(
            "standup", repeats="30 2 * * *", tz="Europe/Berlin", remind=["-15m", "at 09:00"]
        )
        await world.advance("4d")

    # On the 29th clocks go forward at 02:00 local time, over 02:30.
    assert times(sent) == [
        *("27T01:15", "27T08:00", "28T01:15", "28T08:00"),
        *("29T00:45", "29T07:00", "30T00:15", "30T07:00"),
    ]


async def test_a_rule_that_ends(app: Duetime, sent: list[Any]) -> None:
    rule = {"rrule": "FREQ=DAILY", "start": START + 9 * HOUR, "until": START + 2 * DAY + 9 * HOUR}
    counted = {"rrule": "FREQ=WEEKLY;COUNT=2", "start": START + 10 * HOUR}
    async with app.testing(now=START) as world:
        await app.subjects.put("until", repeats=rule, remind=["0s"])
        await app.subjects.put("counted", repeats=counted, remind=["0s"])
        await world.advance("60d")
        waiting = await world.enqueued()
        left = await app.subjects.occurrences("until")

    assert times(sent) == ["02T09:00", "02T10:00", "03T09:00", "04T09:00", "09T10:00"]
    assert waiting == []
    assert left == []


async def test_rare_ones_are_armed_two_ahead(app: Duetime, sent: list[Any]) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("year", repeats="0 0 1 1 *", remind=["-30d"])
        ahead = await app.reminders.list(subject="year")
        await world.advance("1500d")

    assert [one.due_at.year for one in ahead] == [2027, 2028]
    assert [due.year for _, due in sent] == [2027, 2028, 2029, 2030]


async def test_long_offsets_reach_beyond_the_horizon(app: Duetime, sent: list[Any]) -> None:
    """A reminder 60 days ahead is due before the next 14 days of occurrences are over."""
    async with app.testing(now=START) as world:
        await app.subjects.put("daily", repeats="0 12 * * *", remind=["-60d"])
        await world.advance("40d")

    # What was due less than 60 days from the start was past.
    assert [when for when, _ in sent] == [START + (n + 0.5) * DAY for n in range(40)]
    assert all(due - when == 60 * DAY for when, due in sent)


async def test_single_occurrences_are_skipped_moved_and_completed(
    app: Duetime, sent: list[Any]
) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"])
        await app.subjects.skip("standup", at("03T09:00"), by="ann")
        await app.subjects.move("standup", occurrence=at("04T09:00"), to=at("04T15:00"))
        await app.subjects.complete("standup", occurrence=at("05T09:00"))
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"], data={"x": 1})
        found = await app.reminders.list(subject="standup")
        told = [str(await app.reminders.explain(one.id)) for one in found if one.status != "armed"]
        next_ones = await app.subjects.occurrences("standup", 3)
        await world.advance("5d")
        audit = [event.action for event in await app.audit.list(entity="subject:standup")]

    assert times(sent) == ["02T08:50", "04T14:50", "06T08:50"]
    assert [say.partition("not sent: ")[2].partition(". ")[0] for say in told] == [
        "cancelled, this occurrence is skipped",
        "superseded, this occurrence moved to 2026-03-04T15:00:00Z",
        "cancelled, this occurrence was completed",
    ]
    assert told[0].endswith(
        "It belongs to the occurrence of 2026-03-03T09:00:00Z; the subject repeats: "
        "cron 0 9 * * 1-5 (UTC), with 3 exceptions."
    )
    assert [(one.due, one.original) for one in next_ones][1] == (at("04T15:00"), at("04T09:00"))
    assert audit[-4:-1] == ["occurrence.completed", "occurrence.moved", "occurrence.skipped"]


async def test_what_was_done_to_an_occurrence_is_taken_back(app: Duetime, sent: list[Any]) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"])
        await app.subjects.skip("standup", at("03T09:00"))
        await app.subjects.move("standup", at("04T09:00"), at("04T15:00"))
        await app.subjects.restore("standup", at("03T09:00"))
        await app.subjects.move("standup", at("04T15:00"), at("04T09:00"))
        await world.advance("3d")
        subject = await app.subjects.get("standup")

    assert times(sent) == ["02T08:50", "03T08:50", "04T08:50"]
    assert subject.repeats == parse_repeats({"cron": WORKDAYS, "exceptions": {}})


async def test_an_occurrence_moved_after_its_reminder_is_reminded_of_again_and_not_twice(
    app: Duetime, sent: list[Any]
) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-2h"])
        await world.advance_to(at("02T08:00"))
        await app.subjects.move("standup", at("02T09:00"), at("02T14:00"))
        await world.advance_to(at("02T13:00"))
        await app.subjects.move("standup", at("02T09:00"), at("02T15:00"))
        await app.subjects.move("standup", at("02T15:00"), at("02T14:00"))
        await world.advance_to(at("02T20:00"))

    assert times(sent) == ["02T07:00", "02T12:00"]


async def test_put_replaces_exceptions_only_if_it_names_them(app: Duetime, sent: list[Any]) -> None:
    async with app.testing(now=START):
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"])
        await app.subjects.skip("standup", at("03T09:00"))
        await app.subjects.complete("standup", occurrence=at("04T09:00"))
        moved = {at("05T09:00"): at("05T11:00")}
        answer = await app.subjects.put(
            "standup", repeats={"cron": WORKDAYS, "exceptions": moved}, remind=["-10m"]
        )
        same = await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"])
        ahead = await armed(app, "standup")

    assert (answer, same) == ("changed", "same")
    assert ahead[:4] == ["02T09:00", "03T09:00", "05T11:00", "06T09:00"]


async def test_a_changed_recurrence_supersedes_with_a_reason(app: Duetime, sent: list[Any]) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m", "+1h"])
        await world.advance_to(at("03T09:30"))
        await app.subjects.put("standup", repeats="0 10 * * 1-5", remind=["-10m", "+1h"])
        [gone, *_] = await app.reminders.list(subject="standup", status="superseded")
        reason = gone.reason
        await world.advance_to(at("04T12:00"))
        await app.subjects.put("standup", due=at("20T09:00"), remind=["-10m"])
        ahead = await armed(app, "standup")
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"])
        again = await armed(app, "standup")

    assert reason == Reason("occurrence_gone")
    # On the 3rd it had been at 9; from half past 9 on, it is at 10.
    assert times(sent) == [
        *("02T08:50", "02T10:00", "03T08:50", "03T09:50", "03T11:00"),
        *("04T09:50", "04T11:00"),
    ]
    assert ahead == ["20T09:00"]
    assert again[:2] == ["05T09:00", "06T09:00"]


async def test_completing_ends_it_and_putting_begins_again(app: Duetime, sent: list[Any]) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m", "+3d"])
        await world.advance_to(at("03T00:00"))
        await app.subjects.complete("standup")
        await world.advance_to(at("10T00:00"))
        assert await world.enqueued() == []
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m", "+3d"])
        await world.advance_to(at("13T12:00"))
        await app.subjects.delete("standup")
        await world.advance("30d")

    # Nothing is sent for what was due while it was done.
    assert times(sent) == [
        *("02T08:50", "10T08:50", "11T08:50", "12T08:50", "13T08:50", "13T09:00"),
    ]


async def test_rules_of_a_scope_reach_recurring_subjects(app: Duetime, sent: list[Any]) -> None:
    async with app.testing(now=START) as world:
        await app.scopes.put("team", remind=["-10m"])
        await app.subjects.put("standup", repeats=WORKDAYS, scope="team")
        await app.scopes.put("team", remind=[])
        await world.advance_to(at("03T00:00"))
        none = await armed(app, "standup")
        await app.scopes.put("team", remind=["-20m"])
        await world.advance_to(at("04T12:00"))
        found = await app.reminders.list(subject="standup")

    assert none == []
    assert times(sent) == ["03T08:40", "04T08:40"]
    assert Counter(one.status.value for one in found)["skipped"] == 0


async def test_a_fixed_moment_belongs_to_the_next_occurrence(
    app: Duetime, sent: list[tuple[datetime, datetime]]
) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats=WORKDAYS, remind=[at("07T18:00")])
        await world.advance("10d")

    assert sent == [(at("07T18:00"), at("09T09:00"))]


async def test_what_came_due_while_no_worker_was_there_is_late_not_lost(
    app: Duetime, sent: list[Any]
) -> None:
    """Beyond the horizon too: occurrences that nobody had armed yet."""
    late = {"rule": "-10m", "expires": "never"}
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats=WORKDAYS, remind=[late, "-1h"])
        await world.outage("60d")
        await world.drain()
        found = await app.reminders.list(subject="standup")

    days = [START + n * DAY for n in range(60)]
    due = [day + 9 * HOUR for day in days if day.weekday() < 5]
    assert sorted(one for _, one in sent) == due
    expired = [one.due_at for one in found if one.status == "expired"]
    assert expired == due


async def test_an_edit_after_an_outage_loses_nothing(app: Duetime, sent: list[Any]) -> None:
    late = {"rule": "-10m", "expires": "never"}
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats=WORKDAYS, remind=[late])
        await world.outage("42d")
        await app.subjects.skip("standup", START + 42 * DAY + 9 * HOUR)
        await world.drain()

    assert len({due for _, due in sent}) == len(sent) == 30


@pytest.mark.parametrize("others", [0, 501], ids=["small_scope", "large_scope"])
async def test_an_edit_after_an_outage_keeps_a_change_of_the_scope(
    app: Duetime, sent: list[Any], others: int
) -> None:
    async with app.testing(now=START) as world:
        await app.scopes.put("club", remind=["-1h"])
        await app.subjects.put("tick", repeats="*/10 * * * *", scope="club")
        await app.subjects.put_many(
            app.subjects.define(f"other:{n}", due=START + 999 * DAY, scope="club")
            for n in range(others)
        )
        planned = (await app.subjects.get("tick")).planned
        assert planned is not None
        await world.outage(planned[1] - START - HOUR / 2)
        await app.scopes.put("club", remind=["-1h", "+30m"])
        await app.subjects.put("tick", repeats="*/10 * * * *", scope="club", data={"title": "Tick"})
        await world.drain()
        now = await app.now()
        found = await app.reminders.list(subject="tick", status="armed")

    behind = [one.due_at - now for one in found if one.rule.text == "+30m" and one.due_at < now]
    assert behind == [-HOUR / 3, -HOUR / 6]


@pytest.mark.parametrize("touch", [False, True], ids=["untouched", "touched"])
async def test_a_clock_that_is_set_back_reminds_of_nothing_twice_and_loses_nothing(
    app: Duetime, sent: list[Any], touch: bool
) -> None:
    """The days come again; what was sent stays sent, and the horizon rolls on."""
    daily: dict[str, Any] = {"repeats": "0 9 * * *", "remind": ["-10m"]}
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", **daily)
        await world.advance("10d")
        await world._set_clock(START + 3 * DAY)
        if touch:
            await app.subjects.put("standup", **daily, data={"room": 7})
            await app.subjects.skip("standup", START + 12 * DAY + 9 * HOUR)
        again = await world.drain()
        await world.advance("40d")

    days = [n for n in range(43) if not (touch and n == 12)]
    assert [due for _, due in sent] == [START + n * DAY + 9 * HOUR for n in days]
    assert all(when == due - timedelta(minutes=10) for when, due in sent)
    assert again == 0


async def test_a_clock_that_runs_ahead_and_is_put_right(app: Duetime, sent: list[Any]) -> None:
    """Far beyond the horizon: what seemed to be due is sent once, and after that all is on time."""
    late = {"rule": "-10m", "expires": "never"}
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats="0 9 * * *", remind=[late])
        await world.advance("1d")
        await world.outage("30d")
        await world.drain()
        ahead = len(sent)
        await world._set_clock(START + 2 * DAY)
        await world.advance("60d")

    dues = [due for _, due in sent]
    assert ahead == 31
    assert sorted(dues) == [START + n * DAY + 9 * HOUR for n in range(62)]
    assert dues[31:] == sorted(dues[31:])
    assert all(when == due - timedelta(minutes=10) for when, due in sent[31:])


async def test_a_subject_put_while_the_clock_ran_ahead_begins_with_what_comes(
    app: Duetime, sent: list[Any]
) -> None:
    """The clock is put right: from the next `put` on, all that is still to come is reminded of."""
    daily: dict[str, Any] = {"repeats": "0 9 * * *", "remind": ["-10m"]}
    async with app.testing(now=START + 20 * DAY) as world:
        await app.subjects.put("standup", **daily)
        await world._set_clock(START)
        same = await app.subjects.put("standup", **daily)
        await world.advance("40d")

    assert same == "same"
    assert [due for _, due in sent] == [START + n * DAY + 9 * HOUR for n in range(40)]


async def test_subjects_share_the_job_that_goes_on(app: Duetime, sent: list[Any]) -> None:
    async with app.testing(now=START) as world:
        for n in range(20):
            await app.subjects.put(f"s{n}", repeats=WORKDAYS, remind=["-10m"])
        jobs = [job for job in await world.enqueued() if job.task == "duetime.rearm"]
        await world.advance("30d")

    assert len(jobs) == 1
    assert len(sent) == 20 * 22


async def test_several_workers_go_on_at_once(app: Duetime, sent: list[Any]) -> None:
    """Beside people who change single occurrences: each reminder is armed once."""
    async with app.testing(now=START) as world:
        refs = [f"s{n}" for n in range(18)]
        for ref in refs:
            await app.subjects.put(ref, repeats="0 9 * * *", remind=["-10m"])
        await world.outage("9d")
        await asyncio.gather(
            *(rearm_stale(app) for _ in range(4)),
            *(app.subjects.skip(ref, START + 15 * DAY + 9 * HOUR) for ref in refs[::3]),
        )
        while await rearm_stale(app):
            pass
        await world.advance_to(START + 17 * DAY)

    days = Counter(due for _, due in sent)
    assert [days[START + n * DAY + 9 * HOUR] for n in (13, 14, 15, 16)] == [18, 18, 12, 18]


async def test_in_the_callers_transaction(app: Duetime, backend: Backend) -> None:
    async with app.testing(now=START):
        store = await app.store()
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"])
        before = await app.reminders.list(subject="standup")
        with suppress(UndoneError):
            async with store.transaction() as tx:
                await app.subjects.skip("standup", at("03T09:00"), tx=tx)
                await app.subjects.put("other", repeats="@daily", remind=["-10m"], tx=tx)
                raise UndoneError
        after = await app.reminders.list(subject="standup")
        with pytest.raises(SubjectNotFound):
            await app.subjects.get("other")

    assert after == before


async def test_what_cannot_be_is_refused_at_once(app: Duetime) -> None:
    async with app.testing(now=START):
        await app.subjects.put("once", due=START + DAY)
        await app.subjects.put("standup", repeats=WORKDAYS, remind=["-10m"])
        put = app.subjects.put
        with pytest.raises(InvalidInput, match="due= and repeats= cannot be combined"):
            await put("x", due=START, repeats=WORKDAYS)
        with pytest.raises(InvalidInput, match="Either due= or repeats= is required"):
            await put("x")
        with pytest.raises(InvalidInput, match="at most once a minute"):
            await put("x", repeats="*/10 * * * * *")
        for repeats in ({}, {"start": START}):
            with pytest.raises(InvalidInput, match="one of cron, rrule, every or specs"):
                await put("x", repeats=repeats)
        with pytest.raises(InvalidInput, match=r"^until must be between the years 1970 and 9000"):
            await put("x", repeats={"cron": WORKDAYS, "until": START.replace(year=9999)})
        with pytest.raises(InvalidInput, match=r"^to must be a datetime with a time zone"):
            await app.subjects.move("standup", at("03T09:00"), None)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"^since has no time zone"):
            await app.subjects.occurrences("standup", since=datetime(2026, 3, 3))
        with pytest.raises(InvalidInput, match="does not repeat, so it has no occurrences"):
            await app.subjects.skip("once", START + DAY)
        with pytest.raises(InvalidInput, match="no occurrence at 2026-03-07T09:00:00Z"):
            await app.subjects.skip("standup", at("07T09:00"))
        with pytest.raises(SubjectNotFound):
            await app.subjects.move("gone", at("07T09:00"), at("08T09:00"))
        await app.subjects.complete("standup")
        with pytest.raises(InvalidInput, match="is done"):
            await app.subjects.skip("standup", at("03T09:00"))


# Against a model

RULES: list[Any] = ["-10m", "-26h", "0s", "+30m", "-1d at 18:00", "every 1h within the last 3h"]
SPECS: list[Any] = [
    "0 9 * * 1-5",
    "30 2 * * *",
    "0 */6 * * *",
    {"rrule": "FREQ=WEEKLY;BYDAY=MO,TH", "start": "2026-03-02T17:30:00Z"},
    {"rrule": "FREQ=DAILY;INTERVAL=3;COUNT=9", "start": "2026-03-02T22:15:00Z"},
    {"rrule": "FREQ=DAILY", "start": "2026-03-04T00:00:00Z", "until": "2026-04-07T00:00:00Z"},
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
END = START + 45 * DAY


class Model:
    """Which occurrences there were, from when on and until when."""

    def __init__(self, spec: Any, tz: str, rules: list[Any]) -> None:
        self.recurrence = parse_repeats(spec, tz)
        self.rules = parse_rules(rules)
        self.tz = tz
        self.held: dict[datetime, list[list[datetime | None]]] = {}
        self.up: list[tuple[datetime, datetime]] = []
        self.note(START)

    def note(self, now: datetime) -> None:
        ends = takewhile(lambda one: one.due < END + 30 * DAY, self.recurrence.occurrences(START))
        due = {one.due for one in ends}
        for moment in due:
            spans = self.held.setdefault(moment, [])
            if not spans or spans[-1][1] is not None:
                spans.append([now, None])
        for moment, spans in self.held.items():
            if moment not in due and spans[-1][1] is None:
                spans[-1][1] = now

    def served(self, time: datetime, until: datetime) -> datetime | None:
        """When a worker first was there at `time` or later."""
        for start, end in self.up:
            if time <= end:
                return max(start, time)
        return None

    def expected(self, until: datetime) -> set[tuple[datetime, str, datetime]]:
        found = set()
        for due, spans in self.held.items():
            for rule in self.rules:
                for time in rule_times(rule, due, self.tz):
                    served = self.served(time, until)
                    if served is not None and any(
                        since is not None and since <= time and (end is None or served < end)
                        for since, end in spans
                        if since is not None and since <= served
                    ):
                        found.add((due, rule.id, time))
        return found


@pytest.mark.parametrize("seed", range(4))
async def test_every_reminder_is_sent_once_in_a_random_life(app: Duetime, seed: int) -> None:
    await random_life(app, seed)


async def random_life(app: Duetime, seed: int) -> None:
    """Exceptions, outages, jumps of the clock: every expected reminder once, none early, none of
    an occurrence that was left out."""
    random = Random(seed)
    spec, tz = random.choice(SPECS), random.choice(ZONES)
    rules = [{"rule": rule, "expires": "never"} for rule in random.sample(RULES, 2)]
    model = Model(spec, tz, rules)
    sent: list[tuple[datetime, str, datetime]] = []
    early: list[Reminder] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        sent.append((reminder.due_at, reminder.rule.id, reminder.time))
        if await app.now() < reminder.time:
            early.append(reminder)
        return Sent()

    async with app.testing(now=START, max_extra_jobs=5000) as world:
        await app.subjects.put("s", repeats=spec, tz=tz, remind=rules)
        await world.drain()
        model.up.append((START, START))
        while world.now < END:
            span = timedelta(seconds=random.choice([600, 7200, 86400, 5 * 86400, 20 * 86400]))
            span *= random.random()
            before = world.now
            if random.random() < 0.3:
                await world.outage(span)
                # Something is changed before the workers are back.
                if random.random() < 0.5:
                    await change(app, model, random, world.now)
                await world.drain()
                model.up.append((world.now, world.now))
            else:
                await world.advance(span)
                model.up.append((before, world.now))
            await world.advance("1ms")  # So that the model sees what came first.
            if random.random() < 0.6:
                await change(app, model, random, world.now)
            if random.random() < 0.2:
                await app.subjects.put("s", repeats=spec, tz=tz, remind=rules, data={"n": seed})
            await world.drain()
            model.up.append((world.now, world.now))
        await world.drain()
        until = world.now

    expected = model.expected(until)
    assert early == []
    assert [one for one, times in Counter(sent).items() if times > 1] == []
    assert sorted(expected - set(sent)) == []
    assert sorted(set(sent) - expected) == []


async def change(app: Duetime, model: Model, random: Random, now: datetime) -> None:
    near = now + timedelta(days=random.uniform(-2, 20))
    one = next(model.recurrence.occurrences(max(near, START)), None)
    if one is None:
        return
    exception: Any = random.choice(["skip", "done", "move", None])
    if exception == "move":
        exception = one.due + timedelta(minutes=random.randint(-600, 3000))
        exception = max(exception, START + HOUR)
    match exception:
        case "skip":
            await app.subjects.skip("s", one.due)
        case "done":
            await app.subjects.complete("s", occurrence=one.due)
        case None:
            originals = sorted(model.recurrence.exceptions or {})
            if not originals:
                return
            original = random.choice(originals)
            await app.subjects.restore("s", original)
            model.recurrence = model.recurrence.changed(original, None, now)
            model.note(now)
            return
        case _:
            await app.subjects.move("s", one.due, exception)
    if exception == one.original:
        exception = None
    model.recurrence = model.recurrence.changed(model.recurrence.find(one.due), exception, now)
    model.note(now)
