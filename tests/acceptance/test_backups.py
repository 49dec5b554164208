"""Backups, made while workers run, and what becomes of their jobs when they are restored."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from duetime import Duetime, JobState
from duetime.domain.jobs.job import NewJob
from tests.acceptance.command import duetime, new_job
from tests.conftest import Backend, fresh_database, query
from tests.servers import PostgresServer
from tests.waiting import until

BATCH = 10
on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("backend", ["postgres15", "postgres18"], indirect=True)


class Shop:
    """An app with jobs in every state: its worker runs one for ever."""

    def __init__(self, url: str) -> None:
        self.app = Duetime(
            url, lease="1s", heartbeat="200ms", rescue_every="200ms", grace="0s", migrate=False
        )
        self.ran: list[int] = []
        self.hold = asyncio.Event()

        @self.app.task(name="quick")
        async def quick(number: int) -> int:
            self.ran.append(number)
            return number

        @self.app.task(name="held", max_attempts=2)
        async def held() -> str:
            await self.hold.wait()
            return "done"

        @self.app.schedule("@every 1h", name="hourly")
        @self.app.task(name="hourly")
        async def hourly() -> None: ...

    async def fill(self) -> None:
        await self.app.enqueue_many([new_job("held")])
        await self.app.enqueue_many([new_job("quick", number=n) for n in range(BATCH)])
        await self.app.enqueue_many([NewJob(task="later", delay=timedelta(days=90))])

        async def filled() -> bool:
            done = await self.app.jobs.list(state="completed", limit=100)
            running = await self.app.jobs.list(state="running")
            return len(done) == BATCH and bool(running)

        await until(filled)


@asynccontextmanager
async def shop_on(url: str) -> AsyncIterator[Shop]:
    shop = Shop(url)
    try:
        yield shop
    finally:
        shop.hold.set()
        await shop.app.close()


def mode_of(file: Path) -> int:
    return file.stat().st_mode & 0o777


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


async def check_restored(url: str) -> None:
    """The copy is complete; its running job is rescued, and new jobs do not collide with old."""
    async with shop_on(url) as restored:
        app = restored.app
        restored.hold.set()
        before = {job.id: job for job in await app.jobs.list(limit=10_000)}
        by_task = {job.task: job for job in before.values()}
        assert by_task["held"].state is JobState.RUNNING
        assert by_task["later"].state is JobState.PENDING
        assert by_task["quick"].state is JobState.COMPLETED
        tokens = [row[0] for row in query(_backend(url), "select token from duetime.attempt")]

        async with app.worker(name="restored"):

            async def rescued() -> bool:
                return (await app.jobs.get(by_task["held"].id)).state is JobState.COMPLETED

            await until(rescued)
            [new] = await app.enqueue_many([new_job("quick", number=99)])
            assert await app.jobs.result(new.id, timeout="10s") == 99

        held = await app.jobs.get(by_task["held"].id)
        assert [attempt.outcome for attempt in held.history] == ["lost", "completed"]
        assert new.id > max(before)
        assert held.history[-1].token > max(tokens)
        assert restored.ran == [99]
        assert (await app.schedules["hourly"].get()).next_run_at is not None


def _backend(url: str) -> Backend:
    return Backend("sqlite" if url.startswith("sqlite") else "postgres15", url)


@on_sqlite
async def test_a_backup_of_sqlite_can_be_restored(
    backend: Backend, app: Duetime, tmp_path: Path
) -> None:
    async with shop_on(backend.url) as shop, shop.app.worker(name="original"):
        await shop.fill()
        answer = await asyncio.to_thread(
            duetime, backend.url, "db", "backup", str(tmp_path / "copy.db"), "--json"
        )

    assert answer.code == 0
    assert answer.json["version"] >= 1
    await check_restored(f"sqlite:///{tmp_path}/copy.db")


@on_sqlite
async def test_a_backup_under_load_is_one_moment(
    backend: Backend, app: Duetime, tmp_path: Path
) -> None:
    stopping = False

    async def produce() -> int:
        batches = 0
        while not stopping:
            await app.enqueue_many([new_job("quick", number=n) for n in range(BATCH)])
            batches += 1
        return batches

    await app.enqueue_many([new_job("quick", number=n) for n in range(BATCH)])
    producing = asyncio.create_task(produce())
    answers = []
    for number in range(3):
        path = str(tmp_path / f"copy{number}.db")
        answers.append(await asyncio.to_thread(duetime, backend.url, "db", "backup", path))
    stopping = True
    batches = await producing

    counts = [
        query(Backend("sqlite", f"sqlite:///{tmp_path}/copy{n}.db"), _COUNT)[0] for n in range(3)
    ]
    assert [answer.code for answer in answers] == [0, 0, 0]
    # Jobs that were enqueued together are there together, with what makes them due.
    assert all(jobs == due and jobs % BATCH == 0 for jobs, due in counts)
    assert 0 < counts[0][0] <= counts[1][0] <= counts[2][0] <= (batches + 1) * BATCH
    assert names_in(tmp_path)[:3] == ["copy0.db", "copy1.db", "copy2.db"]
    assert mode_of(tmp_path / "copy0.db") == 0o600


_COUNT = "select (select count(*) from duetime.job), (select count(*) from duetime.due)"


@on_sqlite
def test_a_backup_overwrites_nothing_and_leaves_nothing_behind(
    backend: Backend, app: Duetime, tmp_path: Path
) -> None:
    precious = tmp_path / "precious.db"
    precious.write_text("precious")
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"SQLite format 3\x00" + b"\xa5" * 10_000)
    before = names_in(tmp_path)

    over = duetime(backend.url, "db", "backup", str(precious))
    bad = duetime(f"sqlite:///{damaged}", "db", "backup", str(tmp_path / "copy.db"))
    none = duetime(f"sqlite:///{tmp_path}/none.db", "db", "backup", str(tmp_path / "copy.db"))

    assert (over.code, bad.code, none.code) == (1, 1, 1)
    assert "will not be overwritten" in over.error
    assert "damaged" in bad.error
    assert "There is no database" in none.error
    assert precious.read_text() == "precious"
    assert names_in(tmp_path) == before


@on_postgres
async def test_a_dump_of_postgres_can_be_restored(
    backend: Backend, app: Duetime, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: PostgresServer = request.getfixturevalue(backend.name)
    programs = server.binaries.directory
    if not (programs / "pg_dump").exists():
        pytest.skip("These binaries have no pg_dump.")
    dump = tmp_path / "shop.dump"
    refused = duetime(backend.url, "db", "backup", str(dump))
    async with shop_on(backend.url) as shop, shop.app.worker(name="original"):
        await shop.fill()
        await run(programs / "pg_dump", "--format=custom", f"--file={dump}", backend.url)

    with fresh_database(server) as url:
        await run(programs / "pg_restore", "--exit-on-error", f"--dbname={url}", str(dump))
        status = duetime(url, "db", "status")
        assert status.code == 0
        await check_restored(url)
    assert refused.code == 1
    assert "pg_dump" in refused.error


async def run(*command: str | Path) -> None:
    done = await asyncio.to_thread(
        subprocess.run, [str(part) for part in command], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
