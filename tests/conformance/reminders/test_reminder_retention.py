"""Reminders that ended long ago are removed, unless that would have them sent again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Duetime, Reminder, Sent
from duetime.errors import ReminderNotFound
from duetime.storage.reminders.pruning import PruneStatements
from tests.conftest import Backend
from tests.waiting import until

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
AGE = 30 * DAY
AT_ONCE = {"rule": "-1h", "past": "send_now", "expires": "never"}


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


@pytest.fixture
def sent(app: Duetime) -> list[str]:
    sent: list[str] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        sent.append(reminder.subject)
        return Sent(f"ext-{reminder.id}")

    return sent


async def prune(app: Duetime, age: timedelta = AGE) -> int:
    store = await app.store()
    count, after = await store.transact(PruneStatements(store.dialect).prune(age, 0))
    assert after == 0
    return int(count)


async def left(app: Duetime) -> list[tuple[str, str]]:
    return sorted((one.subject, one.status.value) for one in await app.reminders.list())


async def put(app: Duetime, ref: str, due: datetime = START + 2 * HOUR, **more: Any) -> None:
    await app.subjects.put(ref, due=due, **({"remind": AT_ONCE} | more))


async def test_what_an_open_subject_is_due_for_stays_and_is_not_sent_again(
    app: Duetime, sent: list[str]
) -> None:
    async with app.testing(now=START) as world:
        await put(app, "game")
        await world.advance("100d")
        count = await prune(app)
        await put(app, "game", recipients=[], data={"title": "x"})
        await put(app, "game", remind=[AT_ONCE, "+1h"])
        await world.advance("1h")

    assert count == 0
    assert sent == ["game"]


async def test_closed_and_moved_subjects_lose_what_is_old(app: Duetime, sent: list[str]) -> None:
    async with app.testing(now=START) as world:
        for ref in ("closed", "moved", "open"):
            await put(app, ref)
        await world.advance("3h")
        await app.subjects.complete("closed")
        await put(app, "moved", START + 90 * DAY)
        young = await prune(app)
        await world.advance("31d")
        deliveries = await app.reminders.deliveries(1)
        count = await prune(app)
        with pytest.raises(ReminderNotFound):
            await app.reminders.deliveries(1)
        found = await left(app)

    assert (young, count) == (0, 2)
    assert found == [("moved", "armed"), ("open", "sent")]
    assert len(deliveries) == 1


async def test_one_that_may_come_back_before_it_is_due_stays(app: Duetime, sent: list[str]) -> None:
    """Told long before the due time, then moved away and back: it is not sent twice."""
    async with app.testing(now=START) as world:
        early = AT_ONCE | {"rule": "-60d"}
        await put(app, "trip", START + 61 * DAY, remind=early)
        await world.advance("40d")
        await put(app, "trip", START + 200 * DAY, remind=early)
        count = await prune(app)
        await put(app, "trip", START + 61 * DAY, remind=early)
        await world.advance("1h")

    assert count == 0
    assert sent == ["trip"]


async def test_withdrawn_ones_go_and_armed_ones_never(app: Duetime, sent: list[str]) -> None:
    async with app.testing(now=START) as world:
        await put(app, "game", START + 300 * DAY)
        await put(app, "game", START + 301 * DAY)
        await world.advance("40d")
        before = await left(app)
        count = await prune(app)
        after = await left(app)

    assert before == [("game", "armed"), ("game", "superseded")]
    assert (count, after) == (1, [("game", "armed")])


async def test_old_occurrences_go_and_are_not_sent_again(app: Duetime, sent: list[str]) -> None:
    async with app.testing(now=START) as world:
        await app.subjects.put("standup", repeats="0 9 * * *", remind=AT_ONCE)
        await world.advance("50d")
        before = len(sent)
        count = await prune(app)
        await app.subjects.put("standup", repeats="0 9 * * *", remind=[AT_ONCE, "-2h"])
        await world.advance("1h")

    assert before == 50
    assert 18 <= count <= 21
    assert len(sent) == before


async def test_a_worker_prunes_what_is_older_than_its_setting(backend: Backend) -> None:
    app = Duetime(backend.url, migrate=True, retention={"reminder": "1ms"}, prune_every="50ms")
    hour_ago = await app.now() - HOUR
    for ref in ("closed", "open"):
        await app.subjects.put(ref, due=hour_ago, remind="-1h")
    await app.subjects.complete("closed")
    async with app.worker():
        await until(lambda: _is(app, [("open", "skipped")]))
    await app.close()

    assert Duetime(backend.url).settings.retention["reminder"] == 90 * DAY


async def _is(app: Duetime, expected: list[tuple[str, str]]) -> bool:
    return await left(app) == expected
