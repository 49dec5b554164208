"""API tokens on every backend: who holds one, for how long, and that nothing leaks it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from duetime import ApiToken, CreatedToken, Duetime, TokenScope
from duetime.errors import InvalidInput, NameTaken, TokenNotFound
from duetime.storage.access.tokens import TokenStatements
from tests.conformance.test_nouns import NAMES, pages
from tests.conftest import Backend, query
from tests.counting import Counted

START = "2030-03-02T00:00Z"


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


async def test_the_text_of_a_token_leads_to_it_and_only_its_hash_is_stored(
    app: Duetime, backend: Backend
) -> None:
    created = await app.tokens.create("ci", scope="operate", by="ann")
    found = await app.tokens.check(created.text)

    assert found == created.token
    assert (found.name, found.scope, found.created_by) == ("ci", TokenScope.OPERATE, "ann")
    assert re.fullmatch(r"dt_[A-Za-z0-9_-]{43}", created.text)
    [row] = query(backend, "select * from duetime.api_token")
    assert created.text not in repr(row)
    assert hashlib.sha256(created.text.encode()).hexdigest() in row


async def test_no_two_tokens_have_the_same_text(app: Duetime) -> None:
    texts = {(await app.tokens.create(name, scope="read")).text for name in NAMES}

    assert len(texts) == len(NAMES)


@pytest.mark.parametrize(
    "text", ["", "dt_", "dt_" + "A" * 43, "A" * 46, "dt_" + "é" * 43, "dt_\x00" + "A" * 42, "ci"]
)
async def test_another_text_leads_to_no_token(app: Duetime, text: str) -> None:
    await app.tokens.create("ci", scope="admin")

    assert await app.tokens.check(text) is None


@pytest.mark.parametrize("text", [None, 7, b"dt_" + b"A" * 43])
async def test_what_is_not_text_leads_to_no_token(app: Duetime, text: Any) -> None:
    assert await app.tokens.check(text) is None


async def test_the_hash_itself_opens_nothing(app: Duetime) -> None:
    created = await app.tokens.create("ci", scope="admin")

    assert await app.tokens.check(hashlib.sha256(created.text.encode()).hexdigest()) is None


async def test_a_token_is_valid_until_it_expires_by_the_clock_of_the_database(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        created = await app.tokens.create("ci", scope="read", expires_in="1h")
        await world.advance("59m59s")
        before = await app.tokens.check(created.text)
        await world.advance("1s")
        after = await app.tokens.check(created.text)

    assert before is not None
    assert str(before.expires_at) == "2030-03-02 01:00:00+00:00"
    assert after is None


async def test_a_revoked_token_opens_nothing_from_the_next_check_on(app: Duetime) -> None:
    created = await app.tokens.create("ci", scope="read", by="ann")
    before = await app.tokens.check(created.text)
    results = [await app.tokens.revoke("ci", by="bob"), await app.tokens["ci"].revoke(by="cem")]

    assert before is not None
    assert await app.tokens.check(created.text) is None
    assert results == [True, False]
    gone = await app.tokens.get("ci")
    assert gone.revoked_by == "bob"
    assert await app.tokens.list() == []
    assert await app.tokens.list(revoked=True) == [gone]


async def test_a_name_is_held_by_one_token_until_it_is_revoked_or_expired(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        first = await app.tokens.create("ci", scope="read", expires_in="1h")
        with pytest.raises(NameTaken, match="already an API token named 'ci'"):
            await app.tokens.create("ci", scope="admin")
        await world.advance("1h")
        second = await app.tokens.create("ci", scope="operate", by="bob")
        await app.tokens.revoke("ci")
        third = await app.tokens.create("ci", scope="read")

        valid = [await app.tokens.check(one.text) for one in (first, second, third)]
        found = await app.tokens.get("ci")
        every = await app.tokens.list(revoked=True)

    assert [one and one.id for one in valid] == [None, None, third.token.id]
    assert found.id == third.token.id
    assert [one.id for one in every] == [first.token.id, second.token.id, third.token.id]


async def test_of_two_at_once_with_the_same_name_one_is_created(
    app: Duetime, backend: Backend
) -> None:
    others = [Duetime(backend.url) for _ in range(3)]

    async def create(one: Duetime) -> CreatedToken | NameTaken:
        try:
            return await one.tokens.create("ci", scope="read")
        except NameTaken as error:
            return error

    results = await asyncio.gather(*(create(one) for one in (app, *others) for _ in range(3)))
    for other in others:
        await other.close()

    made = [one for one in results if isinstance(one, CreatedToken)]
    assert len(made) == 1
    assert await app.tokens.check(made[0].text) is not None
    assert len(await app.tokens.audit("ci")) == 1


async def test_the_last_use_is_recorded_at_most_once_a_minute(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        created = await app.tokens.create("ci", scope="read")
        never = created.token.last_used_at
        uses = []
        for step in ("1s", "58s", "2s"):
            await world.advance(step)
            await app.tokens.check(created.text)
            uses.append((await app.tokens.get("ci")).last_used_at)

    assert never is None
    assert [use and use.strftime("%M:%S") for use in uses] == ["00:01", "00:01", "01:01"]


async def test_what_was_checked_and_is_revoked_meanwhile_is_not_valid_again(app: Duetime) -> None:
    created = await app.tokens.create("ci", scope="read")
    await app.tokens.revoke("ci", by="ann")
    # The check that was under way records its use late.
    await app._perform(lambda dialect: TokenStatements(dialect).touch(created.token.id))

    assert (await app.tokens.get("ci")).revoked_by == "ann"
    assert await app.tokens.check(created.text) is None


async def test_requests_at_once_share_a_check_and_none_gets_another_ones_token(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [(await app.tokens.create(name, scope="read")).text for name in NAMES]
    for text in texts:
        await app.tokens.check(text)
    counted = Counted(await app.store(), monkeypatch, "token_check")
    found = await asyncio.gather(*(app.tokens.check(texts[n % 5]) for n in range(500)))

    assert [one and one.name for one in found] == [NAMES[n % 5] for n in range(500)]
    assert counted.ran() <= 10


async def test_a_check_that_is_under_way_does_not_hide_that_a_token_was_revoked(
    app: Duetime, backend: Backend
) -> None:
    other = Duetime(backend.url)
    created = await app.tokens.create("ci", scope="read")
    stop = False

    async def hammer() -> None:
        while not stop:
            await app.tokens.check(created.text)

    hammers = [asyncio.create_task(hammer()) for _ in range(8)]
    before = await app.tokens.check(created.text)
    await other.tokens.revoke("ci")
    after = [await app.tokens.check(created.text) for _ in range(5)]
    stop = True
    await asyncio.gather(*hammers)
    await other.close()

    assert before is not None
    assert after == [None] * 5


async def test_tokens_come_in_pages_by_name(app: Duetime) -> None:
    for name in reversed(NAMES):
        await app.tokens.create(name, scope="read")

    assert [one.name for one in await pages(app.tokens.list)] == NAMES
    assert [one.name async for one in app.tokens.iterate(limit=2)] == NAMES
    assert (await app.tokens["c"].get()).name == "c"


async def test_a_token_is_created_in_a_transaction_of_the_caller(app: Duetime) -> None:
    store = await app.store()
    created: list[CreatedToken] = []

    async def create_and_undo() -> None:
        async with store.transaction() as tx:
            created.append(await app.tokens.create("ci", scope="read", tx=tx))
            raise RuntimeError("undo")

    with pytest.raises(RuntimeError, match="undo"):
        await create_and_undo()

    assert await app.tokens.check(created[0].text) is None
    with pytest.raises(TokenNotFound):
        await app.tokens.get("ci")


async def test_what_is_wrong_is_refused(app: Duetime) -> None:
    create: Any = app.tokens.create
    with pytest.raises(InvalidInput, match="must be one of read, operate, admin, got 'root'"):
        await create("ci", scope="root")
    with pytest.raises(InvalidInput, match="visible character"):
        await create("  ", scope="read")
    with pytest.raises(InvalidInput, match="printable"):
        await create("c\ti", scope="read")
    with pytest.raises(InvalidInput, match="greater than zero"):
        await create("ci", scope="read", expires_in=0)
    with pytest.raises(TokenNotFound, match="There is no API token named 'ci'"):
        await app.tokens.revoke("ci")
    assert await app.tokens.list() == []


async def test_who_did_what_is_in_the_audit_without_the_hash(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        created = await app.tokens.create("ci", scope="read", expires_in="1h", by="ann")
        await world.advance("2h")
        again = await app.tokens.create("ci", scope="admin", by="bob")
        await app.tokens.revoke("ci", by="cem")
        await app.tokens.revoke("ci", by="dee")
        events = await app.tokens.audit("ci")
        text = msgspec.json.encode(events).decode()

    assert [(event.actor, event.action) for event in events] == [
        ("cem", "token.revoke"), ("bob", "token.create"), ("bob", "token.revoke"),
        ("ann", "token.create"),
    ]  # fmt: skip
    assert (events[-1].after["scope"], events[1].after["scope"]) == ("read", "admin")
    for one in (created, again):
        assert one.text not in text
        assert hashlib.sha256(one.text.encode()).hexdigest() not in text


async def test_neither_text_nor_hash_is_in_a_log_line_or_a_repr(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        created = await app.tokens.create("ci", scope="read")
        await app.tokens.check(created.text)
        with pytest.raises(NameTaken) as taken:
            await app.tokens.create("ci", scope="read")
        listed = await app.tokens.list()
        await app.tokens.revoke("ci")

    shown = caplog.text + repr((created, str(created), listed, taken.value)) + repr(app)
    hashed = hashlib.sha256(created.text.encode()).hexdigest()
    assert created.text not in shown
    assert hashed not in shown
    assert "hash" not in ApiToken.__struct_fields__


async def test_old_tokens_are_pruned(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        kept = await app.tokens.create("kept", scope="read")
        await app.tokens.create("expired", scope="read", expires_in="1h")
        await app.tokens.create("revoked", scope="read")
        await app.tokens.revoke("revoked")
        await world.advance("300d")
        early = await _prune(app)
        await world.advance("66d")
        late = await _prune(app)
        left = await app.tokens.list(revoked=True)

    assert (early, late) == (0, 2)
    assert [one.id for one in left] == [kept.token.id]


async def _prune(app: Duetime) -> int:
    age = app.settings.retention["audit"]
    gone: int = await app._perform(lambda dialect: TokenStatements(dialect).prune(age))
    return gone
