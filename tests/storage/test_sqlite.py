"""What is SQLite's own: the file and its troubles, other processes, idleness, query plans."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from duetime.domain.findings import Thresholds
from duetime.domain.jobs.job import JobState, NewJob
from duetime.domain.reasons import Reason
from duetime.errors import DatabaseUnreachable, InvalidDatabaseURL, SchemaMismatch, StorageError
from duetime.settings import Settings
from duetime.storage.migrations import downgrade, read_status, upgrade
from duetime.storage.sqlite import thread
from duetime.storage.sqlite.backup import back_up
from duetime.storage.sqlite.diagnosis import SqliteDiagnosis
from duetime.storage.sqlite.inbox import Inbox, PolledInbox, WatchingInbox, Written, open_inbox
from duetime.storage.sqlite.migrator import SqliteMigrator
from duetime.storage.sqlite.shared import Turn
from duetime.storage.sqlite.store import SqliteStore
from tests.conformance.hand import Hand, drive, enqueue, enqueue_many, get, ids
from tests.operating import cancel
from tests.waiting import until_true

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "jobs.db")
    upgrade(SqliteMigrator(file))
    return file


@pytest.fixture
async def store(path: str) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def hand(store: SqliteStore) -> Hand:
    return await Hand.register(store, ["default"], timedelta(seconds=30), "hand")


# The schema


def test_version_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "none.db"

    assert SqliteMigrator(str(file)).version() == 0
    assert not file.exists()


def test_upgrade_is_done_once(tmp_path: Path) -> None:
    migrator = SqliteMigrator(str(tmp_path / "jobs.db"))
    first, second = upgrade(migrator), upgrade(migrator)

    assert [one.version for one in first.migrations] == [one.version for one in migrator.migrations]
    assert second.migrations == []
    assert read_status(migrator).current


def test_downgrade_leaves_nothing_of_ours(path: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table mine (x)")
    downgrade(SqliteMigrator(path), 0)
    with sqlite3.connect(path) as connection:
        names = connection.execute("select name from sqlite_schema").fetchall()
    connection.close()

    assert names == [("mine",)]
    assert SqliteMigrator(path).version() == 0


def test_each_step_down_and_up_again_gives_the_same_schema(path: str) -> None:
    migrator = SqliteMigrator(path)
    whole = _schema(path)
    for version in reversed(range(len(migrator.migrations))):
        downgrade(migrator, version)
        upgrade(migrator)
        assert _schema(path) == whole


def test_failed_upgrade_changes_nothing(path: str) -> None:
    downgrade(SqliteMigrator(path), 0)
    before = _schema(path)
    with sqlite3.connect(path) as connection:
        connection.execute("create table duetime_jobs (in_the_way)")
    connection.close()

    with pytest.raises(StorageError, match="duetime_jobs"):
        upgrade(SqliteMigrator(path))
    assert SqliteMigrator(path).version() == 0
    assert _schema(path) - before == {"CREATE TABLE duetime_jobs (in_the_way)"}


def test_newer_schema_is_refused(path: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("insert into duetime_migration values (99, 'future', 0)")
    connection.close()

    with pytest.raises(SchemaMismatch, match="newer"):
        upgrade(SqliteMigrator(path))


def _upgrade(path: str) -> int:
    return len(upgrade(SqliteMigrator(path)).migrations)


def test_many_processes_upgrade_at_once(tmp_path: Path) -> None:
    file = str(tmp_path / "jobs.db")
    with SPAWN.Pool(4) as pool:
        counts = pool.map(_upgrade, [file] * 8, chunksize=1)

    assert sorted(counts) == [0] * 7 + [len(SqliteMigrator(file).migrations)]


async def test_two_prefixes_share_a_file_with_the_users_tables(tmp_path: Path) -> None:
    file = str(tmp_path / "jobs.db")
    with sqlite3.connect(file) as connection:
        connection.execute("create table job (mine)")
    connection.close()
    stores = []
    for prefix in ("duetime_", "other_"):
        upgrade(SqliteMigrator(file, prefix))
        stores.append(SqliteStore(file, prefix=prefix))
        await stores[-1].open()
    await enqueue_many(stores[1], 3)

    assert [len(await store.queues()) for store in stores] == [0, 1]
    for store in stores:
        await store.close()


def test_tables_of_another_prefix_have_no_other_name(tmp_path: Path) -> None:
    file = str(tmp_path / "jobs.db")
    upgrade(SqliteMigrator(file, "my_"))

    # The tasks of its own are called so everywhere.
    assert not any("duetime" in sql.replace("'duetime.re", "'") for sql in _schema(file))


@pytest.mark.parametrize("prefix", ["", "1a", "a-b", "A", "sqlite_x", "x" * 41, "a b", "a;"])
def test_bad_prefix(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(InvalidDatabaseURL, match="prefix"):
        SqliteStore(str(tmp_path / "jobs.db"), prefix=prefix)


# The file's troubles


@pytest.mark.parametrize("bad", ["", ":memory:", "file:x?mode=memory", "nul\x00"])
def test_path_that_is_no_file(bad: str) -> None:
    with pytest.raises(InvalidDatabaseURL):
        SqliteStore(bad)
    with pytest.raises(InvalidDatabaseURL):
        SqliteMigrator(bad)


def test_directory_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatabaseURL, match="is a directory"):
        SqliteStore(str(tmp_path))


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatabaseURL, match="There is no directory"):
        SqliteStore(str(tmp_path / "none" / "jobs.db"))


def modes_in(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}


async def test_new_file_and_its_log_are_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        path = tmp_path / "jobs.db"
        upgrade(SqliteMigrator(str(path)))
        store = SqliteStore(str(path))
        await store.open()
        await store.enqueue([NewJob(task="t")])

        modes = modes_in(tmp_path)
        await store.close()
    finally:
        os.umask(before)

    assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}


def test_mode_of_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    path.touch()
    path.chmod(0o660)

    upgrade(SqliteMigrator(str(path)))

    assert path.stat().st_mode & 0o777 == 0o660


async def test_missing_file_is_not_made_by_the_store(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"

    with pytest.raises(SchemaMismatch, match="duetime db init"):
        await SqliteStore(str(file)).open()
    assert not file.exists()


async def test_file_without_our_tables(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    file.touch()
    store = SqliteStore(str(file))
    await store.open()

    with pytest.raises(SchemaMismatch, match="duetime db upgrade"):
        await enqueue(store)
    await store.close()


async def test_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    file.write_text("This is a text file. " * 100)

    with pytest.raises(StorageError, match="not an SQLite database"):
        await SqliteStore(str(file)).open()
    with pytest.raises(StorageError, match="not an SQLite database"):
        upgrade(SqliteMigrator(str(file)))
    assert file.read_text().startswith("This is a text file.")


async def test_damaged_file(path: str) -> None:
    _damage(path)

    with pytest.raises(StorageError, match="damaged"):
        await SqliteStore(path).open()


def _damage(path: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    data = bytearray(Path(path).read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    Path(path).write_bytes(data)


def test_read_only_file(path: str) -> None:
    """Root may write anything: the test is another user's."""
    code = (
        "import asyncio, os, sys\n"
        "from duetime.errors import StorageError\n"
        "from duetime.storage.sqlite.store import SqliteStore\n"
        "import concurrent.futures.thread\n"
        "store = SqliteStore(sys.argv[1])\n"
        "os.getuid() or os.setuid(65534)\n"
        "try:\n"
        "    asyncio.run(store.open())\n"
        "except StorageError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    folder = Path(path).parent
    for parent in [folder, *folder.parents][:4]:
        if parent.owner() == Path(path).owner() and parent != Path("/tmp"):
            parent.chmod(0o755)
    Path(path).chmod(0o444)
    folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=False
    )
    folder.chmod(0o755)

    assert "Error" in done.stdout, done.stderr
    assert "read-only" in done.stdout or "cannot be opened" in done.stdout


async def test_write_lock_held_too_long(path: str) -> None:
    store = SqliteStore(path, call_seconds=0.4)
    await store.open()
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("begin immediate")
        with pytest.raises(DatabaseUnreachable, match="write lock"):
            await enqueue(store)
        # Reading goes on meanwhile.
        assert await store.queues() == []
        connection.execute("commit")
    connection.close()

    assert await enqueue(store) > 0
    await store.close()


@pytest.fixture(params=["delete", "wal"])
def exclusive(path: str, request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    """A connection that has the file for itself until it is closed: nobody else can even read."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"pragma journal_mode = {request.param}")
        other.execute("pragma locking_mode = exclusive")
        other.execute("begin exclusive")
        other.execute("create table theirs (a)")
        yield other


async def test_everybody_waits_for_a_file_that_another_has_for_itself(
    path: str, exclusive: sqlite3.Connection
) -> None:
    store = SqliteStore(path)
    patient = Thresholds(write_lock=timedelta(seconds=20))
    users = [
        store.open(),
        asyncio.to_thread(SqliteMigrator(path).version),
        asyncio.to_thread(upgrade, SqliteMigrator(path)),
        SqliteDiagnosis(path, Settings(), patient).version(),
        asyncio.to_thread(back_up, path, f"{path}.copy"),
    ]
    tasks = [asyncio.ensure_future(user) for user in users]
    early, _ = await asyncio.wait(tasks, timeout=0.5, return_when=asyncio.FIRST_EXCEPTION)
    exclusive.close()
    await asyncio.gather(*tasks)

    assert early == set()
    assert await enqueue(store) > 0
    await store.close()


async def test_a_transaction_waits_for_a_file_that_another_has_for_itself(
    path: str, exclusive: sqlite3.Connection
) -> None:
    store = SqliteStore(path)

    async def use() -> None:
        async with store.transaction() as transaction:
            transaction.execute("create table ours (a)")

    using = asyncio.create_task(use())
    early, _ = await asyncio.wait([using], timeout=0.5)
    exclusive.close()
    await using

    assert early == set()


async def test_a_file_that_another_has_for_itself_too_long(
    path: str, exclusive: sqlite3.Connection
) -> None:
    store = SqliteStore(path, call_seconds=0.4)
    began = time.monotonic()
    with pytest.raises(DatabaseUnreachable, match="write lock"):
        await store.open()

    assert time.monotonic() - began >= 0.2


async def test_call_that_gave_up_waiting_is_not_run_later(path: str) -> None:
    store = SqliteStore(path, call_seconds=0.4)
    await store.open()
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("begin immediate")
        answers = await asyncio.gather(*(enqueue(store) for _ in range(5)), return_exceptions=True)
        connection.execute("commit")
    connection.close()

    # The look into the queues comes after all of them, on the same thread.
    assert all(isinstance(one, DatabaseUnreachable) for one in answers)
    assert await store.queues() == []
    await store.close()


async def test_full_disk_is_told_and_nothing_is_half_written(path: str) -> None:
    store = SqliteStore(path)
    await store.open()
    connection = store._thread._connection
    assert connection is not None
    pages = await store._thread.read(
        lambda tx: tx.connection.execute("pragma page_count").fetchone()
    )
    await store._thread.read(
        lambda tx: tx.connection.execute(f"pragma max_page_count = {pages[0]}").fetchone()
    )
    with pytest.raises(DatabaseUnreachable, match="full"):
        await enqueue_many(store, 5000)
    await store._thread.read(
        lambda tx: tx.connection.execute("pragma max_page_count = 1000000").fetchone()
    )

    assert await store.queues() == []
    assert len(await enqueue_many(store, 5000)) == 5000
    await store.close()


# The user's own connection


async def test_enqueue_in_a_deferred_transaction_of_the_user(
    store: SqliteStore, path: str, hand: Hand
) -> None:
    connection = sqlite3.connect(path)
    given = await drive(connection, store.enqueue_in([NewJob(task="a", key="k"), NewJob(task="b")]))
    before = await hand.claim()
    connection.commit()
    connection.close()

    assert before == []
    assert ids(await hand.claim()) == [one.job_id for one in given]


async def test_cancelled_wait_for_a_transaction_leaves_no_lock(
    store: SqliteStore, path: str
) -> None:
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("begin immediate")

    async def use() -> None:
        async with store.transaction():
            pass

    waiting = asyncio.create_task(use())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting])
    blocker.execute("commit")
    blocker.close()

    assert waiting.cancelled()
    async with asyncio.timeout(20):
        assert await enqueue(store) > 0


async def test_turns_are_given_in_the_order_asked_for() -> None:
    turn = Turn()
    order: list[str] = []
    turn.take(1)

    async def on_the_loop(name: str) -> None:
        await turn.take_async(5)
        order.append(name)
        turn.release()

    def in_a_thread(name: str) -> None:
        turn.take(5)
        order.append(name)
        turn.release()

    waiting: list[asyncio.Future[None]] = []
    for n in range(3):
        waiting.append(asyncio.ensure_future(on_the_loop(f"loop {n}")))
        await until_true(partial(_waiting, turn, 2 * n + 1))
        waiting.append(asyncio.ensure_future(asyncio.to_thread(in_a_thread, f"thread {n}")))
        await until_true(partial(_waiting, turn, 2 * n + 2))
    turn.release()
    await asyncio.gather(*waiting)

    assert order == [f"{where} {n}" for n in range(3) for where in ("loop", "thread")]


def _waiting(turn: Turn, count: int) -> bool:
    return len(turn._waiting) == count


async def test_turn_passes_over_those_who_left() -> None:
    turn = Turn()
    turn.take(1)
    with pytest.raises(DatabaseUnreachable):
        turn.take(0.01)
    with pytest.raises(DatabaseUnreachable):
        await turn.take_async(0.01)
    cancelled = asyncio.create_task(turn.take_async(5))
    given_and_cancelled = asyncio.create_task(turn.take_async(5))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    turn.release()
    given_and_cancelled.cancel()
    await asyncio.wait([given_and_cancelled])

    turn.take(0.01)


async def test_event_loop_runs_while_a_transaction_waits(store: SqliteStore, path: str) -> None:
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("begin immediate")

    async def use() -> None:
        async with store.transaction():
            pass

    waiting = asyncio.create_task(use())
    await asyncio.sleep(0.05)
    # A loop that waited for the lock would be here only after it had given up.
    free = not waiting.done()
    blocker.execute("commit")
    blocker.close()
    await waiting

    assert free


# Idleness


async def test_idle_worker_writes_nothing(store: SqliteStore, path: str, hand: Hand) -> None:
    await enqueue(store, delay=timedelta(hours=1))
    sleeper = await store.sleeper(hand.id)
    observer = sqlite3.connect(path)
    before = observer.execute("pragma data_version").fetchone()
    with sqlite3.connect(path, isolation_level=None) as blocker:
        # Not even the write lock is taken.
        blocker.execute("begin immediate")
        async with asyncio.timeout(15):
            answer = await hand.exchange(want=10, look_ahead=True)
            assert await hand.claim_quarantined() == []
            assert await store.rescue() == []
            await sleeper.fall_asleep(["default"])
            await sleeper.sleep(0.1)
        blocker.execute("rollback")
    blocker.close()
    after = observer.execute("pragma data_version").fetchone()
    observer.close()
    await sleeper.close()

    assert answer.next_run_at is not None
    assert before == after


async def test_log_is_moved_into_the_file_when_idle(store: SqliteStore, path: str) -> None:
    size = _size(path)
    await enqueue_many(store, 2000)

    await until_true(lambda: _size(path) > size)


def _size(path: str) -> int:
    return Path(path).stat().st_size


# Large batches


@pytest.mark.parametrize("count", [1, 2, 3, 1024, 1025, 2500])
async def test_any_number_of_jobs_finishes_at_once(
    store: SqliteStore, hand: Hand, count: int
) -> None:
    await enqueue_many(store, count)
    jobs = await hand.claim(count)
    refused = await hand.finish(*jobs)
    again = await hand.finish(*jobs)

    assert (len(jobs), refused, again) == (count, frozenset(), frozenset(ids(jobs)))
    assert {(await get(store, job.id)).state for job in jobs[-3:]} == {JobState.COMPLETED}


# Other processes


def _serve(path: str, orders: Any) -> None:
    """Another process: does what it is told, one order at a time."""

    async def main() -> None:
        store = SqliteStore(path)
        await store.open()
        orders.send("ready")
        while order := orders.recv():
            verb, argument = order
            if verb == "enqueue":
                orders.send(await enqueue(store, queue=argument))
            elif verb == "cancel":
                orders.send(await cancel(store, argument, reason=Reason("cancelled")))
            elif verb == "drain":
                hand = await Hand.register(store, ["default"], timedelta(seconds=30), "other")
                taken = []
                while jobs := await hand.claim(argument):
                    taken += ids(jobs)
                    await hand.finish(*jobs)
                orders.send(taken)
        await store.close()

    asyncio.run(main())


class Other:
    def __init__(self, path: str) -> None:
        self._orders, theirs = SPAWN.Pipe()
        # A daemon: pytest does not wait for it at its own end.
        self._process = SPAWN.Process(target=_serve, args=(path, theirs), daemon=True)
        self._process.start()
        # So that its end is the end of the pipe.
        theirs.close()
        assert self._orders.recv() == "ready"

    def send(self, verb: str, argument: Any) -> None:
        self._orders.send((verb, argument))

    async def answer(self) -> Any:
        return await asyncio.to_thread(self._orders.recv)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._orders.send(None)
        self._process.join(10)
        self._process.kill()


@pytest.fixture
def other(path: str) -> Iterator[Other]:
    with closing(Other(path)) as other:
        yield other


@pytest.fixture(params=["watched", "polled"])
def noticed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a store learns of writes of other processes: by the kernel alone, or by polls alone."""
    if request.param == "polled":
        monkeypatch.setattr(thread, "open_inbox", lambda log: PolledInbox())
    elif sys.platform == "linux":
        monkeypatch.setattr(thread, "_WATCHED_SECONDS", 3600.0)


@pytest.mark.usefixtures("noticed")
async def test_enqueue_of_another_process_wakes_soon(
    store: SqliteStore, hand: Hand, other: Other
) -> None:
    sleeper = await store.sleeper(hand.id)
    delays = []
    for _ in range(5):
        await sleeper.fall_asleep(["default"])
        sleep = asyncio.create_task(sleeper.sleep(60))
        other.send("enqueue", "default")
        await other.answer()
        began = time.monotonic()
        assert await sleep == "notified"
        delays.append(time.monotonic() - began)
        assert len(await hand.claim()) == 1
        await sleeper.wake_up()
    await sleeper.close()

    # On a busy machine, some of them come later.
    assert min(delays) < 0.1


@pytest.fixture(params=[WatchingInbox, PolledInbox])
def inbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inbox[str]]:
    """Of a file `log`."""
    log = tmp_path / "log"
    log.write_text("")
    inbox: Inbox[str] = PolledInbox()
    if request.param is WatchingInbox:
        inbox = WatchingInbox(str(log))
    with closing(inbox):
        yield inbox


def test_calls_come_in_their_order(inbox: Inbox[str]) -> None:
    inbox.put("first")
    inbox.put("second")

    assert [inbox.get(10, watch=True) for _ in range(2)] == ["first", "second"]
    with pytest.raises(Empty):
        inbox.get(0.001, watch=True)


def test_call_ends_a_wait(inbox: Inbox[str]) -> None:
    with ThreadPoolExecutor() as pool:
        call = pool.submit(inbox.get, 30, watch=True)
        inbox.put("now")

        assert call.result(20) == "now"


def test_bell_of_a_call_that_was_taken_ends_no_wait(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    with closing(WatchingInbox[str](str(log))) as inbox:
        # As if the thread had seen the call while `put` rang the bell.
        os.eventfd_write(inbox._bell, 1)
        began = time.monotonic()
        with pytest.raises(Empty) as ended:
            inbox.get(0.2, watch=True)
        took = time.monotonic() - began
        os.eventfd_write(inbox._bell, 1)
        log.write_text("written")
        with pytest.raises(Written):
            inbox.get(30, watch=True)

    assert ended.type is Empty
    assert took >= 0.2


def test_no_call_is_lost_between_threads(inbox: Inbox[int]) -> None:
    def put(first: int) -> None:
        for number in range(first, first + 500):
            inbox.put(number)

    with ThreadPoolExecutor() as pool:
        for first in range(0, 2000, 500):
            pool.submit(put, first)
        got = [inbox.get(30, watch=True) for _ in range(2000)]

    assert sorted(got) == list(range(2000))


def test_write_ends_a_wait_only_while_the_file_is_watched(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    with closing(WatchingInbox[str](str(log))) as inbox:
        log.write_text("written")
        with pytest.raises(Empty) as unwatched:
            inbox.get(0.01, watch=False)
        with pytest.raises(Written):
            inbox.get(30, watch=True)
        log.write_text("by us")
        inbox.forget_writes()
        with pytest.raises(Empty) as forgotten:
            inbox.get(0.01, watch=True)

    assert {unwatched.type, forgotten.type} == {Empty}


def test_file_that_cannot_be_watched_is_polled(tmp_path: Path) -> None:
    inbox: Inbox[str] = open_inbox(str(tmp_path / "missing"))
    inbox.close()

    assert not inbox.watches


def test_call_after_the_end_writes_to_no_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    inbox = WatchingInbox[str](str(log))
    inbox.close()
    with log.open("r+b", buffering=0):
        inbox.put("late")

    assert log.read_text() == ""


async def test_enqueue_elsewhere_does_not_wake(
    store: SqliteStore, hand: Hand, other: Other
) -> None:
    sleeper = await store.sleeper(hand.id)
    await sleeper.fall_asleep(["default"])
    sleep = asyncio.create_task(sleeper.sleep(0.3))
    other.send("enqueue", "another queue")
    await other.answer()

    assert await sleep == "timed out"
    await sleeper.close()


@pytest.mark.usefixtures("noticed")
async def test_cancel_by_another_process_is_told(
    store: SqliteStore, hand: Hand, other: Other
) -> None:
    job_id = await enqueue(store)
    await hand.claim_one()
    sleeper = await store.sleeper(hand.id)
    sleep = asyncio.create_task(sleeper.sleep(60))
    other.send("cancel", job_id)
    was = await other.answer()
    reason = await sleep
    again = await sleeper.sleep(0.1)
    await sleeper.close()

    assert (was, reason, again) == (JobState.RUNNING, "cancelled", "timed out")
    assert await sleeper.cancelled_jobs() == [job_id]


@pytest.mark.usefixtures("noticed")
async def test_end_in_another_process_is_told(store: SqliteStore, other: Other) -> None:
    job_id = await enqueue(store)
    wait = asyncio.create_task(store.wait_finished(job_id, 60))
    await asyncio.sleep(0.05)
    other.send("drain", 10)
    taken = await other.answer()
    async with asyncio.timeout(20):
        await wait

    assert taken == [job_id]
    assert (await get(store, job_id)).state is JobState.COMPLETED


async def test_processes_share_the_jobs_and_none_runs_twice(
    store: SqliteStore, path: str, hand: Hand
) -> None:
    given = await enqueue_many(store, 2000)
    with ExitStack() as stack:
        others = [stack.enter_context(closing(Other(path))) for _ in range(2)]
        for other in others:
            other.send("drain", 7)
        mine = []
        while jobs := await hand.claim(7):
            mine += ids(jobs)
            await hand.finish(*jobs)
        theirs = [await other.answer() for other in others]

    assert sorted(sum(theirs, mine)) == given


# Plans


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A million jobs, most in the future, never analysed."""
    file = str(tmp_path_factory.mktemp("plans") / "jobs.db")
    upgrade(SqliteMigrator(file))
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("begin")
    connection.execute(
        """with recursive n (id) as (select 1 union all select id + 1 from n where id < 1000000)
        insert into duetime_job (id, task, queue, priority, args, max_attempts, created_at)
        select id, 'noop', 'default', 5, '{}', 3, 0 from n"""
    )
    connection.execute(
        """insert into duetime_due (job_id, queue, priority, run_at)
        select id, 'default', 5, 1000000 * id from duetime_job"""
    )
    connection.execute(
        """insert into duetime_attempt (job_id, token, attempt, outcome, finished_at)
        select id, id, 1, iif(id % 1000, 'completed', 'dead'), id from duetime_job where id % 2"""
    )
    connection.execute("commit")
    yield connection
    connection.close()


NOW = 1_000_000 * 1000
CANDIDATES: dict[str, Any] = {
    "before": 900_000, "lowest": 0, "window": 100, "page": 100, "plain": False, "ids": None,
    "states": None, "queue": None, "task": None, "but_tasks": None, "key": None, "args": None,
    "error_code": None, "created_since": None, "created_before": None, "due_since": None,
    "due_before": None, "conditions": 0,
}  # fmt: skip
STATEMENTS: dict[str, dict[str, Any] | tuple[Any, ...]] = {
    "lanes": {"queues": '["default"]'},
    "limited_lanes": {"queues": '["default"]', "after": NOW},
    "due_jobs": {"queue": "default", "priority": 5, "now": NOW, "want": 500, "most_args": 9},
    "due_partitions": {"queue": "default", "priority": 5, "now": NOW, "want": 500, "full": "[]"},
    "chosen_jobs": {"jobs": "[1, 2, 3]", "most_args": 9},
    "args_of": {"job": 7},
    "any_quarantined": {"queues": '["default"]', "now": NOW},
    "hold": {"jobs": "[1, 2, 3]", "token": 1, "worker": 1, "now": NOW},
    "leave_due": {"jobs": "[1, 2, 3]"},
    "finish": (1, 1, 5, 9),
    "finish_fully": {"jobs": '[[1, 1, 5, 9, "dead", null, null, null, null, null]]'},
    "wait_again": {"jobs": "[[1, 5, 1, null]]"},
    "given_back": {"jobs": "[[1, 1, 5]]"},
    "free_keys": {"jobs": '[[1, 1, 5, 9, "dead", null, null, null, null, null]]'},
    "keep_keys": {"jobs": '[[1, 1, 5, 9, "completed", null]]', "now": NOW},
    "close_claims": {"jobs": "[[1, 1, 5, 9]]"},
    "close_accepted": {"jobs": "[1, 2]"},
    "finished_before": {"jobs": "[[1, 1, 5, 9]]"},
    "get_job": {"job": 5},
    "get_history": {"job": 5},
    "finished_jobs": {"jobs": "[1, 2]"},
    "old_jobs": {"outcome": "completed", "before": 1, "batch": 1000},
    "brief_jobs": ('{"doc": [1, 2]}',),
    "cancel_waiting": ('{"doc": {"job": 5}, "now": 1}',),
    "cancel_waiting_2": ('{"doc": {"job": 5}}',),
    "waiting_place": ('{"doc": {"job": 5}}',),
    "reschedule": ('{"doc": {"job": 5, "run_at": 0}}',),
    "reprioritise": ('{"doc": {"job": 5, "priority": 1}}',),
    "reprioritise_3": ('{"doc": {"job": 5, "priority": 1}}',),
    "requeue": ('{"doc": {"ids": [1, 2]}, "now": 1}',),
    "requeue_2": ('{"doc": {"ids": [1, 2]}, "now": 1}',),
    "requeue_3": ('{"doc": {"ids": [1, 2]}}',),
    "requeue_4": ('{"doc": {"ids": [1, 2]}}',),
    "key_holders": ('{"doc": [1, 2]}',),
    "given_jobs": {"ids": "[1, 2]", "states": None, "ended_by": None},
    "due_between_ids": {"due_since": None, "due_before": 1, "queue": None, "most": 100},
    "job_range": {},
    "job_near": {"id": 7, "moment": NOW},
}  # fmt: skip
STATEMENTS |= {
    f"candidate_ids {source}": CANDIDATES | {"source": source} | given
    for source, given in {
        "any": {},
        "keyed": {"key": "k"},
        "given": {"ids": "[1, 2]"},
        "due": {"ids": "[1, 2]"},
        "pending": {},
        "retrying": {},
        "parked": {},
        "running": {},
        "completed": {},
        "troubled": {"states": '["dead"]'},
    }.items()
}
BIG = ("duetime_job", "duetime_due", "duetime_attempt")


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_scans_no_big_table(filled: sqlite3.Connection, name: str) -> None:
    sql = SqliteStore(filled.execute("pragma database_list").fetchone()[2])._sql
    plan = [
        row[3]
        for row in filled.execute(f"explain query plan {sql[name.split()[0]]}", STATEMENTS[name])
    ]
    aliases = {"j", "d", "a", "b", "v", "last"}
    scans = [
        line for line in plan if line.startswith("SCAN ") and line.split()[1] in {*BIG, *aliases}
    ]

    assert scans == [], plan


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_takes_few_steps_beside_a_million_future_jobs(
    filled: sqlite3.Connection, name: str
) -> None:
    """Counted in steps of SQLite's machine: a walk over a table takes millions."""
    sql = SqliteStore(filled.execute("pragma database_list").fetchone()[2])._sql
    filled.execute("begin")
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 100
        return 0

    filled.set_progress_handler(step, 100)
    try:
        filled.execute(sql[name.split()[0]], STATEMENTS[name]).fetchall()
    finally:
        filled.set_progress_handler(None, 100)
        filled.execute("rollback")

    assert steps < 100_000


def _schema(path: str) -> set[str]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("select sql from sqlite_schema where sql is not null").fetchall()
    connection.close()
    return {row[0] for row in rows}


async def test_who_only_reads_starts_while_another_process_writes(path: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        store = SqliteStore(path)
        async with asyncio.timeout(3):
            await store.open()
            found = await store.queues()
        await store.close()

    assert found == []


def test_a_path_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidDatabaseURL, match="not valid UTF-8"):
        SqliteStore("b\udcff.db")
