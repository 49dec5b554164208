"""What takes long to compute does not hold up the event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from duetime import Duetime
from duetime.channels.channel import Message, Sent
from duetime.domain.schedules.timetable import Timetable
from duetime.errors import InvalidSchedule
from duetime.storage.store import Statements
from tests.conftest import Backend

START = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def ticked(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads on which ticks were computed."""
    threads: set[int] = set()
    ticks = Timetable._ticks

    def noted(self: Timetable, after: datetime, end: datetime) -> Iterator[object]:
        threads.add(threading.get_ident())
        return ticks(self, after, end)

    monkeypatch.setattr(Timetable, "_ticks", noted)
    return threads


async def test_statements_that_compute_do_so_on_another_thread(backend: Backend) -> None:
    app = Duetime(backend.url, migrate=True)
    store = await app.store()
    threads: list[int] = []

    def work() -> Statements:
        threads.append(threading.get_ident())
        first = yield from store.dialect.now()
        threads.append(threading.get_ident())
        second = yield from store.dialect.now()
        threads.append(threading.get_ident())
        return second >= first

    assert await store.transact(work(), computes=True) is True
    await app.close()

    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_an_error_between_statements_undoes_them(backend: Backend) -> None:
    app = Duetime(backend.url, migrate=True)
    store = await app.store()

    def work() -> Statements:
        yield from store.dialect.run(
            "audit_write",
            [
                {"actor": "a", "action": "x", "entity": "schedule:s", "before": None,
                 "after": None, "reason": None}
            ],
        )  # fmt: skip
        raise InvalidSchedule("too long")

    with pytest.raises(InvalidSchedule, match="too long"):
        await store.transact(work(), computes=True)

    assert await app.audit.list(entity="schedule:s") == []
    await app.close()


async def test_schedules_are_planned_and_previewed_off_the_loop(
    backend: Backend, ticked: set[int]
) -> None:
    app = Duetime(backend.url, migrate=True)
    await app.schedules.put("s", "t", "RRULE:FREQ=DAILY;BYHOUR=3", exclude="* * * * 0")
    await app.schedules["s"].preview(5)
    await app.schedules["s"].reschedule("1h")
    await app.close()

    assert ticked
    assert threading.get_ident() not in ticked


async def test_recurrences_are_planned_off_the_loop(backend: Backend, ticked: set[int]) -> None:
    app = Duetime(backend.url, migrate=True)
    await app.subjects.put("s", repeats="RRULE:FREQ=DAILY;BYHOUR=3", remind=["-1h"])
    [first, *_] = await app.subjects.occurrences("s", 5)
    await app.subjects.skip("s", first.due)
    await app.close()

    assert ticked
    assert threading.get_ident() not in ticked


async def test_templates_are_filled_off_the_loop(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2")
    from duetime.reminders.templates.sandbox import Program

    threads: set[int] = set()
    run = Program.run

    def noted(self: Program, *args: object, **kwargs: object) -> str:
        threads.add(threading.get_ident())
        return run(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Program, "run", noted)
    sent: list[str] = []

    class Box:
        name = "box"

        async def send(self, message: Message) -> Sent:
            sent.append(message.body)
            return Sent()

        async def close(self) -> None: ...

    app = Duetime(backend.url, migrate=True)
    app.template("soon", body="{{ subject }} is soon")
    app.add_channel(Box())
    async with app.testing(now=START) as world:
        await app.subjects.put(
            "game",
            due=datetime(2026, 3, 2, 2, tzinfo=UTC),
            remind=[{"rule": "-1h", "template": "soon"}],
            recipients=["ann"],
        )
        await world.advance("2h")

    assert sent == ["game is soon"]
    assert threading.get_ident() not in threads
