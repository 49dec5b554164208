"""Rules that no reminder refers to are removed, and none that is used, on every backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duetime import Duetime, Reminder, Sent
from duetime.reminders import follower
from duetime.storage.reminders.pruning import PruneStatements, RuleScan
from tests.conftest import Backend, query
from tests.waiting import until

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
DUE = START + timedelta(days=10)


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url, migrate=True)


@pytest.fixture
def sent(app: Duetime) -> list[tuple[str, str]]:
    sent: list[tuple[str, str]] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        sent.append((reminder.subject, reminder.rule.text))
        return Sent()

    return sent


async def scan(app: Duetime, *, enough: int = 0, most: int = 2) -> RuleScan | None:
    """Read which rules the reminders refer to, in pages of two."""
    store = await app.store()
    statements = PruneStatements(store.dialect)
    found: RuleScan | None = await store.transact(
        statements.begin_rule_scan(enough=enough), reads=True
    )
    while found is not None and not found.is_complete:
        await store.transact(statements.scan_rules(found, most=most), reads=True)
    return found


async def drop(app: Duetime, found: RuleScan | None) -> None:
    assert found is not None
    store = await app.store()
    while await store.transact(PruneStatements(store.dialect).drop_rules(found)):
        pass


async def prune(app: Duetime) -> None:
    await drop(app, await scan(app))


def rules(backend: Backend) -> list[tuple[str, bool]]:
    """The rules, and whether each is retired."""
    found = query(backend, "select name, retired_at is not null from duetime.rule order by id")
    return [(name, bool(retired)) for name, retired in found]


async def put(app: Duetime, ref: str, rule: str) -> None:
    await app.subjects.put(ref, due=DUE, remind=[rule])


async def test_a_rule_goes_a_day_after_no_reminder_refers_to_it(
    app: Duetime, backend: Backend, sent: list[tuple[str, str]]
) -> None:
    async with app.testing(now=START, isolated=False) as world:
        for n in range(5):
            await put(app, f"game:{n}", f"-{n + 1}h")
        await prune(app)
        used = rules(backend)
        for n in range(4):
            await app.subjects.delete(f"game:{n}")
        await prune(app)
        retired = rules(backend)
        await world.advance("23h")
        await prune(app)
        early = rules(backend)
        await world.advance("2h")
        await prune(app)
        left = rules(backend)
        await world.advance("10d")

    assert [is_retired for _, is_retired in used] == [False] * 5
    assert [is_retired for _, is_retired in retired] == [True] * 4 + [False]
    assert early == retired
    assert left == used[4:]
    assert sent == [("game:4", "-5h")]


async def test_a_rule_that_is_used_again_is_stored_again(
    app: Duetime, backend: Backend, sent: list[tuple[str, str]]
) -> None:
    """Under another number: the old one may be deleted at any time."""
    async with app.testing(now=START, isolated=False) as world:
        await put(app, "game:1", "-1h")
        await app.subjects.delete("game:1")
        await prune(app)
        await put(app, "game:2", "-1h")
        await put(app, "game:3", "-1h")
        both = rules(backend)
        await world.advance("25h")
        await prune(app)
        left = rules(backend)
        same = await app.subjects.put("game:2", due=DUE, remind=["-1h"])
        armed = await app.reminders.list(status="armed")
        await world.advance("10d")

    assert [is_retired for _, is_retired in both] == [True, False]
    assert [is_retired for _, is_retired in left] == [False]
    assert same == "same"
    assert len(armed) == 2
    assert sorted(sent) == [("game:2", "-1h"), ("game:3", "-1h")]


async def test_a_rule_that_comes_into_use_during_a_scan_is_kept(
    app: Duetime, backend: Backend, sent: list[tuple[str, str]]
) -> None:
    """Its reminder is armed after the scan; or is changed to it after its page was read."""
    async with app.testing(now=START, isolated=False) as world:
        await app.recipients.put("ann", quiet="00:00-12:00")
        await put(app, "game:1", "-1h")
        await app.subjects.put("now", due=START, remind=[{"rule": "0s"}], recipients=["ann"])
        await world.advance("1m")
        options = [{"rule": "0s", "template": "short"}]
        await app.subjects.put("other", due=DUE, remind=options)
        for ref in ("game:1", "other"):
            await app.subjects.delete(ref)
        found = await scan(app)
        await put(app, "game:2", "-1h")
        await app.subjects.put("now", due=START, remind=options, recipients=["ann"])
        await drop(app, found)
        for _ in range(3):
            await world.advance("25h")
            await prune(app)
        armed = await app.reminders.list(subject="game:2")
        held = await app.reminders.list(subject="now")

    assert [one.status for one in armed] == ["armed"]
    assert [one.rule.template for one in held] == ["short"]


async def test_a_scan_is_rare(app: Duetime, backend: Backend) -> None:
    """Not with few rules, nor again soon after some were retired, by whichever worker."""
    async with app.testing(now=START, isolated=False) as world:
        await put(app, "game:1", "-1h")
        await put(app, "game:2", "-2h")
        few = await scan(app, enough=3)
        await app.subjects.delete("game:1")
        first = await scan(app, enough=2)
        await drop(app, first)
        again = await scan(app, enough=2)
        await world.advance("21h")
        later = await scan(app, enough=2)

    assert (few, again) == (None, None)
    assert first is not None
    assert later is not None


async def test_workers_retire_what_is_unused(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_FIRST_SCAN_SECONDS", 0.0)
    monkeypatch.setattr(follower, "_MANY_RULES", 2)
    app = Duetime(backend.url, migrate=True, prune_every="50ms")
    due = await app.now() + HOUR
    await app.subjects.put("stays", due=due, remind=["-1m"])
    await app.subjects.put("goes", due=due, remind=["-2m"])
    await app.subjects.delete("goes")
    async with app.worker():

        async def is_retired() -> bool:
            return [retired for _, retired in rules(backend)] == [False, True]

        await until(is_retired)
    await app.close()
