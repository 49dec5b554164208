"""Every noun has the same verbs, pages and handles, on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Duetime
from duetime.domain.page import Page
from duetime.errors import (
    InvalidInput,
    PresetNotFound,
    QueueNotFound,
    RecipientNotFound,
    ReminderNotFound,
    ScheduleNotFound,
    ScopeNotFound,
    SubjectNotFound,
    TableNotFound,
)
from tests.conftest import Backend

START = datetime(2030, 3, 2, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = ["a", "b", "c", "d", "e"]
List = Callable[..., Awaitable[Page[Any]]]


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


async def pages(list_page: List, **filters: Any) -> list[Any]:
    """All of a list, two at a time; every page but the last has two."""
    found: list[Any] = []
    after = None
    while True:
        page = await list_page(limit=2, after=after, **filters)
        found += page
        if (after := page.next) is None:
            assert 1 <= len(page) <= 2
            return found
        assert len(page) == 2


async def test_schedules_come_in_pages_by_name(app: Duetime) -> None:
    for name in reversed(NAMES):
        await app.schedules.put(name, "send", "0 9 * * *")

    assert [one.name for one in await pages(app.schedules.list)] == NAMES
    assert [one.name async for one in app.schedules.iterate(limit=2)] == NAMES
    assert (await app.schedules["c"].get()).name == "c"


async def test_the_history_comes_in_pages_newest_first(app: Duetime) -> None:
    now = await app.now()
    await app.schedules.put("daily", "send", "0 9 * * *")
    daily = app.schedules["daily"]
    await daily.backfill(now - 5 * DAY, now)
    ticks = [row.tick for row in await daily.history()]

    assert len(ticks) >= 5
    assert ticks == sorted(ticks, reverse=True)
    assert [row.tick for row in await pages(daily.history)] == ticks


async def test_presets_have_the_verbs_of_a_noun(app: Duetime) -> None:
    presets = app.schedules.presets
    before = await presets.list()
    results = [
        await presets.put("closing", "0 18 * * 1-5", by="ann"),
        await presets.put("closing", "0 18 * * 1-5", by="bob"),
        await presets.put("closing", "0 17 * * 1-5", by="cem"),
        await presets.put("opening", "0 9 * * 1-5", by="ann"),
    ]
    listed = await pages(presets.list)
    await presets.delete("closing", by="dee")
    events = await presets.audit("closing")

    assert results == ["added", "same", "changed", "added"]
    assert [one.name for one in listed[len(before) :]] == ["closing", "opening"]
    assert listed[: len(before)] == before
    assert (await presets.get("OPENING")).spec == "0 9 * * 1-5"
    assert [(event.actor, event.action) for event in events] == [
        ("dee", "preset.delete"),
        ("cem", "preset.put"),
        ("ann", "preset.put"),
    ]
    with pytest.raises(PresetNotFound):
        await presets.delete("closing")


async def test_scopes_come_in_pages_by_reference(app: Duetime) -> None:
    results = [await app.scopes.put(ref, by="ann") for ref in reversed(NAMES)]
    again = await app.scopes["a"].put(remind=["-1h"], by="bob")
    [changed, added] = await app.scopes["a"].audit()

    assert [one.ref for one in await pages(app.scopes.list)] == NAMES
    assert [one.ref async for one in app.scopes.iterate(limit=2)] == NAMES
    assert (set(results), again, again.affected) == ({"added"}, "changed", 0)
    assert (changed.actor, added.actor) == ("bob", "ann")
    assert (await app.scopes["b"].get()).rules is None


async def test_subjects_come_in_pages_the_next_due_first(app: Duetime) -> None:
    await app.scopes.put("guild")
    await app.scopes.put("channel", parent="guild")
    for number, name in enumerate(NAMES):
        # Two are due at once, and one of a page's end is among them.
        due = START - max(1, number) * DAY
        await app.subjects.put(name, due=due, scope="channel" if number % 2 else "guild")
    for name in ("x", "y", "z"):
        await app.subjects.put(name, due=None)
    await app.subjects.put("daily", repeats="0 9 * * *")
    await app.subjects.complete("c")
    everything = ["e", "d", "c", "a", "b", "x", "y", "z", "daily"]

    assert [one.ref for one in await pages(app.subjects.list)] == everything
    assert [one.ref async for one in app.subjects.iterate(limit=3)] == everything
    opened = await pages(app.subjects.list, scope="guild", status="open")
    assert [one.ref for one in opened] == ["e", "d", "a", "b"]
    inside = await pages(app.subjects.list, scope="channel")
    assert [one.ref for one in inside] == ["d", "b"]


async def test_recipients_come_in_pages_by_reference(app: Duetime) -> None:
    for ref in reversed(NAMES):
        await app.recipients[ref].put(tz="Europe/Berlin", by="ann")
    await app.recipients["a"].mute("all", by="bob")

    assert [one.ref for one in await pages(app.recipients.list)] == NAMES
    assert [one.ref async for one in app.recipients.iterate(limit=2)] == NAMES
    assert [event.actor for event in await app.recipients["a"].audit()] == ["bob", "ann"]


async def test_reminders_come_in_pages_newest_first_or_by_their_times(app: Duetime) -> None:
    @app.on_reminder
    async def send(reminder: Any) -> None: ...

    for number, name in enumerate(NAMES):
        await app.subjects.put(name, due=START - number * DAY, remind=["-1h", "-2h", "-3h"])
    armed = await app.reminders.list(status="armed")
    every = await app.reminders.list()
    first = await app.reminders.list(subject="a")
    soon = await app.reminders.preview("36500d", limit=2)

    assert len(armed) == len(every) == 15
    assert [one.run_at for one in armed] == sorted(one.run_at for one in armed if one.run_at)
    assert [one.id for one in every] == sorted((one.id for one in every), reverse=True)
    assert [one.rule.text for one in first] == ["-3h", "-2h", "-1h"]
    assert await pages(app.reminders.list) == every
    assert await pages(app.reminders.list, status="armed") == armed
    assert await pages(app.reminders.list, subject="a") == first
    assert await pages(app.reminders.list, subject="a", status="armed") == first
    assert (soon, await app.reminders.preview("36500d", after=soon.next)) == (armed[:2], armed[2:])
    assert [one async for one in app.reminders.iterate(limit=4)] == every
    assert await app.reminders[first[0].id].get() == first[0]
    with pytest.raises(InvalidInput, match="earlier page of the same list"):
        await app.reminders.list(after=soon.next)


async def test_tables_have_the_verbs_of_a_noun(app: Duetime, backend: Backend) -> None:
    async with (await app.store()).transaction() as connection:
        due = "timestamptz" if backend.is_postgres else "text"
        made = connection.execute(f"create table calls (id integer primary key, at {due})")
        if backend.is_postgres:
            await made
    names = ["calls", "later", "more"]
    for name in reversed(names):
        await app.tables.put("calls", id="id", due="at", name=name, by="ann")
    again = await app.tables.put("calls", id="id", due="at", by="bob")
    changed = await app.tables.put("calls", id="id", due="at", remind=["-1h"], by="bob")

    assert [one.track.name for one in await pages(app.tables.list)] == names
    assert (again, changed, changed.affected) == ("same", "changed", 0)
    assert (await app.tables["later"].get()).track.name == "later"
    assert await app.tables["later"].delete(by="cem") == 0
    assert [event.actor for event in await app.tables["later"].audit()] == ["cem", "ann"]
    assert [one.track.name async for one in app.tables.iterate(limit=1)] == ["calls", "more"]


async def test_a_queue_is_explained(app: Duetime) -> None:
    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    await app.queues.limit("mail", rate=1, period="1h")
    await send.using(delay="1h").enqueue()
    no_worker = await app.queues.explain("mail")
    async with app.worker(queues=["mail"]):
        not_due = await app.queues["mail"].explain()
        await (await send.enqueue()).result()
        await send.enqueue()
        limited = await app.queues.explain("mail")
        await app.queues.pause("mail", by="ann", reason="holiday")
        paused = await app.queues.explain("mail")

    assert [one.code for one in (no_worker, not_due, limited, paused)] == [
        "no_worker", "not_due", "rate_limited", "paused",
    ]  # fmt: skip
    assert (limited.facts["started"], limited.facts["limit"]) == (1, 1)
    assert "by ann: holiday" in paused.sentence


async def test_a_subject_is_explained(app: Duetime) -> None:
    await app.scopes.put("guild", remind=["-1h"])
    await app.subjects.put("game", due=START, scope="guild", recipients=["ann"])
    [reminder] = await app.reminders.list(subject="game")
    armed = await app.subjects["game"].explain()
    await app.recipients.put("ann", muted=["scope:guild"])
    muted = await app.subjects.explain("game")
    await app.subjects.put("late", due=datetime(2020, 1, 1, tzinfo=UTC), scope="guild")
    past = await app.subjects.explain("late")
    await app.subjects.put("daily", repeats="0 9 * * *", remind=["-1h"])
    repeats = await app.subjects.explain("daily")
    await app.subjects.put("bare", due=START)
    bare = await app.subjects.explain("bare")
    await app.subjects.complete("game")
    done = await app.subjects.explain("game")

    explained = [armed, muted, past, repeats, bare, done]
    assert [one.code for one in explained] == [
        "not_due", "muted", "past", "not_due", "no_rules", "completed",
    ]  # fmt: skip
    assert (armed.facts["reminder"], armed.facts["rules_from"]) == (reminder.id, "guild")
    assert [step.code for step in muted.steps] == ["level_inherits", "level_rules", "muted"]
    assert [str(step) for step in done.steps[2:]] == [
        "1 of its reminders is cancelled: the subject was completed."
    ]


async def test_a_subject_that_a_worker_has_yet_to_arm_is_explained(
    app: Duetime, backend: Backend
) -> None:
    await app.subjects.put("game", due=START, remind=["-1h"])
    async with (await app.store()).transaction() as connection:
        if backend.is_postgres:
            await connection.execute("update duetime.subject set rearm_at = duetime.now()")
        else:
            connection.execute("update duetime_subject set rearm_at = 1")

    assert (await app.subjects.explain("game")).code == "stale"


async def test_a_scope_is_explained(app: Duetime) -> None:
    await app.scopes.put("guild", remind=["-1h"])
    await app.scopes.put("channel", parent="guild")
    await app.scopes.put("thread", parent="channel", remind=["-2h"])
    inherited = await app.scopes["channel"].explain()
    own = await app.scopes.explain("thread")
    await app.scopes.put("guild", remind=["-1h"], locked=True)
    overruled = await app.scopes.explain("thread")

    explained = [inherited, own, overruled]
    assert [one.code for one in explained] == ["inherited_rules", "own_rules", "overruled"]
    assert [one.facts["rules"] for one in explained] == [["-1h"], ["-2h"], ["-1h"]]
    assert [one.facts["source"] for one in explained] == ["guild", "thread", "guild"]


async def test_what_is_not_there_is_not_found(app: Duetime) -> None:
    for look, error in (
        (app.schedules["x"].get(), ScheduleNotFound),
        (app.schedules.presets.get("x"), PresetNotFound),
        (app.scopes["x"].get(), ScopeNotFound),
        (app.scopes["x"].delete(), ScopeNotFound),
        (app.scopes["x"].explain(), ScopeNotFound),
        (app.queues["x"].explain(), QueueNotFound),
        (app.subjects["x"].explain(), SubjectNotFound),
        (app.subjects["x"].get(), SubjectNotFound),
        (app.subjects["x"].delete(), SubjectNotFound),
        (app.recipients["x"].get(), RecipientNotFound),
        (app.recipients["x"].delete(), RecipientNotFound),
        (app.reminders[1].get(), ReminderNotFound),
        (app.tables["x"].get(), TableNotFound),
        (app.tables["x"].delete(), TableNotFound),
    ):
        with pytest.raises(error):
            await look


@pytest.mark.parametrize("bad", ["", 0, -1, None, True, 1.5])
def test_a_handle_needs_an_identifier(bad: Any) -> None:
    app = Duetime("sqlite:///unused.db")
    nouns: list[Any] = [
        app.jobs, app.reminders, app.queues, app.schedules, app.scopes, app.subjects,
        app.recipients, app.tables,
    ]  # fmt: skip

    for noun in nouns:
        with pytest.raises(InvalidInput):
            noun[bad]


def test_a_handle_shows_what_it_is_and_tells_its_verbs() -> None:
    app = Duetime("sqlite:///unused.db")
    handle = app.schedules["daily"]

    assert repr(handle) == "<ScheduleHandle 'daily'>"
    assert handle == app.schedules["daily"]
    assert handle != app.schedules["weekly"]
    assert handle != app.queues["daily"]
    assert len({handle, app.schedules["daily"]}) == 1
    assert type(handle).pause.__doc__ == type(app.schedules).pause.__doc__


@pytest.mark.parametrize("given", [5, None, [5], [[]]])
async def test_a_state_of_a_wrong_type_is_refused(app: Duetime, given: Any) -> None:
    for list_page, what in (
        (app.jobs.list, "is not a job state"),
        (app.jobs.requeue_many, "is not a job state"),
        (app.flows.list, "is not a state of a run"),
    ):
        with pytest.raises(InvalidInput, match=what):
            await list_page(state=given)


@pytest.mark.parametrize("given", [5, [], {}])
async def test_a_name_or_a_status_of_a_wrong_type_is_refused(app: Duetime, given: Any) -> None:
    await app.schedules.put("daily", "report", "0 9 * * *")
    with pytest.raises(InvalidInput, match="is not a status of a reminder"):
        await app.reminders.list(status=given)
    with pytest.raises(InvalidInput, match="resend_many\\(\\) cannot send reminders"):
        await app.reminders.resend_many(status=given)
    with pytest.raises(InvalidInput, match="is not a status of a tick"):
        await app.schedules.history("daily", status=given)
    with pytest.raises(InvalidInput, match="The flow must be a string"):
        await app.flows.start(given)
