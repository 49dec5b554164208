"""`duetime tokens` and `duetime accounts`, against every backend."""

from __future__ import annotations

import click

from duetime import Duetime
from duetime.cli import cli
from tests.acceptance.command import duetime
from tests.conftest import Backend

PASSWORD = "correct horse battery"


async def test_a_token_is_created_listed_and_revoked(app: Duetime, backend: Backend) -> None:
    create = ("tokens", "create", "ci", "--scope", "operate", "--expires-in", "90d", "--by", "ann")
    created = duetime(backend.url, *create)
    text = created.out.strip()
    checked = await app.tokens.check(text)
    again = duetime(backend.url, *create)
    listed = duetime(backend.url, "tokens")
    refused = duetime(backend.url, "tokens", "revoke", "ci", given="n\n")
    still = await app.tokens.check(text)
    revoked = duetime(backend.url, "tokens", "revoke", "ci", "--yes")
    gone = await app.tokens.check(text)
    twice = duetime(backend.url, "tokens", "revoke", "ci")
    every = duetime(backend.url, "tokens", "list", "--revoked", "--json")
    audit = duetime(backend.url, "tokens", "audit", "ci")
    await app.close()

    assert checked is not None
    assert "cannot be shown again" in created.err
    assert again.code == 1
    assert "already an API token named 'ci'" in again.error
    assert [word in listed.out for word in ("ci", "operate", "valid", "ann", "in 90 d")] == [
        True
    ] * 5
    assert (refused.code, still is not None) == (1, True)
    assert (revoked.out, gone) == ("The token ci is revoked.\n", None)
    assert "was revoked before" in twice.out
    assert [one["name"] for one in every.json] == ["ci"]
    assert "token.create" in audit.out
    for answer in (again, listed, refused, revoked, every, audit):
        assert text not in answer.out + answer.err
    assert duetime(backend.url, "tokens", "list").out.startswith("No API tokens")


async def test_a_token_as_json_has_its_text_once(app: Duetime, backend: Backend) -> None:
    created = duetime(backend.url, "tokens", "create", "ci", "--json").json
    found = await app.tokens.check(created["text"])
    await app.close()

    assert found is not None
    assert created["token"]["scope"] == "read"


async def test_an_unknown_token_is_an_error(app: Duetime, backend: Backend) -> None:
    await app.store()
    await app.close()
    assert "no API token named 'x'" in duetime(backend.url, "tokens", "revoke", "x").error


async def test_an_account_is_added_changed_and_deleted(app: Duetime, backend: Backend) -> None:
    none = duetime(backend.url, "accounts")
    add = ("accounts", "add", "Ann", "--role", "admin", "--by", "bob")
    added = duetime(backend.url, *add, given=f"{PASSWORD}\n")
    weak = duetime(backend.url, "accounts", "add", "eve", given="short\n")
    listed = duetime(backend.url, "accounts")
    last = duetime(backend.url, "accounts", "disable", "ann")
    changed = duetime(backend.url, "accounts", "passwd", "ann", given="another long one\n")
    right = await app.accounts.check_password("ann", "another long one")
    await app.sessions.log_in("ann", "another long one")
    out = duetime(backend.url, "accounts", "logout", "ann")
    role = duetime(backend.url, "accounts", "role", "ann", "viewer", "--force")
    again = duetime(backend.url, "accounts", "role", "ann", "viewer")
    off = duetime(backend.url, "accounts", "disable", "ann", "--json")
    on = duetime(backend.url, "accounts", "enable", "ann")
    kept = duetime(backend.url, "accounts", "delete", "ann", given="n\n")
    gone = duetime(backend.url, "accounts", "delete", "ann", "--yes")
    audit = duetime(backend.url, "accounts", "audit", "ann")
    unknown = duetime(backend.url, "accounts", "passwd", "ann", given="another long one\n")
    await app.close()

    assert none.out.startswith("No accounts")
    assert added.out == "Account ann is added as admin.\n"
    assert "at least 12 characters" in weak.error
    assert [word in listed.out for word in ("ann", "admin", "enabled", "bob", "never")] == [
        True
    ] * 5
    assert "only admin who can log in" in last.error
    assert changed.code == 0
    assert right is not None
    assert out.out == "1 session of ann ended.\n"
    assert role.out == "Account ann is now viewer.\n"
    assert "Nothing changed" in again.out
    assert off.json == {"account": "ann", "changed": True}
    assert on.out == "Account ann is enabled.\n"
    assert (kept.code, gone.out) == (1, "Account ann is deleted.\n")
    assert "account.delete" in audit.out
    assert "no account named 'ann'" in unknown.error
    for answer in (added, weak, listed, changed, audit):
        assert PASSWORD not in answer.out + answer.err
        assert "argon2" not in answer.out + answer.err


def test_no_command_takes_a_password_as_an_argument() -> None:
    root = click.Context(cli)
    group = cli.get_command(root, "accounts")
    assert isinstance(group, click.Group)
    options = {
        parameter.name for command in group.commands.values() for parameter in command.params
    }

    assert not {name for name in options if name and "pass" in name}
