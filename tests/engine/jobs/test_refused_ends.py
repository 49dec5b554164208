"""The database refuses what is told of one job's end: that harms no other, and not its outcome."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duetime import Completed, Custom, Duetime, JobState
from duetime.errors import InvalidResult
from tests.conftest import Backend, query
from tests.servers import PostgresServer
from tests.waiting import until_true


def refuse(backend: Backend) -> None:
    """Let the database refuse attempts that tell of something forbidden."""
    if backend.is_postgres:
        query(
            backend,
            "create function refuse() returns trigger language plpgsql as"
            " 'begin raise exception ''not in this house''; end';"
            "create trigger refuse before insert on duetime.attempt for each row when"
            " (new.error like '%forbidden%' or new.result::text like '%forbidden%')"
            " execute function refuse()",
        )
    else:
        query(
            backend,
            "create trigger refuse before insert on duetime.attempt"
            " when new.error like '%forbidden%' or new.result like '%forbidden%'"
            " begin select raise(abort, 'not in this house'); end",
        )


async def test_the_outcome_stands_and_the_worker_goes_on(app: Duetime, backend: Backend) -> None:
    @app.task(retry_on=ValueError, max_attempts=1)
    async def tell(word: str, failing: bool = False) -> str:
        if failing:
            raise ValueError(word)
        return word

    await app.enqueue_many(tell.job(str(number)) for number in range(20))
    result = await tell.enqueue("forbidden")
    error = await tell.enqueue("forbidden", failing=True)
    refuse(backend)
    async with app.worker():
        late = await tell.enqueue("late")
        assert await late.result("30s") == "late"
        await until_true(lambda: query(backend, "select count(*) from duetime.attempt") == [(23,)])
        infos = [await handle.get() for handle in (result, error)]
        with pytest.raises(InvalidResult, match="not in this house"):
            await result.result()

    assert [info.state for info in infos] == [JobState.COMPLETED, JobState.DEAD]
    assert [info.error_code for info in infos] == ["not_stored", "not_stored"]
    assert all("not in this house" in (info.error or "") for info in infos)
    done = await app.jobs.list(state="completed", limit=100)
    assert len(done) == 22


async def test_a_refusal_that_is_not_about_the_values_costs_no_result(
    app: Duetime, backend: Backend
) -> None:
    """Someone moves a table, and puts it back: what ended meanwhile is recorded as it was."""
    end = asyncio.Event()

    @app.task
    async def tell() -> str:
        await end.wait()
        return "kept"

    async with app.worker(lease="30s") as worker:
        handle = await tell.enqueue()
        await until_true(lambda: query(backend, "select count(*) from duetime.claim") == [(1,)])
        before, moved = ("", "moved") if backend.is_postgres else ("duetime_", "duetime_moved")
        query(backend, f"alter table duetime.attempt rename to {moved}")
        end.set()
        # The second time each is tried by itself.
        await until_true(lambda: worker.loop.failures >= 2)
        query(backend, f"alter table duetime.moved rename to {before}attempt")

        assert await handle.result("30s") == "kept"


async def test_a_result_outlives_a_read_only_moment(own_postgres: PostgresServer) -> None:
    """As in a failover: for a while the database takes no writes; results are kept until then."""
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True, lease="30s")
    end = asyncio.Event()

    @app.task(max_attempts=1)
    async def tell() -> str:
        await end.wait()
        return "kept"

    backend = Backend("postgres15", url)
    async with app.worker() as worker:
        handle = await tell.enqueue()
        await until_true(lambda: query(backend, "select count(*) from duetime.claim") == [(1,)])
        query(backend, "alter system set default_transaction_read_only = on")
        query(backend, "select pg_reload_conf()")
        await until_true(lambda: query(backend, "show transaction_read_only") == [("on",)])
        end.set()
        # The second time each is tried by itself.
        await until_true(lambda: worker.loop.failures >= 2)
        query(backend, "alter system reset default_transaction_read_only")
        query(backend, "select pg_reload_conf()")

        assert await handle.result("30s") == "kept"
        assert (await handle.get()).error_code is None
    await app.close()


class Shy(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


async def test_results_and_policies_that_cannot_be_told(app: Duetime) -> None:
    def fail(attempt: int, error: BaseException | None) -> str:
        raise Shy

    @app.task(retry=Custom(fail, max_attempts=3))
    async def broken() -> None:
        raise ValueError("first")

    @app.task
    async def raw() -> object:
        return Completed(msgspec.Raw(b"not json"))

    @app.task
    async def plain() -> str:
        return "still here"

    async with app.worker(concurrency=1):
        first, second = await broken.enqueue(), await raw.enqueue()
        assert await (await plain.enqueue()).result("30s") == "still here"
        infos = [await first.get(), await second.get()]

    assert [info.state for info in infos] == [JobState.DEAD, JobState.COMPLETED]
    assert "its retry policy failed: Shy" in (infos[0].error or "")
    assert infos[1].error_code == "result_not_stored"
