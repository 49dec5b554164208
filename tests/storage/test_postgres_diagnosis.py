"""What `duetime doctor` finds in PostgreSQL alone. Each fault is planted for real."""

from __future__ import annotations

import shutil
import struct
import time
import zoneinfo
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from duetime import Duetime
from duetime.doctor import examine
from duetime.domain.findings import Finding, FindingLevel, Thresholds
from duetime.settings import Settings, load_settings
from duetime.storage.postgres.diagnosis import PostgresDiagnosis
from tests.conftest import fresh_database
from tests.pgbouncer import find_pgbouncer, pgbouncer
from tests.postgres_binaries import find_system
from tests.servers import PostgresServer
from tests.storage.test_postgres_roles import login, roles
from tests.waiting import PATIENCE

AT_ONCE = Thresholds(transaction_age=timedelta(0), notification=timedelta(milliseconds=300))


async def check(name: str, settings: Settings, thresholds: Thresholds = AT_ONCE) -> list[Finding]:
    diagnosis = PostgresDiagnosis(settings, thresholds)
    [run] = [one.run for one in diagnosis.checks() if one.name == name]
    return list(await run())


def codes(findings: Sequence[Finding]) -> list[str]:
    return [finding.code for finding in findings]


async def test_a_machine_whose_clock_is_wrong(pg_url: str) -> None:
    def diagnosis(wrong: timedelta) -> PostgresDiagnosis:
        return PostgresDiagnosis(
            Settings(database=pg_url), AT_ONCE, clock=lambda: datetime.now(UTC) + wrong
        )

    [ahead] = await diagnosis(timedelta(seconds=90))._check_clock()
    [behind] = await diagnosis(timedelta(seconds=-5))._check_clock()
    [fine] = await diagnosis(timedelta(0))._check_clock()

    assert 60 < ahead.facts["skew"] <= 90
    assert "ahead of the database's clock" in ahead.message
    assert "behind" in behind.message
    assert fine.code == "clock_ok"


async def test_a_notification_makes_the_round_trip(pg_url: str) -> None:
    assert codes(await check("listen", Settings(database=pg_url))) == ["listen_ok"]
    assert codes(await check("listen", Settings(database=pg_url, notify=False))) == ["listen_off"]


async def test_a_listener_of_another_database_receives_nothing(
    pg_url: str, postgres15: PostgresServer
) -> None:
    with fresh_database(postgres15) as other:
        settings = Settings(database=pg_url, listen_database=other)

        [silent] = await check("listen", settings)

    assert silent.code == "listen_silent"
    assert silent.level is FindingLevel.ERROR
    assert "DUETIME_LISTEN_DATABASE" in silent.advice


async def test_a_listening_connection_that_cannot_be_opened(pg_url: str) -> None:
    settings = Settings(database=pg_url, listen_database="postgresql://127.0.0.1:1/shop")

    assert codes(await check("listen", settings)) == ["listen_refused"]


@pytest.mark.skipif(find_pgbouncer() is None, reason="pgbouncer is not installed")
async def test_a_pooler_in_transaction_mode(pg_url: str) -> None:
    with pgbouncer(pg_url) as pooled:
        wrong = Settings(database=pooled)
        right = Settings(database=pooled, listen_database=pg_url, prepare=False)
        listens_wrong = Settings(database=pg_url, listen_database=pooled)

        assert codes(await check("pooler", wrong)) == ["pooler_listen", "pooler_prepare"]
        assert codes(await check("listen", wrong)) == ["listen_silent"]
        assert codes(await check("pooler", right)) == ["pooler_ok"]
        assert codes(await check("listen", right)) == ["listen_ok"]
        assert codes(await check("pooler", listens_wrong)) == ["pooler_listen"]
    assert codes(await check("pooler", Settings(database=pg_url))) == ["pooler_none"]


@pytest.mark.skipif(find_pgbouncer() is None, reason="pgbouncer is not installed")
async def test_a_pooler_in_session_mode_needs_no_settings(pg_url: str) -> None:
    with pgbouncer(pg_url, mode="session") as pooled:
        assert codes(await check("pooler", Settings(database=pooled))) == ["pooler_none"]
        assert codes(await check("listen", Settings(database=pooled))) == ["listen_ok"]


async def test_a_transaction_that_was_left_open(pg_url: str) -> None:
    settings = Settings(database=pg_url)
    with psycopg.connect(pg_url, application_name="report") as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from duetime.job")
        pid = reader.info.backend_pid

        [old] = await check("transactions", settings)
        young = await check("transactions", settings, Thresholds())

    assert old.code == "transaction_old"
    assert old.facts["pid"] == pid
    assert "application report, idle in transaction" in old.message
    assert f"pg_terminate_backend({pid})" in old.advice
    assert codes(young) == ["transactions_ok"]
    assert codes(await check("transactions", settings)) == ["transactions_ok"]


async def test_a_prepared_transaction_that_was_forgotten() -> None:
    with PostgresServer(find_system(), settings={"max_prepared_transactions": "2"}) as server:
        with fresh_database(server) as url:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("create table t (x int)")
                connection.execute("begin; insert into t values (1); prepare transaction 'gone'")

                [old] = await check("transactions", Settings(database=url))

                connection.execute("rollback prepared 'gone'")

    assert old.code == "prepared_transaction_old"
    assert "rollback prepared 'gone'" in old.advice


def leave_slot_behind(url: str, name: str) -> None:
    """Act as a standby that reports what its queries need, and goes away."""
    dsn = make_conninfo(url, replication="true")
    standby = pq.PGconn.connect(dsn.encode())
    assert standby.status == pq.ConnStatus.OK, standby.error_message
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("select pg_create_physical_replication_slot(%s, true)", [name])
        [lsn, xmin] = owner.execute(
            "select pg_current_wal_lsn()::text, pg_snapshot_xmin(pg_current_snapshot())::text"
        ).fetchone() or ["", ""]
        begun = standby.exec_(f"START_REPLICATION SLOT {name} PHYSICAL {lsn}".encode())
        assert begun.status == pq.ExecStatus.COPY_BOTH, standby.error_message
        standby.put_copy_data(b"h" + struct.pack(">qIIII", 0, int(xmin), 0, 0, 0))
        while standby.flush():
            pass
        deadline = time.monotonic() + PATIENCE
        held: tuple[object, ...] | None = None
        while held is None and time.monotonic() < deadline:
            held = owner.execute(
                "select from pg_replication_slots where slot_name = %s and xmin is not null", [name]
            ).fetchone()
        standby.finish()
        active: tuple[object, ...] | None = held
        while active is not None and time.monotonic() < deadline:
            active = owner.execute(
                "select from pg_replication_slots where slot_name = %s and active", [name]
            ).fetchone()


async def test_the_slot_of_a_standby_that_has_gone(own_postgres: PostgresServer) -> None:
    with fresh_database(own_postgres) as url:
        leave_slot_behind(url, "gone")

        [unused] = await check("transactions", Settings(database=url))

    assert unused.code == "slot_unused"
    assert "pg_drop_replication_slot('gone')" in unused.advice


async def test_autovacuum_that_was_switched_off(pg_url: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute("alter table duetime.due set (autovacuum_enabled = off)")

    [off] = await check("vacuum", Settings(database=pg_url))

    assert off.message.startswith("Autovacuum is off for duetime.due:")


async def test_dead_rows(pg_url: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute("alter table duetime.due set (autovacuum_enabled = off)")
        owner.execute(
            "insert into duetime.due (queue, priority, run_at, job_id)"
            " select 'q', 5, now(), n from generate_series(1, 1000) as n"
        )
        owner.execute("delete from duetime.due")
        owner.execute("select pg_stat_force_next_flush()")
        owner.execute("select 1")

    found = await check("vacuum", Settings(database=pg_url), Thresholds(dead_rows=1000))
    [dead] = [one for one in found if one.code == "dead_rows"]

    assert dead.facts["table"] == "duetime.due"
    assert dead.facts["dead"] == 1000
    assert "vacuum duetime.due" in dead.advice
    assert "dead_rows" not in codes(await check("vacuum", Settings(database=pg_url)))


async def test_a_database_that_refuses_changes(pg_url: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(f"alter database {owner.info.dbname} set default_transaction_read_only = on")

    [found] = await check("writable", Settings(database=pg_url))

    assert found.code == "read_only"
    assert found.level is FindingLevel.ERROR


@pytest.fixture
def other_zones(tmp_path: Path) -> Iterator[Path]:
    """Time-zone data of this process in which one zone is another."""
    system = Path("/usr/share/zoneinfo")
    folder = tmp_path / "zones"
    (folder / "Europe").mkdir(parents=True)
    shutil.copy(system / "Asia" / "Tokyo", folder / "Europe" / "Berlin")
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=[str(folder), str(system)])
    zoneinfo.ZoneInfo.clear_cache()
    yield folder
    zoneinfo.reset_tzpath(to=before)
    zoneinfo.ZoneInfo.clear_cache()


async def test_time_zones_on_which_the_two_sides_disagree(pg_url: str, other_zones: Path) -> None:
    (other_zones / "tzdata.zi").write_text("# version 2019a\n")
    findings = await examine(Duetime(pg_url))
    zones = {one.code: one for one in findings if one.check == "zones"}

    assert zones["zones_differ"].facts["zones"] == ["Europe/Berlin"]
    assert "2019a" in zones["zones_old"].message


async def test_a_damaged_time_zone_is_a_finding(pg_url: str, other_zones: Path) -> None:
    (other_zones / "Europe" / "Berlin").write_bytes(b"TZif2")
    findings = await examine(Duetime(pg_url))

    [failed] = [one for one in findings if one.code == "check_failed"]
    assert failed.check == "zones"
    assert "workers" in {one.check for one in findings}


@pytest.mark.parametrize("group", ["reader", "producer"])
async def test_a_role_with_few_rights_is_not_allowed_to_look(pg_url: str, group: str) -> None:
    app = Duetime(pg_url, migrate=False)
    with roles(pg_url), login(pg_url, f"few_{group}", f"duetime_{group}") as url:
        with psycopg.connect(pg_url) as other:
            other.execute("select 1")
            app.settings = load_settings({"database": url, "migrate": False})
            findings = await examine(app)
            await app.close()

    refused = {one.check for one in findings if one.code == "not_allowed"}
    assert "transactions" in refused
    assert (bool(refused & {"store", "work"})) == (group == "producer")
    assert [one for one in findings if one.level is FindingLevel.ERROR] == []


async def test_a_role_without_any_rights(pg_url: str) -> None:
    with login(pg_url, "few_none") as url:
        findings = await examine(Duetime(url, migrate=False))

    assert [one for one in findings if one.level is FindingLevel.ERROR] == []
    assert "schema" in {one.check for one in findings if one.code == "not_allowed"}
