"""The database refuses what is told of one job's end: that harms no other, and not its outcome."""

from __future__ import annotations

import msgspec

from duetime import Completed, Custom, Duetime, JobState
from tests.conftest import Backend, query
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
        assert await late.result("10s") == "late"
        await until_true(lambda: query(backend, "select count(*) from duetime.attempt") == [(23,)])
        infos = [await handle.info() for handle in (result, error)]

    assert [info.state for info in infos] == [JobState.COMPLETED, JobState.DEAD]
    assert [info.error_code for info in infos] == ["not_stored", "not_stored"]
    assert all("not in this house" in (info.error or "") for info in infos)
    done = await app.jobs.find(state="completed", limit=100)
    assert len(done) == 22


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
        assert await (await plain.enqueue()).result("10s") == "still here"
        infos = [await first.info(), await second.info()]

    assert [info.state for info in infos] == [JobState.DEAD, JobState.COMPLETED]
    assert "its retry policy failed: Shy" in (infos[0].error or "")
    assert infos[1].error_code == "result_not_stored"
