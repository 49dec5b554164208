"""`app.jobs.list` by time, error code and arguments, on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from duetime import Duetime, JobState
from duetime.api import jobs as jobs_module
from duetime.domain.jobs.job import NewJob
from duetime.domain.page import Page
from duetime.errors import InvalidInput, JobFailed
from tests.conftest import Backend, query

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)

    @app.task(name="send")
    async def send(order: Any = None, lines: Any = None, note: Any = None) -> None: ...

    @app.task(name="fail", max_attempts=1)
    async def fail(code: str) -> None:
        raise {"key": KeyError, "value": ValueError}[code]("gone")

    yield app
    await (await app.store()).drive_clock(None)
    await app.close()


def job(task: str, at: datetime | None, **args: Any) -> NewJob:
    return NewJob(task=task, args=msgspec.Raw(msgspec.json.encode(args)), run_at=at, max_attempts=1)


async def send(app: Duetime, at: datetime = NOON, **args: Any) -> int:
    """Enqueue one, for later."""
    [handle] = await app.enqueue_many([job("send", at, **args)])
    return handle.id


def ids(page: Page[Any]) -> list[int]:
    return [job.id for job in page]


async def test_by_a_path_into_the_arguments(app: Duetime) -> None:
    seven = await send(app, order={"id": 7}, lines=[{"sku": "A-17"}])
    other = await send(app, order={"id": 8}, lines=[{"sku": "B"}, {"sku": "A-17"}])

    assert ids(await app.jobs.list(args={"order.id": 7})) == [seven]
    assert ids(await app.jobs.list(args="order.id=7")) == [seven]
    assert ids(await app.jobs.list(args={"lines.0.sku": "A-17"})) == [seven]
    assert ids(await app.jobs.list(args="lines.1.sku=A-17")) == [other]
    assert ids(await app.jobs.list(args={"order.id": 8, "lines.0.sku": "B"})) == [other]
    assert ids(await app.jobs.list(args=["order.id=7", "lines.0.sku=B"])) == []
    assert ids(await app.jobs.list(args={"order": 7})) == []
    assert ids(await app.jobs.list(args={"order.id.deeper": 7})) == []


@pytest.mark.parametrize(
    ("stored", "sought", "matches"),
    [
        (7, 7, True), (7, "7", False), ("7", 7, False), (7, 7.0, True), (1, True, False),
        (True, 1, False), (True, True, True), (False, False, True), (None, None, True),
        (0, None, False), (0, False, False), ("", None, False),
        ("ä\"\\\n'; --", "ä\"\\\n'; --", True),
        ("%s :x ?", "%s :x ?", True), (2**62, 2**62, True), (2**62, 2**62 + 1, False),
        (0.1, 0.1, True), ([7], 7, False), ("null", None, False), ("a", "A", False),
    ],
)  # fmt: skip
async def test_a_value_matches_exactly(
    app: Duetime, stored: Any, sought: Any, matches: bool
) -> None:
    job_id = await send(app, note=stored)

    assert ids(await app.jobs.list(args={"note": sought})) == [job_id] * matches


async def test_what_is_missing_is_not_null(app: Duetime) -> None:
    await send(app, order={"id": None})

    assert await app.jobs.list(args={"order.other": None}) == []


@pytest.mark.parametrize("name", ["a b", "ä", "'", "%s", "$", "[0]", "#", "0", "{}", ","])
async def test_any_name_can_be_in_a_path(app: Duetime, name: str) -> None:
    job_id = await send(app, order={name: {"id": 7}})
    await send(app, order={"x": {"id": 7}})

    assert ids(await app.jobs.list(args={f"order.{name}.id": 7})) == [job_id]


@pytest.mark.parametrize(
    "args",
    [
        7, "order.id", {"": 7}, {"a..b": 7}, {".": 7}, {'a"b': 7}, {"a\\b": 7}, {"a\x00": 7},
        {7: 7},
        {"a": [7]}, {"a": {"b": 7}}, {"a": float("nan")}, {"a": 2**64}, {"a": "x\x00"},
        {"a": "x" * 1001}, {".".join("abcdefghi"): 7}, dict.fromkeys("abcdefghi", 7), [7],
    ],
    ids=repr,
)  # fmt: skip
async def test_what_is_no_condition_is_refused(app: Duetime, args: Any) -> None:
    with pytest.raises(InvalidInput):
        await app.jobs.list(args=args)


async def test_arguments_that_cannot_be_read_do_not_match(app: Duetime, backend: Backend) -> None:
    job_id = await send(app, note="x")
    bad = await send(app, note="x")
    escaped = '{"note": "x", "nul": "\\u0000"}'
    if backend.is_postgres:
        query(backend, f"update duetime.job set args = '{escaped}' where id = {bad}")
    else:
        query(backend, f"update duetime_job set args = 'not json' where id = {bad}")

    assert ids(await app.jobs.list(args={"note": "x"})) == [job_id]


async def test_by_the_error_code_of_the_last_attempt(app: Duetime) -> None:
    async with app.worker():
        failed = await app.enqueue_many(
            job("fail", None, code=code) for code in ("key", "value", "key")
        )
        for handle in failed:
            with pytest.raises(JobFailed):
                await handle.result()
    again = failed[0].id
    await app.jobs.requeue(again, at=NOON)

    assert ids(await app.jobs.list(error_code="KeyError", state="dead")) == [failed[2].id]
    assert ids(await app.jobs.list(error_code="ValueError")) == [failed[1].id]
    assert await app.jobs.list(error_code="OSError") == []
    assert ids(await app.jobs.list(error_code="KeyError", state=["dead", "pending"])) == [
        failed[2].id,
        again,
    ]


async def test_by_when_it_was_created(app: Duetime) -> None:
    store = await app.store()
    made = []
    for hour in range(4):
        await store.drive_clock(NOON + hour * HOUR)
        made += [await send(app, NOON + 10 * HOUR) for _ in range(3)]

    async def found(**filters: Any) -> list[int]:
        return ids(await app.jobs.list(**filters))[::-1]

    assert await found(created_since=NOON + HOUR) == made[3:]
    assert await found(created_before=NOON + HOUR) == made[:3]
    assert await found(created_since=NOON + HOUR, created_before=NOON + 3 * HOUR) == made[3:9]
    assert await found(created_since=NOON + 3 * HOUR, state="pending") == made[9:]
    assert await found(created_since=NOON + 4 * HOUR) == []
    assert await found(created_before=NOON) == []


async def test_by_when_it_is_due(app: Duetime) -> None:
    early = await send(app, NOON)
    late = await send(app, NOON + HOUR)
    cancelled = await send(app, NOON)
    await app.jobs.cancel(cancelled)

    assert ids(await app.jobs.list(due_before=NOON + HOUR)) == [early]
    assert ids(await app.jobs.list(due_since=NOON + HOUR)) == [late]
    assert ids(await app.jobs.list(due_since=NOON, state=["pending", "parked"])) == [late, early]
    assert await app.jobs.list(due_since=NOON, state="retrying") == []
    with pytest.raises(InvalidInput, match="cancelled are not due at a time"):
        await app.jobs.list(due_since=NOON, state="cancelled")


async def test_all_filters_at_once(app: Duetime) -> None:
    job_id = await send(app, order={"id": 7})
    await send(app, order={"id": 8})
    now = await app.now()

    page = await app.jobs.list(
        state="pending", queue="default", task="send", args={"order.id": 7},
        created_since=now - HOUR, created_before=now + HOUR, due_since=NOON, due_before=NOON + HOUR,
    )  # fmt: skip

    assert ids(page) == [job_id]
    assert page[0].state is JobState.PENDING


async def test_a_search_that_finds_little_stops_and_goes_on(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_EXAMINED", 200)
    made = [
        handle.id
        for handle in await app.enqueue_many(
            job("send", NOON, note="often" if number % 150 else "rare") for number in range(500)
        )
    ]
    rare = [made[number] for number in (450, 300, 150, 0)]

    first = await app.jobs.list(args={"note": "rare"})
    found = [job.id async for job in app.jobs.iterate(args={"note": "rare"})]

    assert ids(first) == rare[:2]
    assert first.examined is not None
    assert 200 <= first.examined < 300
    assert first.next is not None
    assert found == rare


async def test_a_page_that_is_full_says_nothing_of_how_far_it_looked(app: Duetime) -> None:
    made = [await send(app, note="x") for _ in range(3)]
    page = await app.jobs.list(args={"note": "x"}, limit=2)
    rest = await app.jobs.list(args={"note": "x"}, limit=2, after=page.next)

    assert (ids(page), page.examined) == (made[:0:-1], None)
    assert (ids(rest), rest.next, rest.examined) == (made[:1], None, None)
