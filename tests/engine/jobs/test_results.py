"""A result comes back as what the handler's annotation says."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, assert_type
from uuid import UUID

import msgspec
import pytest

from duetime import Context, Duetime, JobHandle, JobState, Retry, Snooze
from duetime.errors import InvalidResult, JobFailed
from tests.waiting import until


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Order:
    id: UUID
    due: date
    lines: list[Decimal]


class Point(msgspec.Struct):
    x: int
    at: datetime


class Pair(NamedTuple):
    one: int
    other: timedelta


ID = UUID("6f2d6c1a-8f1b-4a80-9a2c-0c1d2e3f4a5b")
MOMENT = datetime(2026, 3, 8, 9, 30, tzinfo=UTC)


async def test_results_are_decoded_as_their_annotations(app: Duetime) -> None:
    def returns(kind: Any, value: Any, number: int) -> Any:
        async def handler() -> None:
            return value

        handler.__annotations__["return"] = kind
        return app.task(name=f"task{number}")(handler)

    cases: list[tuple[Any, Any]] = [
        (date, date(2026, 3, 8)),
        (datetime, MOMENT),
        (timedelta, timedelta(seconds=90)),
        (UUID, ID),
        (Decimal, Decimal("1.10")),
        (bytes, b"\x00\xff"),
        (str, r"C:\u0000 is a path, not a NUL"),
        (Colour, Colour.RED),
        (Order, Order(ID, date(2026, 3, 8), [Decimal("2.5")])),
        (Point, Point(1, MOMENT)),
        (Pair, Pair(1, timedelta(minutes=1))),
        (dict[int, date], {7: date(2026, 3, 8)}),
        (set[date], {date(2026, 3, 8)}),
        (tuple[int, ...], (1, 2)),
        (date | None, None),
        (date | None, date(2026, 3, 8)),
        (date | Retry | Snooze, date(2026, 3, 8)),
        (Any, {"plain": [1, 2]}),
        (None, "not as annotated, and kept"),
    ]

    async with app.worker():
        for number, (kind, value) in enumerate(cases):
            job = await returns(kind, value, number).enqueue()
            result = await job.result()

            assert (result, type(result)) == (value, type(value)), kind


async def test_a_process_without_the_tasks_code_gets_plain_json(
    app: Duetime,
) -> None:
    @app.task(name="order")
    async def order() -> Order:
        return Order(ID, date(2026, 3, 8), [Decimal("2.5")])

    other = Duetime(app.settings.database)
    async with app.worker():
        job = await order.enqueue()
        whole = await app.jobs.result(job.id)
        plain = await other.jobs.result(job.id)
    await other.close()

    assert whole == Order(ID, date(2026, 3, 8), [Decimal("2.5")])
    assert plain == {"id": str(ID), "due": "2026-03-08", "lines": ["2.5"]}


async def test_a_result_that_does_not_fit_its_annotation_is_a_clear_error(app: Duetime) -> None:
    @app.task(name="day")
    async def day() -> date:
        return "soon"  # type: ignore[return-value]

    async with app.worker():
        job = await day.enqueue()
        with pytest.raises(InvalidResult, match="annotated to return, date: Invalid RFC3339") as it:
            await job.result()

    assert it.value.job_id == job.id
    info = await job.get()
    assert info.state is JobState.COMPLETED
    assert info.history[-1].result == "soon"


async def test_a_result_that_cannot_be_stored_is_a_clear_error(app: Duetime) -> None:
    @app.task(name="thing")
    async def thing() -> object:
        return object()

    async with app.worker():
        job = await thing.enqueue()
        with pytest.raises(
            InvalidResult, match=rf"Job {job.id} completed, but its result was not stored: .*JSON"
        ):
            await job.result()


async def test_a_failed_jobs_error_keeps_the_code_and_the_message(app: Duetime) -> None:
    @app.task(max_attempts=1)
    async def fail() -> None:
        raise ConnectionError("the bank does not answer")

    async with app.worker():
        job = await fail.enqueue()
        with pytest.raises(JobFailed, match="dead: ConnectionError: the bank does not") as it:
            await job.result()

    assert (it.value.error_code, it.value.error) == ("ConnectionError", "the bank does not answer")


async def test_types_reach_whoever_calls_and_enqueues(app: Duetime) -> None:
    """What is asserted here is checked by mypy, too."""

    @app.task
    async def tomorrow(day: date) -> date:
        return day + timedelta(days=1)

    @app.task(name="add", queue="default")
    def add(ctx: Context, one: int, other: int) -> Decimal:
        return Decimal(one + other)

    @app.task
    def double(number: int) -> int:
        return number * 2

    called = assert_type(await tomorrow(date(2026, 3, 8)), date)
    doubled = assert_type(double(4), int)
    async with app.worker():
        handle = assert_type(await tomorrow.enqueue(date(2026, 3, 8)), JobHandle[date])
        result = assert_type(await handle.result(), date)
        total = assert_type(await (await add.using(delay="0s").enqueue(1, 2)).result(), Decimal)

    assert called == result == date(2026, 3, 9)
    assert (doubled, total) == (8, Decimal(3))


def test_types_reach_sync_code(app_url: str) -> None:
    app = Duetime(app_url, migrate=True)

    @app.task
    def double(number: int) -> int:
        return number * 2

    with app.worker_thread():
        handle = assert_type(double.enqueue_sync(4), JobHandle[int])
        result = assert_type(app.sync(handle.result()), int)

    assert result == 8


@pytest.fixture
def app_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('results') / 'results.db'}"


async def test_a_result_of_a_committed_transaction_is_decoded(app: Duetime) -> None:
    @app.task(name="commit")
    async def commit(ctx: Context) -> date:
        async with ctx.transaction() as connection:
            await ctx.complete(date(2026, 3, 8), tx=connection)
        return date(2026, 3, 8)

    async with app.worker():
        job = await commit.enqueue()

        async def ended() -> bool:
            return (await job.get()).state is JobState.COMPLETED

        await until(ended)
        assert await job.result() == date(2026, 3, 8)
