"""A change of a scope with many subjects below: it returns at once, and workers follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Duetime, Reminder, Sent, Snooze
from duetime.reminders import rearm
from duetime.reminders.rearm import rearm_stale
from duetime.storage.reminders.rearm import RearmStatements
from tests.conftest import Backend
from tests.waiting import until

MANY = 520
"""More than a change arms in its own transaction."""
on_postgres = pytest.mark.parametrize("backend", ["postgres15", "postgres18"], indirect=True)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url, migrate=True)
    yield app
    await app.close()


async def fill(
    app: Duetime, *, ahead: timedelta, remind: Sequence[str], count: int = MANY
) -> datetime:
    """Put subjects into a scope that inherits its rules; return when they are due."""
    due = await app.now() + ahead
    await app.scopes.put("guild", remind=list(remind))
    await app.scopes.put("channel", parent="guild")
    await app.subjects.put_many(
        [app.subjects.define(f"game:{n}", due=due, scope="channel") for n in range(count)]
    )
    return due


async def armed(app: Duetime) -> list[str]:
    """The rules by which reminders are armed."""
    return sorted([one.rule.text async for one in app.reminders.iterate(status="armed")])


async def test_a_large_change_returns_before_its_subjects_are_armed(app: Duetime) -> None:
    await fill(app, ahead=timedelta(days=9), remind=["-1h"])
    put = await app.scopes.put("guild", remind=["-2h"])
    before = await armed(app)
    [reminder] = await app.reminders.list(status="armed", limit=1)
    [change] = await app.scopes.changes("guild")
    explained = await app.scopes.explain("guild")
    assert await rearm_stale(app) is None

    assert put.affected == MANY
    assert before == ["-1h"] * MANY
    assert reminder.stale
    assert change.left in (MANY, None)
    assert {"change_begun", "change_followed"} & {step.code for step in explained.steps}
    assert await armed(app) == ["-2h"] * MANY
    assert await app.scopes.changes("guild") == []


async def test_the_nearest_subjects_are_armed_first(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rearm, "_PART", 500)
    await fill(app, ahead=timedelta(days=9), remind=["-1h"], count=1600)
    soon = await app.now() + timedelta(days=2)
    await app.subjects.put("soon", due=soon, scope="channel")
    await app.scopes.put("guild", remind=["-2h"])

    assert await rearm_stale(app) is None

    [first] = await app.reminders.list(subject="soon", status="armed")
    later = [one async for one in app.reminders.iterate(status="armed") if one.id > first.id]
    assert first.rule.text == "-2h"
    assert len(later) >= 600


async def test_a_worker_follows_a_change(app: Duetime) -> None:
    await fill(app, ahead=timedelta(days=9), remind=["-1h"])
    await app.scopes.put("guild", remind=["-2h", "-3h"])
    async with app.worker():

        async def done() -> bool:
            return await armed(app) == ["-2h"] * MANY + ["-3h"] * MANY

        await until(done)


async def test_a_small_change_is_done_when_it_returns(app: Duetime) -> None:
    await fill(app, ahead=timedelta(days=9), remind=["-1h"], count=5)
    put = await app.scopes.put("guild", remind=["-2h"])

    assert put.affected == 5
    assert await armed(app) == ["-2h"] * 5
    assert await app.scopes.changes("guild") == []


async def test_what_comes_due_before_a_worker_follows_is_late_and_not_past(app: Duetime) -> None:
    due = await fill(app, ahead=timedelta(hours=1, seconds=3), remind=[])
    await app.scopes.put("guild", remind=["-1h"])

    async def passed() -> bool:
        return await app.now() > due - timedelta(hours=1)

    await until(passed)
    assert await rearm_stale(app) is None

    statuses = [str(one.status) async for one in app.reminders.iterate()]
    assert statuses == ["armed"] * MANY


async def test_what_came_due_before_a_subject_is_put_is_late_and_not_past(app: Duetime) -> None:
    """Nobody has followed the change of its scope."""
    due = await fill(app, ahead=timedelta(hours=1, seconds=3), remind=[])
    await app.scopes.put("guild", remind=["-1h"])

    async def passed() -> bool:
        return await app.now() > due - timedelta(hours=1)

    await until(passed)
    rules = ["-1h", "-30m"]
    define = app.subjects.define
    await app.subjects.put_many(
        define(f"game:{n}", due=due, scope="channel", remind=rules) for n in range(MANY - 1)
    )
    # One that is moved now to where its reminder is past, is past.
    earlier = due - timedelta(minutes=1)
    last = f"game:{MANY - 1}"
    await app.subjects.put(last, due=earlier, scope="channel", remind=rules)
    before = await armed(app)
    assert await rearm_stale(app) is None

    assert before == await armed(app) == ["-1h"] * (MANY - 1) + ["-30m"] * MANY
    found = await app.reminders.list(subject=last)
    assert (earlier, "skipped") in {(one.due_at, str(one.status)) for one in found}


async def test_what_no_longer_holds_is_not_sent_though_nobody_follows(
    app: Duetime, backend: Backend
) -> None:
    sent: list[str] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        sent.append(reminder.subject)
        return Sent()

    due = await fill(app, ahead=timedelta(hours=1, seconds=4), remind=["-1h"])
    await app.scopes.put("guild", remind=["-30m"])
    # Its job is lost; the repair comes after five seconds.
    jobs = [job.id async for job in app.jobs.iterate(task="duetime.rearm")]
    await app.jobs[jobs[0]].cancel()
    async with app.worker():

        async def settled() -> bool:
            late = await app.now() > due - timedelta(hours=1)
            return late and await armed(app) == ["-30m"] * MANY

        await until(settled, seconds=60)

    assert sent == []


@on_postgres
async def test_a_change_goes_on_where_a_worker_died(app: Duetime) -> None:
    await fill(app, ahead=timedelta(days=9), remind=["-1h"])
    await app.scopes.put("guild", remind=["-2h"])
    store = await app.store()
    statements = RearmStatements(store.dialect)
    counts = [await store.transact(statements.follow_changes(100)) for _ in range(3)]
    [change] = await app.scopes.changes("guild")
    assert await rearm_stale(app) is None

    assert counts == [0, 100, 100]
    assert (change.total, change.left) == (MANY, MANY - 200)
    assert await armed(app) == ["-2h"] * MANY


@on_postgres
async def test_two_sessions_follow_a_change_at_the_same_time(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(app, ahead=timedelta(days=9), remind=["-1h"])
    await app.scopes.put("guild", remind=["-2h"])
    monkeypatch.setattr(rearm, "_PART", 20)
    store = await app.store()
    transact, running, most = store.transact, 0, 0

    async def counted(*statements: Any, **options: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await transact(*statements, **options)
        finally:
            running -= 1

    monkeypatch.setattr(store, "transact", counted)
    assert await rearm_stale(app) is None

    assert most == 2
    assert await armed(app) == ["-2h"] * MANY
    assert await app.scopes.changes("guild") == []


@on_postgres
async def test_a_change_does_not_wait_for_a_locked_subject(app: Duetime, backend: Backend) -> None:
    await fill(app, ahead=timedelta(days=9), remind=["-1h"], count=3)
    with psycopg.connect(backend.url) as other:
        other.execute("select from duetime.subject where ref = 'game:1' for update")
        await asyncio.wait_for(app.scopes.put("guild", remind=["-2h"]), 20)
        meanwhile = await armed(app)
        again = await rearm_stale(app)
    assert await rearm_stale(app) is None

    assert meanwhile == ["-1h", "-2h", "-2h"]
    assert isinstance(again, Snooze)
    assert await armed(app) == ["-2h"] * 3


@on_postgres
async def test_changes_of_different_trees_do_not_wait_for_each_other(
    app: Duetime, backend: Backend
) -> None:
    for tree in ("a", "b"):
        await app.scopes.put(tree)
        await app.scopes.put(f"{tree}:inner", parent=tree)
    async with await psycopg.AsyncConnection.connect(backend.url) as connection:
        await app.scopes.put("a", remind=["-1h"], tx=connection)
        await asyncio.wait_for(app.scopes.put("b", remind=["-1h"]), 20)
        await asyncio.wait_for(app.scopes.put("b:inner", parent="b", remind=["-2h"]), 20)


async def change_two_trees(app: Duetime) -> None:
    due = await app.now() + timedelta(days=9)
    for tree in ("a", "b"):
        await app.scopes.put(tree, remind=["-1h"])
        await app.subjects.put_many(
            [app.subjects.define(f"{tree}:{n}", due=due, scope=tree) for n in range(MANY)]
        )
        await app.scopes.put(tree, remind=["-2h"])


@on_postgres
async def test_locked_subjects_of_one_change_do_not_hold_up_another(
    app: Duetime, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rearm, "_PART", 100)
    await change_two_trees(app)
    with psycopg.connect(backend.url) as other:
        other.execute("select from duetime.subject where scope = 'a' for update")
        again = await rearm_stale(app)
        meanwhile = await armed(app)

    assert isinstance(again, Snooze)
    assert meanwhile == ["-1h"] * MANY + ["-2h"] * MANY


@on_postgres
async def test_a_locked_scope_of_one_change_does_not_hold_up_another(
    app: Duetime, backend: Backend
) -> None:
    await change_two_trees(app)
    async with await psycopg.AsyncConnection.connect(backend.url) as connection:
        await app.scopes.put("a", remind=["-3h"], tx=connection)
        again = await asyncio.wait_for(rearm_stale(app), 20)
        meanwhile = await armed(app)
        await connection.commit()
    while await rearm_stale(app) is not None:
        pass

    assert isinstance(again, Snooze)
    assert meanwhile == ["-1h"] * MANY + ["-2h"] * MANY
    assert await armed(app) == ["-2h"] * MANY + ["-3h"] * MANY


@on_postgres
async def test_what_came_due_before_a_second_change_is_late_whichever_is_followed_first(
    app: Duetime, backend: Backend
) -> None:
    due = await fill(app, ahead=timedelta(hours=1, seconds=3), remind=[])
    await app.scopes.put("guild", remind=["-1h"])
    store = await app.store()
    await store.transact(RearmStatements(store.dialect).follow_changes(MANY))

    async def passed() -> bool:
        return await app.now() > due - timedelta(hours=1)

    await until(passed)
    await app.scopes.put("guild", remind=["-1h", "-30m"])
    with psycopg.connect(backend.url) as other:
        # Another worker has taken what is left of the first change.
        other.execute("select from duetime.bulk_change_part for update")
        assert await rearm_stale(app) is None

    assert await armed(app) == ["-1h"] * MANY + ["-30m"] * MANY


async def test_a_subject_that_is_put_meanwhile_is_up_to_date(app: Duetime) -> None:
    due = await fill(app, ahead=timedelta(days=9), remind=["-1h"])
    await app.scopes.put("guild", remind=["-2h"])
    await app.subjects.put("game:new", due=due, scope="channel")
    [reminder] = await app.reminders.list(subject="game:new")
    # To change its data alone does not arm it.
    await app.subjects.put("game:7", due=due, scope="channel", data={"title": "Chess"})
    [other] = await app.reminders.list(subject="game:7")

    assert (reminder.rule.text, reminder.stale) == ("-2h", False)
    assert (other.rule.text, other.stale) == ("-1h", True)


@on_postgres
async def test_a_subject_that_left_its_scope_does_not_keep_a_change(app: Duetime) -> None:
    due = await fill(app, ahead=timedelta(days=9), remind=["-1h"])
    await app.scopes.put("guild", remind=["-2h"])
    store = await app.store()
    # The subjects are listed, then some of them leave, and another tree changes.
    await store.transact(RearmStatements(store.dialect).follow_changes(100))
    await app.subjects.put("game:1", due=due, remind=["-5m"])
    await app.subjects.delete("game:2")
    await app.scopes.put("other", remind=["-1h"])
    await app.subjects.put("match", due=due, scope="other")
    await app.scopes.put("other", remind=["-4h"])

    assert await rearm_stale(app) is None
    assert await app.scopes.changes("guild") == []
    assert await armed(app) == ["-2h"] * (MANY - 2) + ["-4h", "-5m"]


@on_postgres
async def test_a_change_from_an_old_snapshot_reaches_what_was_put_since(
    app: Duetime, backend: Backend
) -> None:
    due = await fill(app, ahead=timedelta(days=9), remind=["-1h"], count=1)
    async with await psycopg.AsyncConnection.connect(backend.url) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await connection.execute("select count(*) from duetime.subject")
        await app.subjects.put("game:late", due=due, scope="channel")
        await app.scopes.put("guild", remind=["-2h"], tx=connection)
        await connection.commit()
    assert await rearm_stale(app) is None

    assert await armed(app) == ["-2h", "-2h"]
