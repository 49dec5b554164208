"""Tokens, accounts, tables, statistics and the audit over HTTP, on every backend."""

from __future__ import annotations

from typing import Any

import httpx

from duetime import Duetime
from duetime.web.service import make_service
from tests.conftest import Backend, query
from tests.web.api.conftest import Api


async def test_a_token_is_created_used_and_revoked(app: Duetime, api: Api) -> None:
    body = {"name": "ci", "scope": "operate", "expires_in": "90d"}
    created = await api("POST", "/tokens", body, status=201)
    await api("POST", "/tokens", body, status=409)
    program = httpx.AsyncClient(
        transport=httpx.ASGITransport(make_service(app)),
        base_url="http://localhost/api/v1",
        headers={"authorization": f"Bearer {created['text']}"},
    )

    assert (await program.get("/visitor")).json() == {"name": "token:ci", "scope": "operate"}
    assert (await program.get("/tokens")).status_code == 403
    assert [one["name"] for one in (await api("GET", "/tokens"))["items"]] == ["ci"]
    assert "text" not in await api("GET", "/tokens/ci")
    assert await api("POST", "/tokens/ci/revoke") == {"revoked": True}
    assert await api("POST", "/tokens/ci/revoke") == {"revoked": False}
    assert (await api("GET", "/tokens"))["items"] == []
    assert (await program.get("/visitor")).status_code == 401
    events = (await api("GET", "/tokens/ci/audit"))["items"]
    assert [event["actor"] for event in events] == ["ann", "ann"]
    assert created["text"] not in str(events)


async def test_accounts_are_kept_by_admins(app: Duetime, api: Api) -> None:
    body = {"name": "Bob", "role": "viewer", "password": "correct horse battery"}
    added = await api("POST", "/accounts", body, status=201)
    assert (added["name"], added["role"]) == ("bob", "viewer")
    assert "correct" not in str(added)

    await api("POST", "/accounts", body, status=409)
    await api("POST", "/accounts", body | {"password": "short"}, status=422)
    assert await api("POST", "/accounts/bob/set_role", {"role": "operator"}) == {"changed": True}
    await api("POST", "/accounts/bob/set_password", {"password": "another long password"})
    assert await app.accounts.check_password("bob", "another long password")
    assert await api("POST", "/accounts/bob/disable") == {"changed": True}
    assert await api("POST", "/accounts/bob/enable") == {"changed": True}
    assert len((await api("GET", "/accounts"))["items"]) == 1
    assert (await api("GET", "/accounts/bob/audit"))["items"]
    await api("DELETE", "/accounts/bob")
    await api("GET", "/accounts/bob", status=404)


async def test_the_rows_of_a_table_become_subjects(api: Api, backend: Backend) -> None:
    kind = "timestamptz" if backend.is_postgres else "text"
    query(backend, f"create table games (id integer primary key, starts_at {kind})")
    query(backend, "insert into games values (1, '2030-05-01T18:00:00Z')")
    body = {"table": "games", "id": ["id"], "due": "starts_at", "remind": ["-1h"]}

    assert (await api("POST", "/tables/games/plan", body))["statements"]
    assert await api("PUT", "/tables/games", body) == {"result": "added", "rows": 1}
    assert (await api("GET", "/tables/games"))["subjects"] == 1
    assert (await api("GET", "/subjects/games:1"))["due_at"] == "2030-05-01T18:00:00Z"
    assert len((await api("GET", "/tables"))["items"]) == 1
    wrong = body | {"when": "no_such_column = 1"}
    assert (await api("PUT", "/tables/games", wrong, status=422))["code"] == "invalid_input"
    await api("PUT", "/tables/games", body | {"table": "nothing"}, status=422)
    assert await api("DELETE", "/tables/games") == {"subjects": 1}
    await api("GET", "/tables/games", status=404)


async def test_the_audit_has_what_was_done_over_http(app: Duetime, api: Api) -> None:
    await api("POST", "/queues/mail/pause")
    await app.queues.pause("slow", by="bob")

    async def entities(**query: Any) -> list[str]:
        return [event["entity"] for event in (await api("GET", "/audit", **query))["items"]]

    assert await entities() == ["queue:slow", "queue:mail"]
    assert await entities(by="ann") == ["queue:mail"]
    assert await entities(entity="queue:slow") == ["queue:slow"]
    assert await entities(kind="job") == []
    await api("GET", "/audit", kind="weather", status=422)
    await api("GET", "/audit", entity="nonsense", status=422)


async def test_numbers(app: Duetime, api: Api) -> None:
    assert (await api("GET", "/stats/now", late_after="5m"))["late_after"] == "PT300S"
    assert (await api("GET", "/stats/totals"))["jobs"] == {"value": 0, "precision": "exact"}
    await api("GET", "/stats/now", late_after="soon", status=422)
    assert await api("GET", "/stats/problems") == []
    assert (await api("GET", "/stats/series", window="1h"))["points"]
    assert await api("GET", "/stats/samples") == []
    assert (await api("GET", "/stats/timeline"))["rows"] == []
    await api("GET", "/stats/heat_map", schedule="nobody's", status=404)
    assert (await api("GET", "/stats/agenda"))["items"] == []
    assert (await api("GET", "/stats/recipient_week", recipient="bob"))["tz"] == "UTC"
    tried = await api("GET", "/stats/preview", specs="0 9 * * *", other_tz="Asia/Tokyo")
    assert len(tried["ticks"]) == 20
    async with app.worker(name="w1"):
        assert [one["name"] for one in (await api("GET", "/workers"))["items"]] == ["w1"]
