"""`duetime subjects` with what repeats, and with iCalendar files."""

from __future__ import annotations

from pathlib import Path

import pytest

from duetime import Duetime
from tests.acceptance.test_cli_reminders import duetime, on_both, on_sqlite
from tests.conftest import Backend

RENT = ("subjects", "put", "rent", "--repeats", "FREQ=MONTHLY;BYMONTHDAY=1")
BOUNDS = ("--start", "2999-01-01T09:00Z", "--until", "2999-12-01T09:00Z", "--remind", "-1d")
FILES = Path(__file__).parents[1] / "recorded" / "ical"


@pytest.fixture
async def app(backend: Backend) -> Duetime:
    app = Duetime(backend.url, migrate=True)
    await app.store()
    await app.close()
    return app


@on_both
async def test_a_subject_that_repeats_is_put_and_shown(backend: Backend, app: Duetime) -> None:
    put = duetime(backend.url, *RENT, *BOUNDS, "--exclude", "2999-03-01")
    same = duetime(backend.url, *RENT, *BOUNDS, "--exclude", "2999-03-01", "--json")
    skipped = duetime(backend.url, "subjects", "skip", "rent", "2999-02-01T09:00Z", "--by", "ann")
    moved = duetime(
        backend.url, "subjects", "move", "rent", "2999-04-01T09:00Z", "--to", "2999-04-03T11:00Z"
    )
    done = duetime(backend.url, "subjects", "complete", "rent", "--occurrence", "2999-01-01T09:00Z")
    shown = duetime(backend.url, "subjects", "get", "rent")
    plain = duetime(backend.url, "subjects", "get", "rent", "--json").json
    duetime(backend.url, "subjects", "restore", "rent", "2999-01-01T09:00Z")
    restored = duetime(backend.url, "subjects", "get", "rent", "--json").json

    assert put.out.splitlines()[:1] == ["Subject rent is added."]
    assert "  repeats  rrule FREQ=MONTHLY;BYMONTHDAY=1 (UTC), except 2999-03-01" in put.out
    assert "  armed    2 reminders" in put.out
    assert same.json["result"] == "same"
    assert skipped.out == "The occurrence of rent at 2999-02-01T09:00:00Z is skipped.\n"
    assert moved.out.endswith("is moved to 2999-04-03T11:00:00Z.\n")
    assert done.out == "Subject rent of 2999-01-01T09:00:00Z is done: 1 reminder cancelled.\n"
    lines = shown.out[shown.out.index("Due next:") :].splitlines()
    assert lines[2].split()[0] == "2999-04-03T11:00:00Z"
    assert lines[2].endswith("moved from 2999-04-01T09:00:00Z")
    assert lines[3].split()[0] == "2999-05-01T09:00:00Z"
    assert plain["repeats"]["exceptions"] == {
        "2999-01-01T09:00:00Z": "done",
        "2999-02-01T09:00:00Z": "skip",
        "2999-04-01T09:00:00Z": "2999-04-03T11:00:00Z",
    }
    assert restored["occurrences"][0]["due_at"] == "2999-01-01T09:00:00Z"


@on_sqlite
async def test_what_is_wrong_is_told(backend: Backend, app: Duetime) -> None:
    def answer(*arguments: str) -> tuple[int, str]:
        given = duetime(backend.url, "subjects", *arguments)
        return given.code, given.err

    duetime(backend.url, *RENT, *BOUNDS)

    assert answer("put", "x")[0] == 2
    assert (
        "either --due or --repeats" in answer("put", "x", "--due", "1h", "--repeats", "@daily")[1]
    )
    assert (
        "--start requires --repeats"
        in answer("put", "x", "--due", "1h", "--start", "2999-01-01T09:00Z")[1]
    )
    assert "is only part of a spec" in answer("put", "x", "--repeats", "0")[1]
    assert "There is no occurrence" in answer("skip", "rent", "2999-01-02T09:00Z")[1]
    assert "cannot be read: No such file" in answer("import", "gone.ics")[1]
    assert "not an iCalendar file" in answer("import", __file__)[1]
    assert answer("export", "gone") == (
        1,
        "Error: There is no subject 'gone'. It may have been deleted.\n",
    )


@on_both
async def test_calendars_are_imported_and_exported(
    backend: Backend, app: Duetime, tmp_path: Path
) -> None:
    google, outlook = str(FILES / "google.ics"), str(FILES / "outlook.ics")
    tried = duetime(backend.url, "subjects", "import", google, "--dry-run")
    nothing = duetime(backend.url, "subjects", "export")
    done = duetime(backend.url, "subjects", "import", google, "--recipient", "ann")
    again = duetime(backend.url, "subjects", "import", google, "--json")
    partly = duetime(backend.url, "subjects", "import", outlook)
    file = duetime(backend.url, "subjects", "export", "standup@google.com")
    (tmp_path / "out.ics").write_text(file.out, newline="")
    back = duetime(backend.url, "subjects", "import", str(tmp_path / "out.ics"))
    piped = duetime(backend.url, "subjects", "import", "-", given=file.out)

    assert tried.out == "4 events would be: 3 added, 0 changed, 1 same.\n"
    assert "VEVENT" not in nothing.out
    assert done.out == "4 events imported: 3 added, 0 changed, 1 same.\n"
    assert set(again.json["results"].values()) == {"same"}
    assert partly.out == "1 event imported: 1 added, 0 changed, 0 same.\n"
    assert "Not imported: customized-zone: its time zone" in partly.err
    assert file.out.count("BEGIN:VEVENT") == 2
    assert back.out == piped.out == "1 event imported: 0 added, 0 changed, 1 same.\n"
