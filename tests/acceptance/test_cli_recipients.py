"""`duetime recipients`, as people and scripts use it."""

from __future__ import annotations

import json

import pytest

from duetime import Duetime
from duetime.domain.reminders.recipient import Route
from tests.acceptance.test_cli_reminders import duetime, on_both, on_sqlite, rows
from tests.conftest import Backend

ANN = ("recipients", "put", "ann")


@on_both
async def test_recipients_are_put_shown_listed_and_deleted(backend: Backend, app: Duetime) -> None:
    await app.store()
    none = duetime(backend.url, "recipients")
    added = duetime(
        backend.url, *ANN, "--tz", "Europe/Berlin", "--channel", "push=t=7", "--channel", "email",
        "--quiet", "22:00-7:00", "--max-per-hour", "5", "--mute", "rule:-60m", "--by", "bob",
    )  # fmt: skip
    same = duetime(backend.url, *ANN, "--tz", "Europe/Berlin", "--channel", "push=t=7",
                   "--channel", "email", "--quiet", "22:00-07:00", "--max-per-hour", "5",
                   "--mute", "rule:-1h")  # fmt: skip
    stored = await app.recipients.get("ann")
    listed = duetime(backend.url, "recipients")
    shown = duetime(backend.url, "recipients", "get", "ann")
    page = duetime(backend.url, "recipients", "list", "--limit", "1", "--json")
    kept = duetime(backend.url, "recipients", "delete", "ann", given="n\n")
    gone = duetime(backend.url, "recipients", "delete", "ann", "--yes", "--json")
    [event, *_] = await app.audit.list(entity="recipient:ann")

    assert none.out.startswith("No recipients.")
    assert added.out.splitlines()[0] == "Recipient ann is added."
    assert same.out.splitlines()[0] == "Recipient ann is unchanged."
    assert stored.channels == (Route("push", "t=7"), Route("email", None))
    assert (stored.max_per_hour, stored.muted) == (5, ("rule:-1h",))
    assert rows(listed)[1] == [
        "ann",
        "Europe/Berlin",
        "push, email",
        "22:00-07:00",
        "5",
        "rule:-1h",
    ]
    assert "channel   email: ann" in shown.out
    assert (len(page.json), page.err) == (1, "")
    assert (kept.code, gone.code) == (1, 0)
    assert json.loads(gone.out) == {"recipient": "ann", "deleted": True}
    assert event.action == "recipient.delete"


@on_both
async def test_muting_changes_nothing_else(backend: Backend, app: Duetime) -> None:
    await app.recipients.put("ann", tz="Asia/Tokyo")
    muted = duetime(backend.url, "recipients", "mute", "ann", "scope:guild:1", "all", "--json")
    back = duetime(backend.url, "recipients", "unmute", "ann", "all")
    stored = await app.recipients.get("ann")

    assert json.loads(muted.out)["muted"] == ["scope:guild:1", "all"]
    assert back.code == 0
    assert (stored.tz, stored.muted) == ("Asia/Tokyo", ("scope:guild:1",))


@on_sqlite
@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (("get", "ann"), 1, "There is no stored recipient 'ann'"),
        (("delete", "ann", "--yes"), 1, "There is no stored recipient 'ann'"),
        (("unmute", "ann", "all"), 1, "There is no stored recipient 'ann'"),
        (("mute", "ann"), 2, "WHAT"),
        (("mute", "ann", "mondays"), 1, "cannot be muted"),
        (("put", "ann", "--tz", "Mars"), 1, "Mars"),
        (("put", "ann", "--quiet", "night"), 1, "Write it as '22:00-07:00'"),
        (("put", "ann", "--channel", "=x"), 1, "channel"),
        (("put", "ann", "--max-per-hour", "0"), 2, "0 must be between 1 and 1,000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_what_is_wrong_is_said(
    backend: Backend, app: Duetime, command: tuple[str, ...], code: int, message: str
) -> None:
    await app.store()
    answer = duetime(backend.url, "recipients", *command)

    assert answer.code == code
    assert message in answer.error
    assert await app.recipients.list() == []
