"""What scopes with many subjects cost on PostgreSQL, where most of the subjects are done."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest

from duetime import Duetime

_SUBJECTS = """
insert into duetime.subject (ref, scope, due_at, status)
select 's' || n, 'old', duetime.now() + n * interval '1 minute',
    case when n % 100 = 0 then 'open' else 'done' end
from generate_series(1, 20000) as n
"""
_READ = """
select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables
where relid = 'duetime.subject'::regclass
"""
_WORK = {
    "delete a scope": "delete from duetime.scope where ref = 'empty:1'",
    "delete scopes whose rows are gone": "select duetime._drop_scopes(array['empty:2', 'old'])",
    "count what is inside": "select count(*) from duetime.subject where scope = 'empty:3'",
    "count what is open inside": "select count(*) from duetime.subject as s"
    " where s.scope = any (duetime._scopes_below('old')) and s.status = 'open'",
}


@pytest.mark.parametrize("work", _WORK)
async def test_subjects_that_are_done_are_not_read(pg_url: str, work: str) -> None:
    app = Duetime(pg_url, migrate=True)
    await app.scopes.put("old")
    await app.close()
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(
            "insert into duetime.scope (ref) select 'empty:' || n from generate_series(1, 3) as n"
        )
        connection.execute(cast("Any", _SUBJECTS))
        connection.execute("vacuum analyze duetime.subject, duetime.scope")
        # What other processes read would not be counted.
        connection.execute("set max_parallel_workers_per_gather = 0")
        connection.execute("begin")
        connection.execute(cast("Any", _WORK[work]))
        row = connection.execute(cast("Any", _READ)).fetchone()
        connection.execute("rollback")

    assert row is not None
    assert row[0] <= 200
