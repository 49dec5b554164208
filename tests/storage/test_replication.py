"""Asynchronous replication: what is lost when the primary dies, and what never happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from duetime.domain.jobs.job import NewJob
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from tests.conformance.hand import Hand
from tests.replication import Standby, url_of
from tests.servers import PostgresServer
from tests.waiting import until_true

LEASE = timedelta(hours=1)


class Pair:
    """A primary and its standby, and a store before both."""

    def __init__(self, primary: PostgresServer, standby: Standby) -> None:
        self.primary = primary
        self.standby = standby
        self.store = PostgresStore(url_of(primary, standby, dbname="shop"))

    async def enqueue(self, count: int) -> list[int]:
        """One by one, each acknowledged."""
        return [
            (await self.store.enqueue([NewJob(task="t", max_attempts=3)]))[0].job_id
            for _ in range(count)
        ]

    async def register(self, name: str) -> Hand:
        return await Hand.register(self.store, ["default"], LEASE, name)

    async def let_the_standby_lag(self) -> None:
        """It has everything that was committed until now, and gets nothing more."""
        await until_true(lambda: self.standby.has_replayed(self.primary))
        self.standby.stop_receiving()
        await until_true(lambda: not self.standby.receives)

    def fail_over(self) -> None:
        self.primary.stop("kill")
        self.standby.promote()


@pytest.fixture
async def pair(own_postgres: PostgresServer) -> AsyncIterator[Pair]:
    own_postgres.create_database("shop")
    upgrade(PostgresMigrator(own_postgres.dsn("shop")))
    with Standby(own_postgres) as standby:
        pair = Pair(own_postgres, standby)
        await pair.store.open()
        yield pair
        await pair.store.close()


async def test_what_is_lost_is_what_the_standby_had_not_received(pair: Pair) -> None:
    received = await pair.enqueue(5)
    await pair.let_the_standby_lag()
    await pair.enqueue(5)
    pair.fail_over()

    hand = await pair.register("survivor")
    assert [job.id for job in await hand.claim()] == received


async def test_no_token_and_no_id_of_a_worker_is_given_twice(pair: Pair) -> None:
    """PostgreSQL logs a sequence 32 values ahead, and what was not received is lost."""
    jobs = await pair.enqueue(50)
    await pair.let_the_standby_lag()
    old = await pair.register("old")
    held = [job for _ in jobs for job in await old.claim(1)]
    pair.fail_over()

    new = await pair.register("new")
    again = [job for _ in jobs for job in await new.claim(1)]
    assert {job.id for job in again} == {job.id for job in held} == set(jobs)
    assert new.id > old.id
    assert min(job.token for job in again) > max(job.token for job in held)
    assert await old.finish(*held) == set(jobs)
    assert await new.finish(*again) == set()


def test_tokens_of_a_timeline_whose_first_record_was_lost_are_not_given_again(pg_url: str) -> None:
    """A server is promoted and gives tokens; before a standby has received any of that, it dies."""

    def promoted(times: int) -> int:
        """The first token of a server that was promoted since the standby's last record."""
        with psycopg.connect(pg_url, autocommit=True) as connection:
            connection.execute("select setval('duetime.claim_token_seq', 1000)")
            connection.execute("update duetime.timeline set known = 1 - %s", (times,))
            row = connection.execute(
                "select duetime._next_number('duetime.claim_token_seq')"
            ).fetchone()
        assert row is not None
        return int(row[0])

    none, once, twice = promoted(0), promoted(1), promoted(2)

    lost = 2**20
    assert none == 1001
    assert none + lost < once
    assert once + lost < twice
