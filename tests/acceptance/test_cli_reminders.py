"""`duetime reminders`, `subjects` and `scopes`, as people and scripts use them."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from duetime import Duetime, Reminder, Sent
from duetime.cli import main
from tests.acceptance.command import Answer
from tests.conftest import Backend
from tests.waiting import until

on_both = pytest.mark.parametrize("backend", ["postgres18", "sqlite"], indirect=True)
on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
DUE = datetime(2999, 12, 24, 18, tzinfo=UTC)
GAME = ("subjects", "put", "game:42", "--due", "2999-12-24T18:00Z")


def duetime(url: str | None, *arguments: str, given: str = "") -> Answer:
    """`duetime …`, in this process: a new one takes half a second."""
    out, err = io.StringIO(), io.StringIO()
    database = [] if url is None else ["--database", url]

    def run() -> int:
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            patch.object(sys, "argv", ["duetime", *arguments, *database]),
            patch.object(sys, "stdin", io.StringIO(given)),
            pytest.raises(SystemExit) as left,
        ):
            main()
        return int(left.value.code or 0)

    with ThreadPoolExecutor(1) as beside_our_loop:
        code = beside_our_loop.submit(run).result()
    return Answer(code, out.getvalue(), err.getvalue())


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def rows(answer: Answer) -> list[list[str]]:
    return [cells(line) for line in answer.out.splitlines()]


@on_both
async def test_scopes_are_put_and_listed(backend: Backend, app: Duetime) -> None:
    await app.scopes.put("guild:1", remind=["-5h"])
    await app.subjects.put("game:42", due=DUE, scope="guild:1")
    rule = '{"rule": "-2h", "past": "send_now", "expires": "never", "channels": ["mail"]}'

    changed = duetime(
        backend.url, "scopes", "put", "guild:1", "--remind", "-1d", "--remind", "-1h", "--by", "ann"
    )
    added = duetime(backend.url, "scopes", "put", "channel:9", "--parent", "guild:1")
    silent = duetime(backend.url, "scopes", "put", "quiet", "--none", "--locked")
    same = duetime(backend.url, "scopes", "put", "quiet", "--none", "--locked", "--json")
    duetime(backend.url, "scopes", "put", "strict", "--remind", rule, "--locked")
    table = duetime(backend.url, "scopes")
    plain = duetime(backend.url, "scopes", "list", "--json")

    assert changed.out.splitlines() == [
        "Scope guild:1 is changed.",
        "  rules  -1d, -1h",
        "  below  1 open subject, armed again",
    ]
    assert added.out.startswith("Scope channel:9 is added.\n  rules  inherited\n")
    assert "  rules  none, locked\n" in silent.out
    assert (same.json["result"], same.json["subjects"]) == ("same", 0)
    assert rows(table) == [
        ["SCOPE", "PARENT", "RULES", "LOCKED"],
        ["channel:9", "guild:1", "inherited"],
        ["guild:1", "-1d, -1h"],
        ["quiet", "none", "locked"],
        ["strict", "-2h (past send_now; expires never; channels mail)", "locked"],
    ]
    assert [scope["rules"] for scope in plain.json] == [
        None,
        [{"rule": "-1d"}, {"rule": "-1h"}],
        [],
        [{"rule": "-2h", "past": "send_now", "expires": "never", "channels": ["mail"]}],
    ]
    assert (await app.audit.list(entity="scope:guild:1"))[0].actor == "ann"
    assert [r.rule.text for r in await app.reminders.list(status="armed")] == ["-1d", "-1h"]


@on_both
async def test_a_subject_is_put_moved_and_shown(backend: Backend, app: Duetime) -> None:
    await app.scopes.put("guild:1", remind=["-1d"])
    put = (*GAME, "--scope", "guild:1", "--tz", "America/New_York", "--recipient", "ann",
           "--recipient", "bob", "--data", '{"title": "Catan"}', "--by", "cem")  # fmt: skip

    added = duetime(backend.url, *put)
    same = duetime(backend.url, *put, "--json")
    moved = duetime(backend.url, *put, "--due", "2999-12-25T18:00Z")
    shown = duetime(backend.url, "subjects", "get", "game:42")
    plain = duetime(backend.url, "subjects", "get", "game:42", "--json")
    explained = duetime(backend.url, "reminders", "explain", str(plain.json["reminders"][0]["id"]))

    assert added.out.splitlines()[0] == "Subject game:42 is added."
    assert "Tue 2999-12-24 13:00 -05:00 in America/New_York\n" in added.out
    assert "  rules  -1d, from guild:1\n  armed  2 reminders\n" in added.out
    assert same.json == {
        "subject": "game:42", "result": "same", "due_at": "2999-12-24T18:00:00Z",
        "rules": ["-1d"], "rules_from": "guild:1", "armed": 2, "repeats": None, "occurrences": [],
    }  # fmt: skip
    assert moved.out.startswith("Subject game:42 is changed.\n")
    head, _, table = shown.out.partition("\n\nIts reminders:\n")
    assert head.splitlines()[0] == "Subject game:42: open"
    assert '  recipients  ann, bob\n  data        {"title": "Catan"}\n' in head
    heading, *lines = map(cells, table.splitlines())
    assert heading == ["ID", "STATUS", "UTC", "LOCAL", "RULE", "RECIPIENT", "JOB", "REMARKS"]
    assert [(line[1], line[2], line[5]) for line in lines] == [
        ("superseded", "2999-12-23T18:00:00Z", "ann"),
        ("superseded", "2999-12-23T18:00:00Z", "bob"),
        ("armed", "2999-12-24T18:00:00Z", "ann"),
        ("armed", "2999-12-24T18:00:00Z", "bob"),
    ]
    assert lines[0][-1] == "the subject moved to 2999-12-25T18:00:00Z"
    assert (plain.json["rules"], plain.json["own_rules"]) == (["-1d"], None)
    assert plain.json["data"] == {"title": "Catan"}
    assert "was not sent: superseded, the subject moved to 2999-12-25T18:00:00Z." in explained.out
    assert "\n  code  " in explained.out
    assert {event.actor for event in await app.audit.list(entity="subject:game:42")} == {"cem"}


@on_sqlite
async def test_a_subjects_own_rules_hold_unless_a_scope_is_locked(
    backend: Backend, app: Duetime
) -> None:
    put = (*GAME, "--scope", "guild:1", "--remind", "-1d at 09:00", "--remind", "+1h")
    await app.scopes.put("guild:1")

    own = duetime(backend.url, *put)
    none = duetime(backend.url, *GAME, "--scope", "guild:1", "--none")
    unset = duetime(backend.url, *GAME)
    never = duetime(backend.url, *GAME[:3], "--due", "none")
    await app.scopes.put("guild:1", remind=["-2h"], locked=True)
    duetime(backend.url, *put)
    locked = duetime(backend.url, "subjects", "get", "game:42")

    assert "  rules  -1d at 09:00, +1h, its own\n  armed  2 reminders\n" in own.out
    assert "  rules  none, its own\n  armed  0 reminders\n" in none.out
    assert "  rules  none: neither the subject nor its scopes have rules\n" in unset.out
    assert "  due    none: it has no reminders\n" in never.out
    assert "  rules      -2h, from guild:1\n" in locked.out
    assert "  own rules  -1d at 09:00, +1h; not in effect, because an enclosing scope" in locked.out


@on_sqlite
async def test_subjects_are_listed_also_those_that_repeat(backend: Backend, app: Duetime) -> None:
    empty = duetime(backend.url, "subjects")
    due = DUE.replace(microsecond=123456)
    await app.subjects.put("game", due=due, recipients=["\u6f22\u5b57"])
    no_match = duetime(backend.url, "subjects", "list", "--status", "done")
    once = duetime(backend.url, "subjects")
    await app.subjects.put("standup", repeats="0 9 * * 1-5", remind=["-10m"])
    both = duetime(backend.url, "subjects", "list")
    await app.subjects.complete("standup")
    done = duetime(backend.url, "subjects", "get", "standup")

    assert empty.out.startswith("No subjects. Add one:")
    assert no_match.out == "No subjects match.\n"
    assert rows(once)[0][-1] == "RECIPIENTS"
    assert rows(once)[1][2] == "2999-12-24T18:00:00Z"
    heading, game, standup = both.out.splitlines()
    # Wide characters take two columns of a terminal, and one of a text.
    assert heading.index("REPEATS") == standup.index("cron 0 9 * * 1-5 (UTC)")
    assert game.endswith("\u6f22\u5b57")
    assert "  due       no more: it is done\n" in done.out
    assert "Due next" not in done.out


@on_sqlite
async def test_why_nothing_is_armed_is_told(backend: Backend, app: Duetime) -> None:
    await app.store()

    put = duetime(backend.url, *GAME[:3], "--due", "2020-01-01T00:00Z", "--remind", "-1h")

    assert (
        "  armed      0 reminders\n  not armed  its time 2019-12-31T23:00:00Z had passed" in put.out
    )


@on_both
async def test_the_audit_says_who_changed_what(backend: Backend, app: Duetime) -> None:
    await app.scopes.put("guild:1", remind=["-1d", {"rule": "-1h", "urgent": True}], by="ann")
    await app.subjects.put("game:42", due=DUE, scope="guild:1", recipients=["ann"], by="ann")
    await app.subjects.put("game:42", due=DUE, scope="guild:1", recipients=["ann", "bob"], by="cem")

    scope = duetime(backend.url, "audit", "list", "scope:guild:1")
    game = duetime(backend.url, "audit", "list", "subject:game:42")
    last = duetime(backend.url, "audit", "list", "subject:game:42", "--limit", "1", "--json")
    nothing = duetime(backend.url, "audit", "list", "subject:gone")
    unknown = duetime(backend.url, "audit", "list", "game:42")

    assert rows(scope)[1][2:] == [
        "ann",
        "scope.put",
        "scope:guild:1",
        "ref: guild:1; rules: -1d, -1h (urgent True)",
    ]
    assert [row[2:4] for row in rows(game)[1:]] == [["cem", "subject.put"], ["ann", "subject.put"]]
    assert rows(game)[1][5] == "recipients: ann, bob (was ann)"
    assert [event["actor"] for event in last.json] == ["cem"]
    assert nothing.out == "There are no audit events for subject:gone.\n"
    assert unknown.code == 1
    assert unknown.error.startswith("'game:42' cannot be audited. Use one of: job:\u2026, queue:")


@on_both
async def test_what_is_due_is_previewed(backend: Backend, app: Duetime) -> None:
    nothing = duetime(backend.url, "reminders")
    now = await app.now()
    for ref, days in (("near", 3), ("far", 30)):
        await app.subjects.put(ref, due=now + timedelta(days=days), remind="-1d")

    week = duetime(backend.url, "reminders")
    month = duetime(backend.url, "reminders", "preview", "--days", "40", "--json")

    assert nothing.out == "No reminder is due within 7 days.\n"
    heading, near = rows(week)
    assert heading == ["ID", "UTC", "SUBJECT", "RULE", "RECIPIENT", "JOB"]
    assert near[2:4] == ["near", "-1d"]
    assert [(row["subject"], row["rule"], row["status"]) for row in month.json] == [
        ("near", "-1d", "armed"),
        ("far", "-1d", "armed"),
    ]
    assert month.json[0]["key"].startswith("dtr_")


@on_both
async def test_what_became_of_reminders_is_listed(backend: Backend, app: Duetime) -> None:
    @app.on_reminder
    async def tell(reminder: Reminder) -> Sent:
        return Sent(f"message-{reminder.id}")

    await app.subjects.put("sent", due=await app.now(), remind={"rule": "0s", "past": "send_now"})
    await app.subjects.put("late", due=await app.now(), remind="-1h")
    async with app.worker():

        async def is_sent() -> Sequence[Reminder]:
            return await app.reminders.list(subject="sent", status="sent")

        await until(is_sent)
    [reminder] = await is_sent()

    table = duetime(backend.url, "reminders", "list")
    skipped = duetime(backend.url, "reminders", "list", "--status", "skipped", "--json")
    nothing = duetime(backend.url, "reminders", "list", "--subject", "sent", "--status", "failed")
    explained = duetime(backend.url, "reminders", "explain", str(reminder.id), "--json")

    assert {(row[1], row[3], row[-1][:12]) for row in rows(table)[1:]} == {
        ("sent", "sent", "by handler, "),
        ("skipped", "late", "its time 202"),
    }
    assert f"by handler, there message-{reminder.id}\n" in table.out
    assert [row["subject"] for row in skipped.json] == ["late"]
    assert nothing.out == "No reminders match.\n"
    assert "was sent by handler at" in explained.json["sentence"]


@on_both
async def test_a_subject_is_completed_and_deleted(backend: Backend, app: Duetime) -> None:
    await app.subjects.put("game:42", due=DUE, remind=["-1d", "-1h"])

    done = duetime(backend.url, "subjects", "complete", "game:42", "--by", "ann")
    found = await app.reminders.list(subject="game:42")
    refused = duetime(backend.url, "subjects", "delete", "game:42", given="n\n")
    untouched = (await app.subjects.get("game:42")).status
    gone = duetime(backend.url, "subjects", "delete", "game:42", "--yes", "--json")

    assert done.out == "Subject game:42 is done: 2 reminders cancelled.\n"
    assert {reminder.status.value for reminder in found} == {"cancelled"}
    assert "Delete the subject game:42 with 2 reminders?" in refused.err
    assert (refused.code, untouched) == (1, "done")
    assert gone.json == {"subject": "game:42", "deleted": True, "reminders": 2}
    deleted, completed, _ = await app.audit.list(entity="subject:game:42")
    assert (deleted.action, completed.actor) == ("subject.delete", "ann")


# Errors


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("subjects", "put", "a"), "Give either --due or --repeats"),
        (("subjects", "put", "a", "--due", "soon"), "neither a duration such as '30m' nor a time"),
        (("subjects", "put", "a", "--due", "2026-12-24"), "Write '2026-12-24T00:00:00Z'"),
        ((*GAME, "--data", "[7]"), "is not a JSON object"),
        ((*GAME, "--remind", "{-1h}"), "is not JSON"),
        ((*GAME, "--remind", "-1h", "--none"), "either --remind or --none"),
        (("scopes", "put", "a", "--remind", "-1h", "--none"), "either --remind or --none"),
        (("reminders", "preview", "--days", "0"), "0 must be between 1 and 3,650"),
        (("reminders", "list", "--status", "asleep"), "'asleep' is not one of"),
        (("reminders", "explain", "first"), "'first' is not an integer"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_wrong_command_line(
    command: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = duetime(None, *command)

    assert answer.code == 2
    assert message in answer.error
    assert list(tmp_path.iterdir()) == []


@on_sqlite
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("subjects", "get", "a"), "There is no subject 'a'"),
        (("subjects", "complete", "a"), "There is no subject 'a'"),
        (("subjects", "delete", "a", "--yes"), "There is no subject 'a'"),
        ((*GAME, "--scope", "nowhere"), "There is no scope 'nowhere'"),
        ((*GAME, "--tz", "Mars"), "There is no time zone 'Mars'"),
        ((*GAME, "--remind", "1h"), "Write '-1h' for a time before"),
        (("scopes", "put", "a", "--parent", "nowhere"), "There is no scope 'nowhere'"),
        (("reminders", "explain", "99"), "There is no reminder 99"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
async def test_what_the_library_refuses_is_one_line(
    backend: Backend, app: Duetime, command: tuple[str, ...], message: str
) -> None:
    answer = duetime(backend.url, *command)

    assert answer.code == 1
    assert message in answer.error
