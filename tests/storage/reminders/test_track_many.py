"""One statement may change more rows of a tracked table than are armed at a time."""

from __future__ import annotations

import psycopg

from duetime import Duetime
from duetime.reminders.rearm import rearm_stale

ROWS = 12_001
"""More than two parts."""


async def test_every_row_of_a_large_statement_is_followed_once(pg_url: str) -> None:
    app = Duetime(pg_url, migrate=True)
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(
            "create table game (id bigint primary key, starts timestamptz, guild text,"
            " done boolean)"
        )
        await app.tables.put(
            "game", id="id", due="starts", scope="guild:{guild}", remind=["-1h"], when="not done"
        )
        connection.execute(
            "insert into game select n, '2999-01-01Z'::timestamptz + n * interval '1 second',"
            " n %% 3, false from generate_series(1, %s) as n",
            [ROWS],
        )
        await rearm_stale(app)

        connection.execute(
            "update game set starts = starts + interval '1 hour', done = id %% 4 = 0 where id > 1",
            [],
        )
        await rearm_stale(app)
        found = connection.execute(
            "select s.ref = 'game:1', s.status, s.revision, s.scope = 'guild:' || g.guild,"
            " s.due_at = g.starts, array_agg(r.status order by r.id), count(d.job_id),"
            " min(d.run_at) = min(r.run_at) filter (where r.status = 'armed'), count(*)"
            " from game as g join duetime.subject as s on s.ref = 'game:' || g.id"
            " join duetime.reminder as r on r.subject_id = s.id"
            " left join duetime.due as d on d.job_id = r.job_id"
            " group by g.id, g.starts, g.guild, s.id"
        ).fetchall()
        audited = connection.execute(
            "select action, count(*) from duetime.audit where entity like 'subject:%%'"
            " group by 1 order by 1",
            [],
        ).fetchall()
        connection.execute("delete from game where id > 1")
        left = connection.execute(
            "select (select count(*) from duetime.subject),"
            " (select count(*) from duetime.reminder),"
            " (select count(*) from duetime.due as d join duetime.job as j on j.id = d.job_id"
            "  where j.task = 'duetime.remind')"
        ).fetchone()
    await app.close()

    done = ROWS // 4
    kinds: dict[tuple[object, ...], int] = {}
    for first, status, revision, scope, due, statuses, waiting, on_time, _ in found:
        kind = (first, status, revision, scope, due, tuple(statuses), waiting, on_time)
        kinds[kind] = kinds.get(kind, 0) + 1
    assert kinds == {
        (True, "open", 1, True, True, ("armed",), 1, True): 1,
        (False, "open", 2, True, True, ("superseded", "armed"), 1, True): ROWS - 1 - done,
        # A row that is done keeps what it was due at.
        (False, "done", 2, True, False, ("cancelled",), 0, None): done,
    }
    assert audited == [("subject.complete", done), ("subject.put", ROWS + ROWS - 1 - done)]
    assert left == (1, 1, 1)
