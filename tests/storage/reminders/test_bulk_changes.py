"""Many subjects that are written together: workers arm most of them afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import psycopg
import pytest

from duetime import Duetime, JobState, Reminder, Sent, Snooze
from duetime.domain.reminders.rule import rule_times
from duetime.domain.reminders.rule_text import parse_rules
from duetime.reminders import rearm
from duetime.reminders.rearm import rearm_stale
from duetime.storage.reminders.rearm import RearmStatements
from tests.waiting import until, until_true

MANY = 5_010
"""More than one transaction arms."""
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
_TABLE = """
create table game (id bigint primary key, starts timestamptz, guild text);
insert into game select n, '2999-01-01Z'::timestamptz + n * interval '1 second', 'g'
from generate_series(1, {rows}) as n
"""


@pytest.fixture
async def app(pg_url: str) -> AsyncIterator[Duetime]:
    app = Duetime(pg_url, migrate=True)
    yield app
    await app.close()


async def run(url: str, statement: str) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(statement.encode())
        return await cursor.fetchall() if cursor.description else []


async def put(
    app: Duetime,
    dues: Sequence[datetime],
    *,
    first: int = 0,
    scope: str | None = None,
    **options: Any,
) -> dict[str, str]:
    return await app.subjects.put_many(
        app.subjects.define(f"game:{number}", due=due, scope=scope, **options)
        for number, due in enumerate(dues, first)
    )


async def armed(url: str) -> dict[str, list[tuple[datetime, str]]]:
    """When and by which rule reminders of each subject are armed and wait as jobs."""
    rows = await run(
        url,
        "select s.ref, r.time, u.name from duetime.reminder as r"
        " join duetime.subject as s on s.id = r.subject_id join duetime.rule as u on u.id = r.rule"
        " join duetime.due as d on d.job_id = r.job_id and d.run_at = r.run_at"
        " where r.status = 'armed' order by 1, 2, 3",
    )
    found: dict[str, list[tuple[datetime, str]]] = {}
    for ref, time, rule in rows:
        found.setdefault(ref, []).append((time, rule))
    return found


async def left(url: str) -> int:
    """How many subjects workers have yet to arm."""
    [(waiting, listed)] = await run(
        url,
        "select (select count(*) from duetime.subject where armed_under < 0),"
        " (select coalesce(sum(cardinality(ids)), 0) from duetime.bulk_change_part)",
    )
    assert waiting == listed
    return int(waiting)


async def arm_all(app: Duetime) -> None:
    """As a worker does: it comes back for subjects that another session has locked."""

    async def done() -> bool:
        return await rearm_stale(app) is None

    await until(done)


async def changes(url: str) -> int:
    [(count,)] = await run(url, "select count(*) from duetime.bulk_change")
    return int(count)


async def test_many_subjects_are_stored_at_once_and_armed_by_workers(
    app: Duetime, pg_url: str
) -> None:
    now = await app.now()
    await app.scopes.put("all", remind=["-1h", "-1d"])
    answer = await put(app, [now + 9 * DAY] * MANY, scope="all")
    waiting = await left(pg_url)
    stale = (await app.subjects.get("game:7")).stale
    explained = await app.subjects.explain("game:7")

    assert await rearm_stale(app) is None

    assert answer == {f"game:{number}": "added" for number in range(MANY)}
    assert waiting == MANY
    assert stale
    assert explained.code == "stale"
    found = await armed(pg_url)
    assert len(found) == MANY
    assert set(map(tuple, found.values())) == {
        ((now + 8 * DAY, "1d-before"), (now + 9 * DAY - HOUR, "1h-before"))
    }
    assert not (await app.subjects.get("game:7")).stale
    assert (await left(pg_url), await changes(pg_url)) == (0, 0)


async def test_a_worker_arms_what_is_left(app: Duetime, pg_url: str) -> None:
    await put(app, [await app.now() + DAY] * MANY, remind=["-1h"])
    async with app.worker():

        async def all_armed() -> bool:
            return len(await armed(pg_url)) == MANY

        await until(all_armed)


async def write_later(url: str, statement: str) -> None:
    """Run a statement that leaves to workers what it writes, however little that is."""
    await run(url, f"set duetime.arm_later = 'true'; {statement}")


async def rearm_jobs(app: Duetime, state: str) -> int:
    jobs = app.jobs.iterate(task="duetime.rearm", state=JobState(state))
    return len([job async for job in jobs])


async def test_one_job_at_a_time_arms_what_many_statements_left(
    app: Duetime, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take the runners and the connections of the worker from what is due."""
    running: list[int] = []
    most = 0

    async def count(app: Duetime) -> Snooze | None:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        try:
            return await rearm_stale(app)
        finally:
            running.pop()

    monkeypatch.setattr(rearm, "rearm_stale", count)
    await run(pg_url, _TABLE.format(rows=0))
    await app.tables.put("game", id="id", due="starts", remind=["-1h"])
    for number in range(20):
        row = f"({number}, '2999-01-01Z', 'g')"
        await write_later(pg_url, f"insert into game values {row}")
    requested = await rearm_jobs(app, "pending")
    async with app.worker():

        async def all_done() -> bool:
            return await rearm_jobs(app, "completed") == requested

        await until(all_done)

    assert requested == 20
    assert len(await armed(pg_url)) == 20
    assert most == 1


async def test_what_is_left_to_workers_while_one_of_them_ends_is_armed(
    app: Duetime, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def end_late(app: Duetime) -> Snooze | None:
        nonlocal calls
        calls += 1
        answer = await rearm_stale(app)
        if calls == 1:
            await write_later(pg_url, "insert into game values (2, '2999-01-01Z', 'g')")

            async def second_done() -> bool:
                return await rearm_jobs(app, "completed") == 1

            await until(second_done)
        return answer

    monkeypatch.setattr(rearm, "rearm_stale", end_late)
    await run(pg_url, _TABLE.format(rows=0))
    await app.tables.put("game", id="id", due="starts", remind=["-1h"])
    await write_later(pg_url, "insert into game values (1, '2999-01-01Z', 'g')")
    async with app.worker():

        async def both_done() -> bool:
            return await rearm_jobs(app, "completed") == 2

        await until(both_done)

    assert calls == 2
    assert sorted(await armed(pg_url)) == ["game:1", "game:2"]


async def test_a_few_more_are_armed_when_the_call_returns(app: Duetime, pg_url: str) -> None:
    """5,000 is not many."""
    await put(app, [await app.now() + DAY] * 5_000, remind=["-1h"])

    assert len(await armed(pg_url)) == 5_000
    assert await changes(pg_url) == 0


async def test_of_many_that_stay_the_same_the_moved_ones_are_armed_at_once(
    app: Duetime, pg_url: str
) -> None:
    due = await app.now() + DAY
    await put(app, [due] * MANY, remind=["-1h"])
    await rearm_stale(app)

    answer = await put(app, [due + HOUR] * 3 + [due] * (MANY - 3), remind=["-1h"])

    found = await armed(pg_url)
    assert list(answer.values()).count("changed") == 3
    assert found["game:0"] == [(due, "1h-before")]
    assert found["game:9"] == [(due - HOUR, "1h-before")]
    assert (len(found), await left(pg_url), await changes(pg_url)) == (MANY, 0, 0)


async def test_what_is_due_within_a_minute_is_armed_by_the_call(app: Duetime, pg_url: str) -> None:
    now = await app.now()
    soon = now + timedelta(seconds=30)
    await app.scopes.put("hourly", remind=["-1h"])
    near = {
        "own": app.subjects.define("own", due=soon + DAY, remind=["-1d"]),
        "inherited": app.subjects.define("inherited", due=soon + HOUR, scope="hourly"),
        "fixed": app.subjects.define("fixed", due=now + 90 * DAY, remind=[soon]),
        "repeated": app.subjects.define(
            "repeated", due=soon + HOUR, remind=["every 1h within the last 1h"]
        ),
    }
    far = [app.subjects.define(f"far:{n}", due=now + 90 * DAY, remind=["-1h"]) for n in range(MANY)]

    await app.subjects.put_many([*far, *near.values()])

    assert sorted(await armed(pg_url)) == sorted(near)
    assert await left(pg_url) == MANY


async def test_subjects_are_listed_by_when_they_are_reminded_of_next(
    app: Duetime, pg_url: str
) -> None:
    since = datetime(2999, 3, 8, 3, 7, tzinfo=UTC)
    zones = ["UTC", "America/New_York", "Asia/Kolkata", "Pacific/Kiritimati", "CET"]
    rules = [
        "-1h",
        "-1d",
        "+30m",
        "at 09:00",
        "-1d at 23:30",
        "+1d at 02:30",
        "at 2999-03-09T00:00Z",
    ]
    chosen = Random(7)
    wanted: dict[str, datetime] = {}
    subjects = []
    for number in range(400):
        due = since + timedelta(minutes=chosen.randint(-2000, 2000))
        tz = chosen.choice(zones)
        remind = chosen.sample(rules, 2)
        subjects.append(app.subjects.define(f"s:{number}", due=due, tz=tz, remind=remind))
        times = [at for rule in parse_rules(remind) for at in rule_times(rule, due, tz)]
        coming = [at for at in times if at >= since]
        wanted[f"s:{number}"] = min(coming, default=datetime.max.replace(tzinfo=UTC))
    await app.subjects.put_many(subjects)

    rows = await run(
        pg_url,
        "select s.ref, nullif(n.next, 'infinity') from duetime._nearest("
        f"array(select id from duetime.subject), '{since.isoformat()}') as n"
        " join duetime.subject as s on s.id = n.id order by n.place",
    )

    found = {ref: at or datetime.max.replace(tzinfo=UTC) for ref, at in rows}
    assert found == wanted
    assert list(found.values()) == sorted(wanted.values())


async def test_workers_arm_the_nearest_first(app: Duetime, pg_url: str) -> None:
    now = await app.now()
    dues = [now + (MANY - number) * HOUR for number in range(MANY)]
    await put(app, dues, remind=["-10s"])
    store = await app.store()

    await store.transact(RearmStatements(store.dialect).follow_changes(2000))

    found = await armed(pg_url)
    assert sorted(found) == sorted(f"game:{number}" for number in range(MANY - 2000, MANY))


async def test_a_large_statement_on_a_tracked_table_leaves_arming_to_workers(
    app: Duetime, pg_url: str
) -> None:
    await run(pg_url, _TABLE.format(rows=MANY))
    await app.tables.put("game", id="id", due="starts", scope="guild:{guild}", remind=["-1h"])
    added = await left(pg_url), len(await armed(pg_url))
    await rearm_stale(app)
    before = await armed(pg_url)
    await run(pg_url, "update game set starts = starts + interval '1 day'")
    moved = await left(pg_url)
    kept = await armed(pg_url)
    await rearm_stale(app)

    after = await armed(pg_url)
    # The first rows of a table are armed when it is put.
    assert added == (MANY - 2000, 2000)
    assert (moved, await left(pg_url)) == (MANY, 0)
    assert kept == before
    assert after == {
        ref: [(at + DAY, rule) for at, rule in reminders] for ref, reminders in before.items()
    }


async def test_a_statement_that_writes_many_scopes_leaves_their_subjects_to_workers(
    app: Duetime, pg_url: str
) -> None:
    await run(pg_url, _TABLE.format(rows=1_200))
    await run(
        pg_url,
        "update game set guild = id % 60; create table guild (id text primary key, minutes int[]);"
        " insert into guild select n, '{45}' from generate_series(0, 59) as n",
    )
    await app.tables.put("guild", kind="scopes", id="id", remind="minutes")
    await app.tables.put("game", id="id", due="starts", scope="guild:{guild}")
    await arm_all(app)
    jobs = await rearm_jobs(app, "pending")
    soon = "update game set starts = now() + interval '30 minutes 30 seconds' where id = 59"
    await run(pg_url, soon)
    await run(pg_url, "update guild set minutes = '{30}'")
    at_once = [
        ref for ref, reminders in (await armed(pg_url)).items() if reminders[0][1] == "30m-before"
    ]
    requested = await rearm_jobs(app, "pending") - jobs
    await arm_all(app)

    # 500 at once, and what is due within the minute.
    assert len(at_once) == 501
    assert "game:59" in at_once
    assert requested == 1
    found = await armed(pg_url)
    assert len(found) == 1_200
    assert {reminder[1] for reminders in found.values() for reminder in reminders} == {"30m-before"}
    assert (await left(pg_url), await changes(pg_url)) == (0, 0)


async def test_what_came_due_before_a_row_is_written_again_is_late_and_not_past(
    app: Duetime, pg_url: str
) -> None:
    await run(pg_url, _TABLE.format(rows=0))
    await app.tables.put("game", id="id", due="starts", remind=["-1h"], scope="guild:{guild}")
    in_two_minutes = "now() + interval '1 hour 2 minutes'"
    await write_later(
        pg_url,
        f"insert into game select n, {in_two_minutes}, 'g' from generate_series(1, 3) as n",
    )
    waiting = await left(pg_url)
    # As if the workers had been away for three minutes.
    await run(pg_url, "update duetime.bulk_change set at = at - interval '3 minutes'")
    await run(
        pg_url,
        "set session_replication_role = replica;"
        "update game set starts = starts - interval '3 minutes';"
        "update duetime.subject set due_at = due_at - interval '3 minutes'",
    )
    await run(pg_url, "update game set guild = 'h' where id = 1")
    at_once = sorted(await armed(pg_url))
    await write_later(pg_url, "update game set guild = 'h' where id = 2")
    await run(pg_url, "update game set starts = starts - interval '1 second' where id = 3")
    await arm_all(app)

    assert waiting == 3
    assert at_once == ["game:1"]
    assert sorted(await armed(pg_url)) == ["game:1", "game:2"]


async def test_a_reminder_of_a_row_that_moved_with_many_is_not_sent_though_nobody_follows(
    app: Duetime, pg_url: str
) -> None:
    sent: list[str] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        sent.append(reminder.subject)
        return Sent()

    await run(pg_url, _TABLE.format(rows=MANY))
    await app.tables.put("game", id="id", due="starts", remind=["-1h"])
    await run(pg_url, "update game set starts = now() + interval '1 hour 3 seconds' where id <= 2")
    await rearm_stale(app)
    # All but the first leave the next minute; the first is reminded of later in it.
    await run(
        pg_url,
        "update game set starts = case when id = 1 then starts + interval '2 seconds'"
        " else starts + interval '1 day' end",
    )
    jobs = [job.id async for job in app.jobs.iterate(task="duetime.rearm", state="pending")]
    for job in jobs:
        await app.jobs[job].cancel()
    async with app.worker():
        await until_true(lambda: bool(sent))

        async def rearmed() -> bool:
            return [at for at, _ in (await armed(pg_url)).get("game:2", [])] > [
                await app.now() + DAY / 2
            ]

        await until(rearmed)

    assert sent == ["game:1"]


async def test_what_comes_due_before_workers_arm_it_is_late_and_not_past(
    app: Duetime, pg_url: str
) -> None:
    now = await app.now()
    await put(app, [now + HOUR + timedelta(seconds=62)] * MANY, remind=["-1h"])
    # As if the workers had been away for two minutes.
    await run(pg_url, "update duetime.bulk_change set at = at - interval '2 minutes'")
    await run(pg_url, "update duetime.subject set due_at = due_at - interval '2 minutes'")

    await rearm_stale(app)

    statuses = await run(pg_url, "select status, count(*) from duetime.reminder group by 1")
    assert statuses == [("armed", MANY)]


async def test_a_change_of_their_scope_meanwhile_counts(app: Duetime, pg_url: str) -> None:
    due = await app.now() + 9 * DAY
    await app.scopes.put("all", remind=["-1h"])
    await put(app, [due] * MANY, scope="all")
    await app.scopes.put("all", remind=["-2h"])
    await arm_all(app)

    found = await armed(pg_url)
    assert (len(found), set(map(tuple, found.values()))) == (
        MANY,
        {((due - 2 * HOUR, "2h-before"),)},
    )
    [(rows,)] = await run(pg_url, "select count(*) from duetime.reminder")
    assert rows == MANY
    assert (await left(pg_url), await changes(pg_url)) == (0, 0)


async def test_subjects_that_are_put_completed_or_deleted_meanwhile_stay_so(
    app: Duetime, pg_url: str
) -> None:
    due = await app.now() + 9 * DAY
    await put(app, [due] * MANY, remind=["-1h"])
    await app.subjects.put("game:0", due=due + DAY, remind=["-1h"])
    await app.subjects.complete("game:1")
    await app.subjects.delete("game:2")
    await rearm_stale(app)

    found = await armed(pg_url)
    assert found["game:0"] == [(due + DAY - HOUR, "1h-before")]
    assert found["game:3"] == [(due - HOUR, "1h-before")]
    assert len(found) == MANY - 2
    assert not (await app.subjects.get("game:1")).stale
    assert (await left(pg_url), await changes(pg_url)) == (0, 0)


async def test_subjects_that_others_have_locked_are_armed_later(app: Duetime, pg_url: str) -> None:
    await put(app, [await app.now() + 9 * DAY] * MANY, remind=["-1h"])
    async with await psycopg.AsyncConnection.connect(pg_url) as other:
        await other.execute("select from duetime.subject where ref = 'game:5' for update")
        again = await rearm_stale(app)
        without = await armed(pg_url)
    last = await rearm_stale(app)

    assert again is not None
    assert len(without) == MANY - 1
    assert last is None
    assert len(await armed(pg_url)) == MANY


async def test_an_interrupted_call_leaves_nothing(app: Duetime, pg_url: str) -> None:
    due = await app.now() + 9 * DAY
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await app.subjects.put_many(
            (app.subjects.define(f"game:{n}", due=due, remind=["-1h"]) for n in range(MANY)),
            tx=connection,
        )
        await connection.rollback()

    [(subjects,)] = await run(pg_url, "select count(*) from duetime.subject")
    assert (subjects, await changes(pg_url)) == (0, 0)


async def test_one_that_is_marked_meanwhile_is_armed_as_of_the_first_of_both(
    app: Duetime, pg_url: str
) -> None:
    now = await app.now()
    await put(app, [now + HOUR + timedelta(seconds=62)] * MANY, remind=["-1h"])
    await run(pg_url, "update duetime.bulk_change set at = at - interval '2 minutes'")
    await run(
        pg_url,
        "update duetime.subject set due_at = due_at - interval '2 minutes',"
        " rearm_at = case when id % 2 = 0 then duetime.now() end",
    )

    await arm_all(app)

    statuses = await run(pg_url, "select status, count(*) from duetime.reminder group by 1")
    assert statuses == [("armed", MANY)]
