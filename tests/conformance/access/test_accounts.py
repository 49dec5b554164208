"""Accounts on every backend: who they are, that passwords are safe, and that an admin remains."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from argon2 import PasswordHasher

from duetime import Account, Duetime, Role, TokenScope
from duetime.api.passwords import Passwords
from duetime.errors import AccountNotFound, InvalidInput, LastAdmin, NameTaken
from duetime.storage.access.accounts import AccountStatements
from tests.conformance.access.conftest import PASSWORD, add
from tests.conformance.test_nouns import NAMES, pages
from tests.conftest import Backend, query


async def test_an_account_is_added_and_its_password_is_checked(
    app: Duetime, backend: Backend
) -> None:
    added = await app.accounts.add("Ann", role="operator", password=PASSWORD, by="root")
    right = await app.accounts.check_password("ann", PASSWORD)
    wrong = await app.accounts.check_password("ann", PASSWORD + "!")
    unknown = await app.accounts.check_password("bob", PASSWORD)

    assert (added.name, added.role, added.created_by) == ("ann", Role.OPERATOR, "root")
    assert right == added == await app.accounts["ANN"].get()
    assert (wrong, unknown) == (None, None)
    [row] = query(backend, "select * from duetime.account")
    assert PASSWORD not in repr(row)
    assert any("$argon2id$" in str(value) for value in row)


async def test_a_role_allows_what_its_scope_does() -> None:
    assert [role.scope for role in Role] == list(TokenScope)


@pytest.mark.parametrize(
    ("stored", "typed"),
    [("Z\u00fcrich-2030-pass", "Zu\u0308rich-2030-pass"), ("correct horse ①", "correct horse 1")],
)
async def test_a_password_is_the_same_however_it_is_typed(
    app: Duetime, stored: str, typed: str
) -> None:
    await app.accounts.add("ann", role="viewer", password=stored)

    assert await app.accounts.check_password("ann", typed) is not None


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("short", "at least 12 characters"),
        ("x" * 1001, "at most 1,000 characters"),
        ("Annannannann", "too easy to guess"),
        ("a" * 12, "too easy to guess"),
        ("abc\x00defghijkl", "NUL"),
        ("\ud800bcdefghijklm", "surrogate"),
        (None, "must be a string"),
    ],
)
async def test_a_weak_password_is_refused_and_not_repeated(
    app: Duetime, password: Any, why: str
) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        await app.accounts.add("annannannann", role="viewer", password=password)

    assert password is None or password not in str(caught.value)
    assert await app.accounts.list() == []


@pytest.mark.parametrize("password", ["", "x" * 100_000, "\ud800", "\x00"])
async def test_any_text_may_be_tried_as_a_password(app: Duetime, password: str) -> None:
    await add(app, "ann")

    assert await app.accounts.check_password("ann", password) is None
    assert await app.accounts.check_password(password, PASSWORD) is None


@pytest.mark.parametrize("name", ["token:ci", "a b", "a\tb", "", "a" * 101, "\u202eann"])
async def test_a_name_that_could_mislead_is_refused(app: Duetime, name: str) -> None:
    with pytest.raises(InvalidInput):
        await app.accounts.add(name, role="viewer", password=PASSWORD)


async def test_of_two_at_once_with_the_same_name_one_is_added(app: Duetime) -> None:
    async def add_one(name: str) -> Account | NameTaken:
        try:
            return await app.accounts.add(name, role="viewer", password=PASSWORD)
        except NameTaken as error:
            return error

    results = await asyncio.gather(*(add_one(name) for name in ("ann", "Ann", "ａｎｎ")))

    assert sum(isinstance(one, Account) for one in results) == 1
    assert len(await app.accounts.list()) == 1


async def test_a_new_password_replaces_the_old_one(app: Duetime) -> None:
    await add(app, "ann")
    await app.accounts["ann"].set_password("another long one", by="bob")

    assert await app.accounts.check_password("ann", PASSWORD) is None
    assert await app.accounts.check_password("ann", "another long one") is not None
    with pytest.raises(AccountNotFound):
        await app.accounts.set_password("eve", PASSWORD)


async def test_a_disabled_account_cannot_log_in_until_it_is_enabled(app: Duetime) -> None:
    await add(app, "ann")
    disabled = [await app.accounts.disable("ann", by="bob"), await app.accounts.disable("ann")]
    none = await app.accounts.check_password("ann", PASSWORD)
    shown = await app.accounts.get("ann")
    enabled = [await app.accounts.enable("ann"), await app.accounts["ann"].enable()]

    assert (disabled, enabled) == ([True, False], [True, False])
    assert (none, shown.disabled_by) == (None, "bob")
    assert await app.accounts.check_password("ann", PASSWORD) is not None


@pytest.mark.parametrize("verb", ["disable", "delete", "set_role"])
async def test_the_last_admin_stays_unless_forced(app: Duetime, verb: str) -> None:
    await add(app, "ann", "admin")
    await add(app, "off", "admin")
    await app.accounts.disable("off")
    await add(app, "bob", "operator")
    more = ("viewer",) if verb == "set_role" else ()
    change = getattr(app.accounts["ann"], verb)

    with pytest.raises(LastAdmin, match="only admin who can log in"):
        await change(*more)
    assert (await app.accounts.get("ann")).role is Role.ADMIN
    await app.accounts.set_role("bob", "admin")
    await change(*more)
    with pytest.raises(LastAdmin):
        await app.accounts.delete("bob")
    await app.accounts.delete("bob", force=True)


async def test_two_admins_cannot_remove_each_other_at_once(app: Duetime, backend: Backend) -> None:
    other = Duetime(backend.url)
    for round_ in range(5):
        names = (f"ann{round_}", f"bob{round_}")
        for name in names:
            await add(app, name, "admin")
        results = await asyncio.gather(
            app.accounts.delete(names[0]),
            other.accounts.disable(names[1]),
            return_exceptions=True,
        )
        left = [one for one in await app.accounts.list() if one.disabled_at is None]

        assert sum(isinstance(one, LastAdmin) for one in results) == 1
        assert len(left) == 1
        await app.accounts.delete(left[0].name, force=True)
    await other.close()


async def test_the_role_is_changed(app: Duetime) -> None:
    await add(app, "ann", "viewer")

    assert await app.accounts["ann"].set_role("operator", by="bob") is True
    assert await app.accounts["ann"].set_role("operator", by="bob") is False
    assert (await app.accounts.get("ann")).role is Role.OPERATOR
    with pytest.raises(InvalidInput, match="must be one of viewer, operator, admin"):
        await app.accounts.set_role("ann", "root")  # type: ignore[arg-type]


async def test_accounts_come_in_pages_by_name(app: Duetime) -> None:
    for name in reversed(NAMES):
        await add(app, name)

    assert [one.name for one in await pages(app.accounts.list)] == NAMES
    assert [one.name async for one in app.accounts.iterate(limit=2)] == NAMES


async def test_a_hash_with_other_parameters_is_replaced_at_the_next_login(
    app: Duetime, backend: Backend
) -> None:
    await add(app, "ann")
    session = await app.sessions.log_in("ann", PASSWORD)
    app.accounts._passwords = Passwords(PasswordHasher(time_cost=2, memory_cost=8, parallelism=1))
    wrong = await app.accounts.check_password("ann", "wrong password")
    [(kept,)] = query(backend, "select hash from duetime.account")
    right = await app.accounts.check_password("ann", PASSWORD)
    [(renewed,)] = query(backend, "select hash from duetime.account")

    assert (wrong, "t=1" in kept) == (None, True)
    assert right is not None
    assert "t=2" in renewed
    assert await app.accounts.check_password("ann", PASSWORD) is not None
    assert await app.sessions.check(session.text) is not None


async def test_a_rehash_does_not_undo_a_new_password(app: Duetime) -> None:
    await add(app, "ann")
    old = await app._perform(lambda dialect: AccountStatements(dialect).password("ann"))
    await app.accounts.set_password("ann", "another long one")
    await app._perform(
        lambda dialect: AccountStatements(dialect).rehash("ann", old=old.hashed, new="stale")
    )

    assert await app.accounts.check_password("ann", "another long one") is not None


async def test_an_unknown_name_costs_the_same_work(app: Duetime) -> None:
    verified: list[str] = []

    class Counted(PasswordHasher):
        def verify(self, hash: Any, password: Any) -> Any:  # noqa: A002
            verified.append(hash)
            return super().verify(hash, password)

    app.accounts._passwords = Passwords(Counted(time_cost=1, memory_cost=8, parallelism=1))
    await add(app, "ann")
    await add(app, "off")
    await app.accounts.disable("off")
    for name in ("ann", "off", "nobody", "not\na name"):
        await app.accounts.check_password(name, "wrong password")

    assert len(verified) == 4
    assert {text.rpartition("$")[0].rpartition("$")[0] for text in verified} == {
        "$argon2id$v=19$m=8,t=1,p=1"
    }


async def test_neither_password_nor_hash_is_in_a_log_line_a_repr_or_the_audit(
    app: Duetime, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        added = await add(app, "ann", "admin")
        await app.sessions.log_in("ann", PASSWORD, address="10.0.0.1")
        [(hashed, stamp)] = query(backend, "select hash, stamp from duetime.account")
        stored = await app._perform(lambda dialect: AccountStatements(dialect).password("ann"))
        await app.accounts.set_role("ann", "viewer", force=True, by="bob")
        await app.accounts.set_password("ann", "another long one", by="bob")
        await app.accounts.disable("ann", by="bob")
        await app.accounts.enable("ann", by="bob")
        await app.accounts.delete("ann", by="cem")
    events = await app.accounts.audit("ann")

    assert [event.action.removeprefix("account.") for event in reversed(events)] == [
        "add", "log_in", "set_role", "set_password", "disable", "enable", "delete",
    ]  # fmt: skip
    assert events[0].actor == "cem"
    assert (events[4].before["role"], events[4].after["role"]) == ("admin", "viewer")
    shown = caplog.text + repr((added, stored)) + msgspec.json.encode(events).decode()
    for secret in (PASSWORD, "another long one", hashed, stamp):
        assert secret not in shown
    assert not {"hash", "stamp"} & set(Account.__struct_fields__)
