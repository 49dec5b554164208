"""Sessions on every backend: when they begin and end, and how often a login may fail."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from duetime import Duetime, Role, Session
from duetime.errors import LoginFailed, TooManyLogins
from duetime.storage.access.pruning import prune_access
from duetime.storage.access.sessions import SessionStatements
from tests.conformance.access.conftest import PASSWORD, add, quick
from tests.conftest import Backend, query

START = "2030-03-02T00:00Z"
IDLE = "8h"


async def log_in(app: Duetime, name: str = "ann", address: str = "10.0.0.1") -> str:
    return (await app.sessions.log_in(name, PASSWORD, address=address)).text


async def fail(app: Duetime, name: str, address: str | None = None) -> type[Exception]:
    with pytest.raises((LoginFailed, TooManyLogins)) as caught:
        await app.sessions.log_in(name, "wrong password", address=address)
    return caught.type


async def test_a_login_starts_a_session_of_which_only_the_hash_is_stored(
    app: Duetime, backend: Backend
) -> None:
    await add(app, "ann", "operator")
    started = await app.sessions.log_in("ANN", PASSWORD, address="10.0.0.1")
    found = await app.sessions.check(started.text)

    assert found == started.session
    assert (found.account, found.role, found.address) == ("ann", Role.OPERATOR, "10.0.0.1")
    assert len(started.text) == 43
    [row] = query(backend, "select * from duetime.session")
    assert hashlib.sha256(started.text.encode()).hexdigest() in row
    for shown in (repr(row), repr(started), str(started)):
        assert started.text not in shown
    assert "hash" not in Session.__struct_fields__
    assert (await app.accounts.get("ann")).last_login_at is not None


@pytest.mark.parametrize("name", ["ann", "nobody", "off", "", "a\x00b", "\ud800", "x" * 100_000])
async def test_every_failed_login_gets_the_same_answer(app: Duetime, name: str) -> None:
    await add(app, "ann")
    await add(app, "off")
    await app.accounts.disable("off")

    with pytest.raises(LoginFailed, match=r"^The name or the password is wrong.$"):
        await app.sessions.log_in(name, PASSWORD if name == "off" else "wrong password")


@pytest.mark.parametrize("text", ["", "x", "A" * 43, "\x00" * 43, None, 7])
async def test_another_text_leads_to_no_session(app: Duetime, text: Any) -> None:
    await add(app, "ann")
    await log_in(app)

    assert await app.sessions.check(text) is None
    assert await app.sessions.rotate(text) is None
    assert await app.sessions.log_out(text) is False


async def test_every_login_has_a_text_of_its_own_and_may_end_the_one_before(app: Duetime) -> None:
    await add(app, "ann")
    first, second = await log_in(app), await log_in(app)
    third = await app.sessions.log_in("ann", PASSWORD, replaces=first)

    assert len({first, second, third.text}) == 3
    valid = [await app.sessions.check(text) for text in (first, second, third.text)]
    assert [one is not None for one in valid] == [False, True, True]


async def test_a_rotated_session_has_only_its_new_text(app: Duetime) -> None:
    await add(app, "ann")
    old = await log_in(app)
    new = await app.sessions.rotate(old)

    assert new is not None
    assert await app.sessions.check(old) is None
    assert await app.sessions.check(new.text) == new.session
    assert len(await app.sessions.list("ann")) == 1


async def test_of_two_rotations_at_once_one_holds(app: Duetime) -> None:
    await add(app, "ann")
    old = await log_in(app)
    results = await asyncio.gather(*(app.sessions.rotate(old) for _ in range(5)))
    valid = [one for one in results if one is not None]

    assert len(valid) == 1
    assert await app.sessions.check(valid[0].text) is not None


async def test_a_session_ends_when_nobody_uses_it(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        await add(app, "ann")
        text = await log_in(app)
        used = []
        for step in ("7h59m", "7h59m", IDLE):
            await world.advance(step)
            used.append(await app.sessions.check(text))

    assert [one is not None for one in used] == [True, True, False]


async def test_a_session_ends_after_its_lifetime_however_much_it_is_used(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        await add(app, "ann")
        text = await log_in(app)
        for _ in range(27):
            await world.advance("6h")
            assert await app.sessions.check(text) is not None
        await world.advance("6h")

        assert await app.sessions.check(text) is None
        assert await app.sessions.list("ann") == []


async def test_the_use_is_recorded_at_most_once_a_minute(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        await add(app, "ann")
        text = await log_in(app)
        uses = []
        for step in ("59s", "1s", "59s"):
            await world.advance(step)
            await app.sessions.check(text)
            [session] = await app.sessions.list("ann")
            uses.append(session.used_at)

    start = datetime(2030, 3, 2, tzinfo=UTC)
    assert [(use - start).total_seconds() for use in uses] == [0, 60, 60]


@pytest.mark.parametrize("change", ["disable", "delete", "set_role", "set_password"])
async def test_a_change_of_the_account_ends_its_sessions(app: Duetime, change: str) -> None:
    await add(app, "ann")
    await add(app, "bob")
    texts = [await log_in(app), await log_in(app)]
    other = await log_in(app, "bob")
    more = {"set_role": ["operator"], "set_password": ["another long one"]}.get(change, [])
    await getattr(app.accounts["ann"], change)(*more)

    assert [await app.sessions.check(text) for text in texts] == [None, None]
    assert await app.sessions.check(other) is not None
    if change == "disable":
        await app.accounts.enable("ann")
    if change == "delete":
        await add(app, "ann")
    assert [await app.sessions.check(text) for text in texts] == [None, None]


@pytest.mark.parametrize("change", ["disable", "delete", "set_role", "set_password"])
async def test_a_login_under_way_while_the_account_changes_starts_nothing(
    app: Duetime, change: str
) -> None:
    await add(app, "ann")
    checked = await app.accounts._check_password("ann", PASSWORD)
    assert checked is not None
    more = {"set_role": ["operator"], "set_password": ["another long one"]}.get(change, [])
    await getattr(app.accounts["ann"], change)(*more)
    if change == "delete":
        await add(app, "ann")
    started = await app._perform(
        lambda dialect: SessionStatements(dialect, idle=app.settings.session_idle).start(
            hashed="0" * 64,
            account="ann",
            stamp=checked.stamp,
            address=None,
            lifetime=app.settings.session_lifetime,
            buckets=[],
            replaces=None,
        )
    )

    assert started is None
    assert await app.sessions.list("ann") == []


async def test_logins_and_changes_at_once_leave_no_session_of_before(
    app: Duetime, backend: Backend
) -> None:
    other = quick(Duetime(backend.url))
    await add(app, "ann")

    async def try_login() -> str | None:
        try:
            return await log_in(other)
        except (LoginFailed, TooManyLogins):
            return None

    logins = [asyncio.create_task(try_login()) for _ in range(8)]
    await asyncio.gather(app.accounts.set_password("ann", "another long one"), *logins)
    texts = [text for task in logins if (text := task.result()) is not None]
    await other.close()

    assert [await app.sessions.check(text) for text in texts] == [None] * len(texts)


async def test_sessions_are_listed_and_ended(app: Duetime) -> None:
    await add(app, "ann")
    first, second, third = [await log_in(app, address=f"10.0.0.{n}") for n in range(3)]
    listed = await app.sessions.list("Ann")
    out = [await app.sessions.log_out(first), await app.sessions.log_out(first)]
    ended = [await app.sessions.end(listed[1].id, by="bob"), await app.sessions.end(listed[1].id)]
    await log_in(app)
    count = [await app.sessions.end_all("ann", by="bob"), await app.sessions.end_all("ann")]
    events = await app.accounts.audit("ann")

    assert [one.address for one in listed] == ["10.0.0.2", "10.0.0.1", "10.0.0.0"]
    assert (out, ended, count) == ([True, False], [True, False], [2, 0])
    assert [await app.sessions.check(text) for text in (first, second, third)] == [None] * 3
    assert [(event.actor, event.action) for event in events[:3]] == [
        ("bob", "account.end_sessions"), ("ann", "account.log_in"), ("bob", "account.end_session"),
    ]  # fmt: skip


async def test_an_account_has_a_bounded_number_of_sessions(app: Duetime, backend: Backend) -> None:
    await add(app, "ann")
    texts = [await log_in(app) for _ in range(52)]

    assert query(backend, "select count(*) from duetime.session") == [(50,)]
    assert await app.sessions.check(texts[1]) is None
    assert await app.sessions.check(texts[2]) is not None


async def test_too_many_failures_of_an_account_are_refused_for_a_while(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        quick(app)
        await add(app, "ann")
        await add(app, "bob")
        failed = [await fail(app, "Ann", f"10.0.0.{n}") for n in range(10)]
        await world.advance("4m")
        with pytest.raises(TooManyLogins, match=r"Try again in 60 s\.") as caught:
            await log_in(app)
        other = await log_in(app, "bob")
        await world.advance("1m")
        text = await log_in(app)

    assert set(failed) == {LoginFailed}
    assert caught.value.retry_in == 60
    assert text
    assert other


async def test_an_unknown_name_is_limited_like_a_known_one(app: Duetime) -> None:
    assert [await fail(app, "nobody") for _ in range(10)] == [LoginFailed] * 10
    assert await fail(app, "nobody") is TooManyLogins


async def test_too_many_failures_from_an_address_are_refused(app: Duetime) -> None:
    await add(app, "ann")
    network = [f"2001:db8::{n:x}" for n in range(30)]
    failed = [await fail(app, f"name{n}", address) for n, address in enumerate(network)]

    assert set(failed) == {LoginFailed}
    with pytest.raises(TooManyLogins):
        await log_in(app, address="2001:db8::ffff")
    assert await log_in(app, address="2001:db8:0:1::1")


async def test_who_is_refused_for_their_address_locks_no_account(app: Duetime) -> None:
    await add(app, "ann")
    for n in range(30):
        await fail(app, f"name{n}", "10.0.0.1")
    for _ in range(15):
        assert await fail(app, "ann", "10.0.0.1") is TooManyLogins

    assert await log_in(app, address="10.0.0.2")


async def test_logins_that_succeed_do_not_count(app: Duetime) -> None:
    await add(app, "ann")
    for _ in range(9):
        await fail(app, "ann", "10.0.0.1")
    for _ in range(25):
        await log_in(app)

    assert await fail(app, "ann", "10.0.0.1") is LoginFailed
    assert await fail(app, "ann", "10.0.0.1") is TooManyLogins


async def test_failures_are_counted_across_processes_and_before_the_password_is_checked(
    app: Duetime, backend: Backend
) -> None:
    others = [quick(Duetime(backend.url)) for _ in range(2)]
    results = await asyncio.gather(
        *(fail(one, "nobody") for one in (app, *others) for _ in range(10))
    )
    for other in others:
        await other.close()

    assert results.count(LoginFailed) == 10
    assert results.count(TooManyLogins) == 20


async def test_what_is_over_is_pruned(app: Duetime, backend: Backend) -> None:
    async with app.testing(now=START, isolated=False) as world:
        await add(app, "ann")
        await log_in(app)
        await world.advance("7h")
        kept = await log_in(app)
        await fail(app, "ann")
        await world.advance("1h")
        pruned = await app._perform(
            lambda dialect: prune_access(
                dialect, app.settings.retention["audit"], idle=app.settings.session_idle
            )
        )
        valid = await app.sessions.check(kept)
        rows = query(backend, "select count(*) from duetime.session")
        failures = query(backend, "select count(*) from duetime.login_failure")

    assert pruned >= 2
    assert valid is not None
    assert (rows, failures) == ([(1,)], [(0,)])


async def test_secrets_are_the_same_in_all_processes_and_unlike_those_of_others(
    app: Duetime, backend: Backend
) -> None:
    others = [Duetime(backend.url) for _ in range(4)]
    found = await asyncio.gather(*(one._secrets.get("csrf") for one in (app, *others)))
    link = await app._secrets.get("link")
    async with app.testing():
        elsewhere = await app._secrets.get("csrf")
    for other in others:
        await other.close()

    assert len(set(found)) == 1
    assert len(found[0]) == 43
    assert len({found[0], link, elsewhere}) == 3


async def test_no_log_line_shows_a_name_or_a_password_that_was_typed(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for _ in range(11):
            await fail(app, "my secret password", "10.0.0.9")

    events = [getattr(record, "event", None) for record in caplog.records]
    assert (events.count("login_failed"), events.count("logins_limited")) == (10, 1)
    assert "10.0.0.9" in caplog.text
    assert "secret" not in caplog.text
    assert "wrong password" not in caplog.text
