"""What would happen if a subject moved is shown, and nothing is changed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duetime import Duetime, InvalidInput
from tests.conftest import Backend


async def test_a_move_is_previewed_and_changes_nothing(backend: Backend) -> None:
    app = Duetime(backend.url)
    now = await app.now()
    due = now + timedelta(days=3)
    await app.scopes.put("guild", remind=["-1d", "-1h"])
    await app.subjects.put("game", scope="guild", due=due, recipients=["ann"])
    before = await app.reminders.list(subject="game")

    preview = await app.subjects.preview_move("game", due + timedelta(days=2))

    assert [one.id for one in preview.superseded] == [one.id for one in before]
    assert [one.time - one.due_at for one in preview.armed] == [
        timedelta(days=-1),
        timedelta(hours=-1),
    ]
    assert {one.due_at for one in preview.armed} == {due + timedelta(days=2)}
    assert preview.kept == ()
    assert await app.reminders.list(subject="game") == before
    assert (await app.subjects.get("game")).due_at == due
    assert len(await app.subjects.audit("game")) == 1
    await app.close()


async def test_what_is_previewed_is_what_happens(backend: Backend) -> None:
    app = Duetime(backend.url)
    now = await app.now()
    await app.subjects.put("game", due=now + timedelta(days=3), remind=["-2d", "-1h"])
    to = now + timedelta(hours=30)

    preview = await app.subjects.preview_move("game", to)
    await app.subjects.put("game", due=to, remind=["-2d", "-1h"])

    armed = await app.reminders.list(subject="game", status="armed")
    assert [(one.rule, one.time) for one in preview.armed] == [
        (one.rule, one.time) for one in armed
    ]
    assert len(armed) == 1
    await app.close()


async def test_what_repeats_or_is_done_cannot_be_moved(backend: Backend) -> None:
    app = Duetime(backend.url)
    now = await app.now()
    await app.subjects.put("weekly", repeats="0 9 * * 1", remind=["-1h"])
    await app.subjects.put("done", due=now + timedelta(days=1), remind=["-1h"])
    await app.subjects.complete("done")

    for ref in ("weekly", "done"):
        with pytest.raises(InvalidInput, match="cannot be moved"):
            await app.subjects.preview_move(ref, now + timedelta(days=2))
    await app.close()
