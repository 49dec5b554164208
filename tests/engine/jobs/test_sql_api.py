"""Enqueue by plain SQL: psql, triggers, any language."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from duetime import Duetime
from tests.postgres_binaries import find_system
from tests.waiting import until_true


def psql(url: str, statement: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("psql") or str(find_system().directory / "psql")
    return subprocess.run(
        [program, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement, url],
        capture_output=True,
        text=True,
        check=False,
    )


async def test_psql_enqueues_and_the_worker_is_woken(pg_app: Duetime) -> None:
    ran: list[str] = []

    @pg_app.task(name="greet", queue="polite")
    async def greet(name: str) -> None:
        ran.append(name)

    async with pg_app.worker(queues=["polite"], poll="60s"):
        url = pg_app.settings.database
        done = await asyncio.to_thread(
            psql, url, """select duetime.enqueue('greet', '{"name": "ann"}')"""
        )
        await until_true(lambda: ran == ["ann"])

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


async def test_what_sql_does_not_name_comes_from_the_task(pg_app: Duetime) -> None:
    @pg_app.task(name="slow", queue="heavy", priority=2, max_attempts=9, timeout="5s", expires="1m")
    async def slow(note: str | None = None) -> None: ...

    async with pg_app.worker():
        pass
    url = pg_app.settings.database
    await asyncio.to_thread(psql, url, """select duetime.enqueue('slow', '{"note": null}')""")
    await asyncio.to_thread(psql, url, "select duetime.enqueue('slow', queue => 'default')")
    own, plain = await pg_app.jobs.list()

    assert (plain.queue, plain.priority, plain.max_attempts) == ("heavy", 2, 9)
    assert plain.timeout == timedelta(seconds=5)
    assert plain.expires_at is not None
    assert plain.args == {"note": None}
    assert own.queue == "default"


async def test_a_trigger_enqueues_in_the_transaction_of_its_row(pg_app: Duetime) -> None:
    """Whoever writes the row; after a rollback there is neither the row nor the job."""
    await pg_app.now()
    with psycopg.connect(pg_app.settings.database, autocommit=True) as connection:
        connection.execute("create table orders (id int)")
        connection.execute("""
            create function on_order() returns trigger language plpgsql as $$
            begin
                perform duetime.enqueue('ship', json_build_object('order', new.id));
                return new;
            end $$""")
        connection.execute(
            "create trigger t after insert on orders for each row execute function on_order()"
        )
        connection.execute("insert into orders values (1)")
        with connection.transaction(force_rollback=True):
            connection.execute("insert into orders values (2)")
    jobs = await pg_app.jobs.list(task="ship")

    assert [job.args for job in jobs] == [{"order": 1}]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("duetime.enqueue('')", "the task must have 1 to 200 characters"),
        ("duetime.enqueue('  ')", "the task must have 1 to 200 characters"),
        ("duetime.enqueue('a', queue => '')", "the queue must have 1 to 200"),
        (
            "duetime.enqueue('a', queue => ' ')",
            "must not contain commas, nor begin or end with a space",
        ),
        ("duetime.enqueue('a', queue => 'b,c')", "the queue name 'b,c' must not contain commas"),
        ("duetime.enqueue('a', key => ' ')", "not only spaces"),
        ("duetime.enqueue('a', '[1]')", "must be a JSON object"),
        ("duetime.enqueue('a', 'nonsense')", "invalid input syntax for type json"),
        ("duetime.enqueue('a', priority => 10)", "priority must be 0"),
        ("duetime.enqueue('a', max_attempts => 0)", "max_attempts must be"),
        ("duetime.enqueue('a', run_at => 'infinity')", "run_at must be finite"),
        ("duetime.enqueue('a', key => 'k', on_conflict => 'what')", "on_conflict must be"),
        ("duetime.enqueue('a', delay => '-1 hour')", "delay must not be negative"),
        (
            "duetime.enqueue('a', run_at => now(), delay => '1 hour')",
            "run_at and delay cannot be combined",
        ),
        ("duetime.enqueue('a', key => '')", "the key must have 1 to 200 characters"),
        ("duetime.enqueue('a', key => repeat('k', 201))", "the key must have 1 to 200 characters"),
        ("duetime.enqueue('a', hold => '1 hour')", "hold requires a key"),
        ("duetime.enqueue('a', key => 'k', hold => '-1 hour')", "hold must be from 0 to 100 years"),
        (
            "duetime.enqueue('a', key => 'k', hold => '101 years')",
            "hold must be from 0 to 100 years",
        ),
        ("duetime.enqueue('a', partition => '')", "the partition must have 1 to 200"),
        ("duetime.enqueue('a', partition => repeat('p', 201))", "the partition must have 1 to 200"),
        ("duetime.enqueue('a', timeout => '0')", "timeout must be positive"),
        ("duetime.enqueue('a', expires_at => '0044-03-15 BC')", "expires_at must be finite"),
        ("duetime.enqueue_many('{}')", "must be a JSON array"),
    ],
)
async def test_bad_input_is_refused_in_words(pg_app: Duetime, call: str, message: str) -> None:
    await pg_app.now()

    done = await asyncio.to_thread(psql, pg_app.settings.database, f"select {call}")

    assert done.returncode != 0
    assert message in done.stderr
    assert await pg_app.jobs.list() == []


async def test_a_held_key_rejects_with_the_holder(pg_app: Duetime) -> None:
    await pg_app.now()
    url = pg_app.settings.database
    first = psql(url, "select duetime.enqueue('a', key => 'k')")
    second = psql(url, "select duetime.enqueue('a', key => 'k')")
    third = psql(url, "select duetime.enqueue('a', key => 'k', on_conflict => 'reject')")

    assert first.stdout == second.stdout
    assert f"job {first.stdout.strip()} already holds the key k" in third.stderr


@pytest.mark.parametrize("policy", ["return", "reject", "replace"])
async def test_50_clients_race_for_one_key(pg_app: Duetime, policy: str) -> None:
    await pg_app.now()
    url = pg_app.settings.database

    async def enqueue(number: int) -> tuple[int, str]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            cursor = await connection.execute(
                "select job_id, action from duetime.enqueue_many(json_build_array("
                "json_build_object('task', 'a', 'key', 'k', 'on_conflict', %s::text)))",
                (policy,),
            )
            row = await cursor.fetchone()
            assert row is not None
            return row[0], row[1]

    answers = await asyncio.gather(*(enqueue(number) for number in range(50)))
    jobs = await pg_app.jobs.list()

    assert len(jobs) == 1
    assert {job_id for job_id, _ in answers} == {jobs[0].id}
    assert [outcome for _, outcome in answers].count("created") == 1


async def test_the_limit_of_arguments_holds_for_sql(pg_url: str) -> None:
    app = Duetime(pg_url, max_args_bytes=100)

    @app.task(name="small")
    async def small(text: str) -> None: ...

    async with app.worker():
        pass
    await app.close()
    body = json.dumps({"text": "x" * 200})
    refused = psql(pg_url, f"select duetime.enqueue('small', '{body}')")
    unknown = psql(pg_url, f"select duetime.enqueue('another', '{body}')")
    huge = "json_build_object('text', repeat('x', 1048576))"
    too_big = psql(pg_url, f"select duetime.enqueue('another', {huge})")

    assert "take 212 bytes of JSON, more than 100" in refused.stderr
    assert unknown.returncode == 0
    assert "more than 1048576" in too_big.stderr


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("""enqueue_many('[{"task": "t", "dealy": "1h"}]')""", "no field named 'dealy'"),
        ("""enqueue_many('[{"task": "t"}, {"at": "2030-01-01T00:00Z"}]')""", "no field named 'at'"),
        ("enqueue_many('[1]')", "must be a JSON object"),
        ("""enqueue_many('[{"task": "t", "expires_after": "-1s"}]')""", "expires_after must be"),
        ("enqueue('t', delay => '200 years')", "delay must be at most 100 years"),
        ("schedule('s', 't', '0 9 * * *', actor => null)", "the actor must have"),
        ("schedule('s', 't', '0 9 * * *', actor => '')", "the actor must have"),
        ("schedule('s', 'duetime.bulk', '0 9 * * *')", "reserved"),
        ("pause_schedule('known', 'x', 'infinity')", "at most in the year 9000"),
        (
            """enqueue('t', '{"n": 1e999}')""",
            "args of task t contain the number 1e999, which is too",
        ),
        ("""enqueue('t', '{"n": [-1.8E+308]}')""", "contain the number -1.8E\\+308"),
        (
            "enqueue('t', ('{\"n\": 1' || repeat('0', 309) || '.5}')::json)",
            "contain the number 1000",
        ),
        (
            "enqueue('t', ('{\"n\": 1' || repeat('0', 4300) || '}')::json)",
            "contain the number 1000",
        ),
        (r"""signal_flow(1, 'go', '"\u0000"')""", "contains text that cannot be stored"),
        (r"""enqueue('t', '{"n": "\u0000"}')""", "a job contains text that cannot be stored"),
        (r"""enqueue('t', '{"\ud83d": 1}')""", "a job contains text that cannot be stored"),
        (
            r"""enqueue('t', '{"small": 1e-20000, "n": [{"o": "\ude00"}]}')""",
            "a job contains text that cannot be stored",
        ),
        (r"""start_flow('t', '{"n": "\u0000"}')""", "a job contains text that cannot be stored"),
        (
            r"""enqueue_many('[{"task": "t", "key": "\u0000"}]')""",
            "a job contains text that cannot be stored",
        ),
        (
            r"""schedule('s', 't', '0 9 * * *', args => '{"n": "\ud83d"}')""",
            "contain text that cannot be stored",
        ),
        ("""enqueue_many('[{"task": "t", "args": {"n": 1e999}}]')""", "contain the number 1e999"),
        (
            """enqueue_many('[{"task": "t", "trace": {"n": 1e999}}]')""",
            "trace of task t contains the number 1e999",
        ),
        ("""start_flow('t', '{"n": 1e999}')""", "args of task t contain the number 1e999"),
        ("signal_flow(1, 'go', '1e999')", "the data of a signal contains the number 1e999"),
        (
            """schedule('s', 't', '0 9 * * *', args => '{"n": 1e999}')""",
            "args of a schedule contain",
        ),
    ],
)
async def test_sql_refuses_what_python_does(pg_app: Duetime, statement: str, why: str) -> None:
    await pg_app.store()
    with psycopg.connect(pg_app.settings.database, autocommit=True) as connection:
        connection.execute("select duetime.schedule('known', 't', '0 9 * * *')")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=why):
            connection.execute(f"select duetime.{statement}".encode())

    assert await pg_app.jobs.list() == []


async def test_sql_accepts_every_number_and_text_that_python_reads(pg_app: Duetime) -> None:
    given: dict[str, Any] = {
        "large": 1.7976931348623157e308,
        "small": 1e-320,
        "medium": 1e100,
        "long": 10**400,
        "text": "1e999, \\u0000 and \N{GRINNING FACE}",
    }
    seen: list[dict[str, Any]] = []

    @pg_app.task(name="look")
    async def look(values: dict[str, Any]) -> None:
        seen.append(values)

    await pg_app.store()
    with psycopg.connect(pg_app.settings.database, autocommit=True) as connection:
        text = json.dumps({"values": given}).replace("e-320", "e-20000")
        connection.execute("select duetime.enqueue('look', %s::json)", [text])
    async with pg_app.worker():
        await until_true(lambda: bool(seen))

    assert seen == [given | {"small": 0.0}]
