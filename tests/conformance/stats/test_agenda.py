"""`app.stats.agenda()`, `recipient_week()` and `preview()`: what comes next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import AgendaItem, Discard, Duetime, Flow, Reminder, Task
from duetime.domain.stats.agenda import position_of
from duetime.errors import InvalidInput, InvalidSchedule
from tests.conftest import Backend

NOW = datetime(2026, 3, 8, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


@pytest.fixture
def fine(app: Duetime) -> Task[..., None]:
    @app.task(name="fine")
    async def fine() -> None: ...

    return fine


async def all_pages(app: Duetime, limit: int, **window: Any) -> list[AgendaItem]:
    items: list[AgendaItem] = []
    after = None
    while True:
        page = await app.stats.agenda(limit=limit, after=after, **window)
        assert len(page) <= limit
        items += page
        if page.next is None:
            return items
        after = page.next


async def test_an_agenda_has_everything_in_order(app: Duetime, fine: Task[..., None]) -> None:
    @app.flow(name="trial")
    async def trial(flow: Flow) -> None:
        await flow.sleep("90m")

    @app.flow(name="forever")
    async def forever(flow: Flow) -> None:
        await flow.wait_for("never")

    async with app.testing(now=NOW) as world:
        await app.schedules.put("hourly", fine, "0 * * * *")
        await app.schedules.put("paused", fine, "0 * * * *")
        await app.schedules.pause("paused", by="ann")
        await app.subjects.put(
            "game:1", due=NOW + 2 * HOUR, remind=["-15m"], recipients=["ann", "bob"]
        )
        await fine.using(delay="2h").enqueue()
        run = await trial.start()
        await forever.start()
        await world.drain()

        agenda = await app.stats.agenda(until=NOW + 3 * HOUR)

    assert agenda.next is None
    assert [(item.at - NOW, item.kind, item.name) for item in agenda] == [
        (HOUR, "schedule", "hourly"),
        (90 * MINUTE, "flow", "trial"),
        (105 * MINUTE, "reminder", "game:1"),
        (105 * MINUTE, "reminder", "game:1"),
        (2 * HOUR, "schedule", "hourly"),
        (2 * HOUR, "job", "fine"),
        (3 * HOUR, "schedule", "hourly"),
    ]
    assert [item.recipient for item in agenda[2:4]] == ["ann", "bob"]
    assert (agenda[0].detail, agenda[1].id, agenda[2].detail) == (
        "cron 0 * * * * (UTC)",
        run.id,
        "-15m",
    )


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_pages_of_an_agenda_have_each_item_once(
    app: Duetime, fine: Task[..., None], limit: int
) -> None:
    async with app.testing(now=NOW):
        await app.schedules.put("often", fine, "*/10 * * * *")
        await app.schedules.put("other", fine, "*/10 * * * *")
        for number in range(3):
            await app.subjects.put(
                f"game:{number}", due=NOW + HOUR, remind=["-50m", "-40m"], recipients=["ann"]
            )
        for queue in ("default", "mail"):
            for _ in range(3):
                await fine.using(delay="20m", queue=queue).enqueue()

        items = await all_pages(app, limit, until=NOW + HOUR)

    assert len(items) == len({(item.kind, item.name, item.id, item.at) for item in items})
    kinds = [item.kind for item in items]
    assert (kinds.count("schedule"), kinds.count("reminder"), kinds.count("job")) == (12, 6, 6)
    assert items == sorted(items, key=position_of)


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_schedules_that_tick_at_the_same_time_are_all_there(
    app: Duetime, fine: Task[..., None], limit: int
) -> None:
    async with app.testing(now=NOW):
        for number in range(6):
            await app.schedules.put(f"s{number}", fine, "0 12 * * *")
        await app.schedules.put("soon", fine, "30 9 8 3 *")

        items = await all_pages(app, limit, until=NOW + timedelta(hours=24))

    assert [item.name for item in items] == ["soon", *(f"s{number}" for number in range(6))]


async def test_many_jobs_of_reminders_do_not_hide_a_job_behind_them(
    app: Duetime, fine: Task[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from duetime.storage.stats import agenda

    monkeypatch.setattr(agenda, "_MAX_OF_LANE", 2)
    async with app.testing(now=NOW):
        await app.subjects.put("game:1", due=NOW + HOUR, remind=["-50m", "-40m", "-30m", "-20m"])
        await fine.using(delay="55m").enqueue()

        items = await all_pages(app, 3)

    assert [item.kind for item in items] == ["reminder"] * 4 + ["job"]


async def test_a_week_of_a_recipient_has_their_quiet_hours(app: Duetime) -> None:
    async with app.testing(now=NOW):
        await app.recipients.put("ann", tz="Europe/Berlin", quiet="22:00-07:00")
        for recipient in ("ann", "bob"):
            await app.subjects.put(
                f"of {recipient}",
                due=NOW + timedelta(days=3),
                remind=["-1d", "-1h", "-10m"],
                recipients=[recipient],
            )
        await app.subjects.put("later", due=NOW + timedelta(days=30), recipients=["ann"])

        week = await app.stats.recipient_week("ann")
        day = await app.stats.recipient_week("bob", days=3)

    assert (week.tz, week.since, week.until) == ("Europe/Berlin", NOW, NOW + timedelta(days=7))
    assert [(item.name, item.detail) for item in week.reminders] == [
        ("of ann", "-1d"),
        ("of ann", "-1h"),
        ("of ann", "-10m"),
    ]
    assert week.quiet_spans[0].since == datetime(2026, 3, 8, 21, tzinfo=UTC)
    assert week.quiet_spans[0].until == datetime(2026, 3, 9, 6, tzinfo=UTC)
    assert len(week.quiet_spans) == 7
    assert (day.quiet, day.quiet_spans, len(day.reminders)) == (None, (), 3)


async def test_a_week_of_a_recipient_has_what_was_sent_and_what_failed(app: Duetime) -> None:
    @app.on_reminder
    async def send(reminder: Reminder) -> None:
        if reminder.subject == "broken":
            raise Discard("no such number")

    async with app.testing(now=NOW) as world:
        for subject, recipient in (("first", "ann"), ("broken", "ann"), ("other", "bob")):
            await app.subjects.put(
                subject, due=NOW + HOUR, remind=["-30m", "+1d"], recipients=[recipient]
            )
        await world.advance("2h")

        week = await app.stats.recipient_week("ann", since=NOW, days=3)
        later = await app.stats.recipient_week("ann", since=NOW + HOUR, days=3)

    assert {(one.subject, one.rule, one.status) for one in week.ended} == {
        ("first", "-30m", "sent"),
        ("broken", "-30m", "failed"),
    }
    assert {one.at - NOW < HOUR for one in week.ended} == {True}
    assert [item.detail for item in week.reminders] == ["+1d", "+1d"]
    assert later.ended == ()


async def test_quiet_hours_follow_clock_changes(app: Duetime) -> None:
    await app.recipients.put("ann", tz="America/New_York", quiet="22:00-07:00")

    week = await app.stats.recipient_week("ann", since=NOW - timedelta(days=1), days=2)

    # At 2 in the morning of 8 March clocks go forward.
    assert [(span.since.hour, span.until.hour) for span in week.quiet_spans] == [
        (9, 12),
        (3, 11),
        (2, 9),
    ]


async def test_a_spec_is_shown_in_two_zones(app: Duetime, fine: Task[..., None]) -> None:
    store = await app.store()
    await store.drive_clock(NOW - timedelta(days=2))
    await app.schedules.put("nightly", fine, "30 7 * * *")
    await app.schedules.put("edited", fine, "30 7 * * *")
    await app.schedules.put("off", fine, "30 7 * * *")
    await app.schedules.pause("off", by="ann")

    shown = await app.stats.preview(
        "30 2 * * *", tz="America/New_York", other_tz="Europe/Berlin", n=30, but="edited"
    )

    assert (shown.when, len(shown.ticks), shown.complete) == (
        "cron 30 2 * * * (America/New_York)",
        30,
        True,
    )
    before, change, after = shown.ticks[:3]
    assert (before.at, before.collides_with) == (
        datetime(2026, 3, 7, 7, 30, tzinfo=UTC),
        ("nightly",),
    )
    assert change.notes == (
        "clocks go forward 1h before this",
        "moved out of the gap from 02:30",
    )
    assert (after.at.hour, after.collides_with) == (6, ())
    assert before.other is not None
    assert (before.other.hour, before.other.utcoffset()) == (8, HOUR)
    changed = [tick for tick in shown.ticks if tick.other_notes]
    assert [tick.at.date().isoformat() for tick in changed] == ["2026-03-29"]
    assert changed[0].other_notes == ("clocks change in Europe/Berlin before this",)


async def test_ticks_collide_within_a_span(app: Duetime, fine: Task[..., None]) -> None:
    await app.schedules.put("nightly", fine, "35 7 * * *")

    apart = await app.stats.preview("30 7 * * *", n=1)
    close = await app.stats.preview("30 7 * * *", n=1, within="10m")

    assert (apart.ticks[0].collides_with, close.ticks[0].collides_with) == ((), ("nightly",))


async def test_what_cannot_be_shown_is_refused(app: Duetime) -> None:
    with pytest.raises(InvalidSchedule):
        await app.stats.preview("61 * * * *")
    for within in ("2h", "99999d"):
        with pytest.raises(InvalidInput, match="within must be at most 1h, got"):
            await app.stats.preview("0 * * * *", within=within)
    with pytest.raises(InvalidInput, match="days"):
        await app.stats.recipient_week("ann", days=0)
    with pytest.raises(InvalidInput, match="after"):
        await app.stats.agenda(after="tomorrow")
