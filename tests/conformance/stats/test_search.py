"""`app.stats.search()`: whatever a text may name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from duetime import Duetime, Flow, Match, NewJob
from duetime.errors import InvalidInput
from tests.conftest import Backend

NOW = datetime(2026, 3, 8, 9, tzinfo=UTC)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)

    @app.task(name="shop.send_invoice", queue="mail")
    async def send_invoice() -> None: ...

    @app.flow(name="shop.order")
    async def order(flow: Flow) -> None:
        await flow.sleep("3d")

    yield app
    await app.close()


async def names(app: Duetime, text: str) -> list[tuple[str, str]]:
    return [(match.kind, match.name) for match in await app.stats.search(text)]


async def test_jobs_runs_and_reminders_by_number_and_key(app: Duetime) -> None:
    async with app.testing(now=NOW) as world:
        [made] = await (await app.store()).enqueue(
            [NewJob(task="shop.send_invoice", key="order:7", delay=timedelta(hours=1))]
        )
        job = made.job_id
        run = await app.flows.start("shop.order", key="order:7")
        await app.subjects.put("game:1", due=NOW + timedelta(days=3), remind=["-1h"])
        [reminder] = await app.reminders.list()
        await world.drain()

        by_key = await app.stats.search("order:7")
        by_number = await app.stats.search(str(job))
        of_reminder = await app.stats.search(f" {reminder.id} ")

    assert [(one.kind, one.id, one.exact) for one in by_key] == [
        ("job", job, True),
        ("flow", run.id, True),
    ]
    assert by_key[0].detail == "pending, key order:7"
    assert by_number[0] == Match(
        kind="job",
        name="shop.send_invoice",
        id=job,
        detail="pending, key order:7",
        exact=True,
    )
    assert ("reminder", "game:1", "armed") in [
        (one.kind, one.name, one.detail) for one in of_reminder
    ]


async def test_names_by_any_part_and_references_by_their_beginning(app: Duetime) -> None:
    async with app.testing(now=NOW):
        await app.schedules.put("shop.Nightly", "shop.send_invoice", "0 3 * * *")
        await app.queues.pause("mail.slow", by="ann")
        await app.scopes.put("guild:1")
        for ref in ("game:1", "game:12", "other game:1"):
            await app.subjects.put(ref, due=NOW)
        await app.recipients.put("ann", tz="Europe/Berlin")

        assert await names(app, "nightly") == [("schedule", "shop.Nightly")]
        assert await names(app, "INVOICE") == [("task", "shop.send_invoice")]
        assert await names(app, "order") == [("flow", "shop.order")]
        assert await names(app, "mail.s") == [("queue", "mail.slow")]
        assert await names(app, "game:") == [("subject", "game:1"), ("subject", "game:12")]
        assert await names(app, "an") == [("recipient", "ann")]
        assert await names(app, "guild") == [("scope", "guild:1")]
        assert await names(app, "nothing of it") == []
        [nightly] = await app.stats.search("shop.nightly")

    assert (nightly.detail, nightly.exact) == ("cron 0 3 * * * (UTC)", False)


async def test_an_exact_match_comes_first(app: Duetime) -> None:
    for ref in ("a", "ab", "abc"):
        await app.subjects.put(ref, due=NOW)
    await app.recipients.put("abc")
    await app.schedules.put("xabc", "shop.send_invoice", "0 3 * * *")

    found = await app.stats.search("abc", limit=3)

    assert [(one.kind, one.name, one.exact) for one in found] == [
        ("subject", "abc", True),
        ("recipient", "abc", True),
        ("schedule", "xabc", False),
    ]


async def test_a_wildcard_is_a_character(app: Duetime) -> None:
    await app.subjects.put("100%", due=NOW)
    await app.subjects.put("100x", due=NOW)

    assert await names(app, "100%") == [("subject", "100%")]
    assert await names(app, "_00") == []
    assert await names(app, "9" * 30) == []


async def test_a_text_is_needed(app: Duetime) -> None:
    assert await app.stats.search("  ") == []
    with pytest.raises(InvalidInput):
        await app.stats.search("")
    with pytest.raises(InvalidInput):
        await app.stats.search("a\x00b")
    with pytest.raises(InvalidInput, match="limit"):
        await app.stats.search("a", limit=0)
