"""What any worker does for all of them, as a worker does it."""

from __future__ import annotations

from duetime import Duetime
from tests.conftest import Backend, query
from tests.waiting import until


async def test_a_worker_prunes_what_is_older_than_its_retention(backend: Backend) -> None:
    app = Duetime(
        backend.url,
        migrate=True,
        prune_every="50ms",
        retention={"completed": "1h", "cancelled": "1d"},
    )

    @app.task
    async def note() -> None: ...

    gone = await note.enqueue()
    async with app.worker():
        await gone.result("30s")
    kept = await note.using(delay="1d").enqueue()
    await kept.cancel()
    if backend.is_postgres:
        query(
            backend,
            "update duetime.attempt set finished_at = finished_at - interval '2 hours';"
            " update duetime.job set created_at = created_at - interval '2 hours'",
        )
    else:
        query(backend, "update duetime.attempt set finished_at = finished_at - 7200000000")

    async def is_gone() -> bool:
        return [job.id for job in await app.jobs.list()] == [kept.id]

    async with app.worker():
        await until(is_gone)
    await app.close()
