"""A rule is being used while the pruner finds that no reminder refers to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from duetime import Duetime, Reminder, Sent
from duetime.storage.reminders.pruning import PruneStatements

START = datetime(2026, 3, 2, tzinfo=UTC)
DUE = START + timedelta(days=10)


async def prune(app: Duetime) -> None:
    store = await app.store()
    statements = PruneStatements(store.dialect)
    scan = await store.transact(statements.begin_rule_scan(enough=0), reads=True)
    await store.transact(statements.scan_rules(scan), reads=True)
    # Twice, as if there were many: what was just retired is not deleted.
    await store.transact(statements.drop_rules(scan))
    await store.transact(statements.drop_rules(scan))


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_a_rule_that_an_open_transaction_uses_is_kept(pg_url: str, isolation: str) -> None:
    app = Duetime(pg_url, migrate=True)
    sent: list[str] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        sent.append(reminder.subject)
        return Sent()

    async with (
        app.testing(now=START, isolated=False) as world,
        await psycopg.AsyncConnection.connect(pg_url) as connection,
    ):
        await app.subjects.put("old", due=DUE, remind=["-1h"])
        await app.subjects.delete("old")
        await connection.execute(f"set transaction isolation level {isolation}".encode())
        await app.subjects.put("open", due=DUE, remind=["-1h"], tx=connection)
        await prune(app)
        await app.subjects.put("new", due=DUE, remind=["-1h"])
        await app.subjects.put("more", due=DUE, remind=["-1h"], tx=connection)
        await connection.commit()
        cursor = await connection.execute(
            "select count(*), count(distinct r.rule), count(u.retired_at)"
            " from duetime.reminder as r join duetime.rule as u on u.id = r.rule"
        )
        used = await cursor.fetchone()
        await connection.commit()
        for _ in range(3):
            await world.advance("25h")
            await prune(app)
        await world.advance("10d")

    assert used is not None
    assert used[:2] == (3, 2), "the open transaction has the number of the rule that was retired"
    assert used[2] == (1 if isolation == "read committed" else 2)
    assert sorted(sent) == ["more", "new", "open"]
