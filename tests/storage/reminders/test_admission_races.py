"""A subject is deleted while its reminder is admitted. On SQLite one of them waits."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from duetime import Duetime
from duetime.storage.store import Statement
from tests.conformance.mailbox import START, Mailbox, put_games
from tests.observing import observed


async def test_a_subject_that_is_deleted_while_its_reminder_stays_in_a_digest(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Duetime(pg_url, migrate=True)
    mail = Mailbox(app, "mail")
    async with app.testing(now=START, isolated=False) as world:
        store: Any = await app.store()
        transact, text = store.transact, store._sql["admission_read"]
        deleted: list[str] = []

        def delete_after_read(statement: Statement) -> None:
            if statement[0] != text or deleted:
                return
            deleted.append("game:1")
            with psycopg.connect(pg_url) as other:
                other.execute(
                    "with gone as (delete from duetime.subject where ref = 'game:1' returning id)"
                    " delete from duetime.reminder where subject_id in (select id from gone)"
                )

        await app.recipients.put("ann", max_per_hour=1)
        await put_games(app, 2)
        await world.advance("1h1m")
        [waiting] = await app.reminders.list(subject="game:1")
        assert waiting.job_id is not None
        await app.jobs.reschedule(waiting.job_id, await app.now())
        monkeypatch.setattr(
            store, "transact", lambda one, **how: transact(observed(one, delete_after_read), **how)
        )
        await world.advance("2h")
        history = (await app.jobs.get(waiting.job_id)).history

    assert deleted
    assert len(mail.messages) == 1
    assert history[-1].error_code == "just_ended"
