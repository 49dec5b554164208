"""iCalendar files: what other calendars write becomes subjects, and what we write comes back."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import icalendar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetime import Duetime
from duetime.domain.reminders.recurrence import parse_repeats
from duetime.domain.reminders.rule_text import parse_rules
from duetime.errors import InvalidInput, SubjectNotFound
from duetime.integrations.ical import reading, writing
from duetime.integrations.ical.limits import MAX_BYTES, MAX_EVENTS
from duetime.integrations.ical.reading import Event, read_events
from duetime.integrations.ical.writing import Entry, write_calendar
from tests.conftest import Backend
from tests.waiting import cpu_at_most

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
FILES = Path(__file__).parents[1] / "recorded" / "ical"


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-{text}+00:00")


def calendar(*lines: str) -> bytes:
    events = "\r\n".join(lines)
    return f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\n{events}\r\nEND:VCALENDAR\r\n".encode()


def event(*lines: str, uid: str = "e", start: str = "DTSTART:20260310T090000Z") -> str:
    return "\r\n".join(["BEGIN:VEVENT", f"UID:{uid}", start, *lines, "END:VEVENT"])


def alarm(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VALARM", "ACTION:DISPLAY", *lines, "END:VALARM"])


def read_one(*lines: str, **options: Any) -> Event:
    [found], problems = read_events(calendar(event(*lines, **options)))
    assert problems == []
    return found


def refused(*lines: str, **options: Any) -> str:
    found, [problem] = read_events(calendar(event(*lines, **options)))
    assert found == []
    return problem.reason


def due_times(found: Event, n: int = 5) -> list[str]:
    assert found.repeats is not None
    recurrence = parse_repeats(found.repeats, found.tz)
    return [f"{one.due:%m-%dT%H:%M}" for one in islice(recurrence.occurrences(NOW), n)]


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


# Files of other calendars


def test_a_file_of_google() -> None:
    found, problems = read_events((FILES / "google.ics").read_bytes())
    events = {one.ref.partition("@")[0]: one for one in found}

    assert problems == []
    single = events["single1"]
    assert (single.due, single.tz) == (at("03-10T14:30"), "UTC")
    assert single.data == {
        "title": "Überprüfung mit einer sehr langen Zusammenfassung, die über die Zeile "
        "hinausgeht 🎉",
        "description": "Bring the notes, please.\nRoom 5; second floor",
        "location": "Straße 5, Köln",
        "duration": "30m",
    }
    assert [rule.text for rule in single.rules or ()] == ["-30m", "-1d"]
    standup = events["standup"]
    assert standup.tz == "Europe/Berlin"
    assert standup.rules is None
    assert due_times(standup, 5) == [
        *("03-02T08:30", "03-03T08:30", "03-04T14:00", "03-06T08:30", "03-09T08:30"),
    ]
    times = due_times(standup, 60)
    assert times[-1] == "04-30T07:30"  # Clocks have gone forward.
    assert "04-03T07:30" not in times
    birthday = events["birthday"]
    assert birthday.data == {"title": "Ann's birthday", "all_day": True, "duration": "1d"}
    assert due_times(birthday, 1) == ["03-19T23:00"]  # Midnight in the calendar's zone.
    assert events["off"].cancelled


def test_a_file_of_outlook() -> None:
    [found], [problem] = read_events((FILES / "outlook.ics").read_bytes())

    assert found.tz == "Europe/Berlin"
    assert found.ref.startswith("040000008200E00074C5B7101A82E008")
    assert due_times(found, 9) == [
        *("03-02T08:00", "03-23T08:00", "03-30T07:00", "04-06T07:00", "04-13T07:00"),
        "04-20T07:00",
    ]
    assert problem.uid == "customized-zone"
    assert "'Customized Time Zone' is unknown" in problem.reason


def test_a_file_of_apple() -> None:
    [dinner, floating], problems = read_events((FILES / "apple.ics").read_bytes(), tz="Asia/Tokyo")

    assert problems == []
    assert dinner.due == at("03-06T23:00")
    assert [rule.text for rule in dinner.rules or ()] == [
        *("-1h", "+2h10m", "at 2026-03-06T15:00:00Z", "-30m", "-25m", "-20m"),
    ]
    assert dinner.data["url"] == "https://example.org/dinner"
    assert (floating.due, floating.tz) == (at("03-06T23:00"), "Asia/Tokyo")


# Odd files


def test_times_in_every_form() -> None:
    def due(start: str, tz: str | None = None) -> datetime | None:
        found, _ = read_events(calendar(event(start=start)), tz=tz)
        return found[0].due

    assert due("DTSTART:20260310T090000Z") == at("03-10T09:00")
    assert due("DTSTART;TZID=Europe/Berlin:20260310T090000") == at("03-10T08:00")
    assert due("DTSTART;TZID=/freeassociation.sourceforge.net/Europe/Berlin:20260310T090000") == (
        at("03-10T08:00")
    )
    assert due("DTSTART;TZID=Pacific Standard Time:20260310T090000") == at("03-10T16:00")
    assert due("DTSTART:20260310T090000", "Europe/Berlin") == at("03-10T08:00")
    assert due("DTSTART;VALUE=DATE:20260310", "Europe/Berlin") == at("03-09T23:00")
    assert due("DTSTART;TZID=Europe/Berlin:20260329T023000") == at("03-29T01:00")  # In the gap.


def test_lists_of_dates_and_a_start_that_the_rule_misses() -> None:
    more = read_one("RDATE:20260312T090000Z,20260314T120000Z")
    missed = read_one("RRULE:FREQ=WEEKLY;BYDAY=MO")
    whole = read_one("RRULE:FREQ=DAILY", "EXDATE;VALUE=DATE:20260311", "EXDATE:20260313T090000Z")

    assert due_times(more) == ["03-10T09:00", "03-12T09:00", "03-14T12:00"]
    assert due_times(missed, 3) == ["03-10T09:00", "03-16T09:00", "03-23T09:00"]
    assert due_times(whole, 3) == ["03-10T09:00", "03-12T09:00", "03-14T09:00"]


def test_single_occurrences_without_their_series_are_subjects_of_their_own() -> None:
    found, problems = read_events(
        calendar(
            event("RECURRENCE-ID:20260310T080000Z", uid="x"),
            event("RECURRENCE-ID:20260311T080000Z", uid="x", start="DTSTART:20260312T090000Z"),
        )
    )

    assert problems == []
    assert [(one.ref, one.due) for one in found] == [
        ("x@2026-03-10T08:00:00Z", at("03-10T09:00")),
        ("x@2026-03-11T08:00:00Z", at("03-12T09:00")),
    ]


def test_of_two_versions_the_newer_holds() -> None:
    found, _ = read_events(
        calendar(
            event("SEQUENCE:2", start="DTSTART:20260311T090000Z"),
            event("SEQUENCE:1", start="DTSTART:20260310T090000Z"),
        )
    )

    assert [one.due for one in found] == [at("03-11T09:00")]


def test_what_cannot_be_read_is_left_out_and_told() -> None:
    assert "DTSTART is missing" in refused(start="SUMMARY:no start")
    assert "DTSTART is missing or cannot" in refused(start="DTSTART:tomorrow")
    assert "is unknown" in refused(start="DTSTART;TZID=Mars/Phobos:20260310T090000")
    assert "more than 50 alarms" in refused(*[alarm(f"TRIGGER:-PT{n}M") for n in range(1, 60)])
    assert "more than 20 times" in refused(
        alarm("TRIGGER:-PT1H", "REPEAT:1000000", "DURATION:PT1S")
    )
    assert "at most once a minute" in refused("RRULE:FREQ=SECONDLY")
    assert (
        "this and all future"
        in read_events(
            calendar(
                event("RRULE:FREQ=DAILY"),
                event("RECURRENCE-ID;RANGE=THISANDFUTURE:20260312T090000Z"),
            )
        )[1][0].reason
    )
    good, problems = read_events(calendar(event(start="DTSTART:bad", uid="bad"), event(uid="ok")))
    assert [one.ref for one in good] == ["ok"]
    assert [one.uid for one in problems] == ["bad"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "not an iCalendar file"),
        (b"PK\x03\x04 something", "not an iCalendar file"),
        ("BEGIN:VCALENDAR Grüße".encode("latin-1"), "not valid UTF-8"),
        (b"BEGIN:VCALENDAR\r\n" + b"x" * MAX_BYTES, "at most 10 MB"),
        (b"BEGIN:VCALENDAR\r\n" * 9, "8 levels"),
        (calendar(*["BEGIN:VEVENT\r\nEND:VEVENT"] * (MAX_EVENTS + 1)), "20,000 events"),
        (
            calendar("BEGIN:VEVENT", *["BEGIN:VALARM\r\nEND:VALARM"] * 200_001, "END:VEVENT"),
            "200,000 alarms",
        ),
    ],
    ids=["empty", "zip", "latin-1", "large", "deep", "events", "alarms"],
)
def test_files_that_are_none_or_too_large_are_refused_at_once(data: bytes, told: str) -> None:
    with cpu_at_most(10), pytest.raises(InvalidInput, match=told):
        read_events(data)


def test_a_bomb_in_a_time_zone_or_a_rule_does_not_go_off() -> None:
    zone = (
        "BEGIN:VTIMEZONE\r\nTZID:Bomb\r\nBEGIN:STANDARD\r\nDTSTART:16010101T000000\r\n"
        "RRULE:FREQ=SECONDLY\r\nTZOFFSETFROM:+0100\r\nTZOFFSETTO:+0000\r\nEND:STANDARD\r\n"
        "END:VTIMEZONE"
    )
    folded = zone.replace("VTIMEZONE", "VTIME\r\n ZONE")
    never = [
        event(f"RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;INTERVAL={n}", uid=f"never{n}")
        for n in range(1, 20)
    ]
    with cpu_at_most(20):
        for bomb in (zone, folded):
            found, problems = read_events(
                calendar(bomb, event(start="DTSTART;TZID=Bomb:20260310T090000"))
            )
            assert (found, len(problems)) == ([], 1)
        _, problems = read_events(calendar(*never))

    assert len(problems) == 19


@settings(max_examples=60)
@given(st.binary(max_size=400))
def test_noise_inside_an_event_never_breaks_the_reader(noise: bytes) -> None:
    text = noise.decode("utf-8", "replace")
    try:
        read_events(calendar(event(text, f"SUMMARY:{text}", f"RRULE:{text}", alarm(text))))
    except InvalidInput:
        pass


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "icalendar":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(InvalidInput, match=r"pip install 'duetime\[ical\]'"):
        read_events(calendar(event()))


# Our own files


def subject(app: Duetime, ref: str, rules: Any, **options: Any) -> Entry:
    made = app.subjects.define(ref, remind=rules, **options)
    return Entry(made, parse_rules(rules))


async def test_what_is_written_says_what_is_meant() -> None:
    app = Duetime("sqlite:///never_opened.db")
    file = write_calendar(
        [
            subject(
                app,
                "game",
                ["-1h", "-1d at 09:00", "every 1h within the last 3h", at("03-01T12:00")],
                due=at("03-05T17:00"),
                tz="Europe/Berlin",
                data={"title": "Catan; 4 players", "location": "Köln", "duration": "2h"},
            ),
            subject(
                app,
                "rent",
                ["-1d"],
                repeats={
                    "rrule": "FREQ=MONTHLY",
                    "start": at("01-01T09:00"),
                    "until": at("12-01T09:00"),
                    "exceptions": {at("04-01T09:00"): None, at("05-01T09:00"): at("05-02T09:00")},
                },
            ),
            subject(app, "never", ["-1d"], due=None),
        ],
        NOW,
    )

    events: list[Any] = list(icalendar.Calendar.from_ical(file).walk("VEVENT"))
    game, rent, moved = events
    assert str(game["SUMMARY"]) == "Catan; 4 players"
    assert game["DTSTART"].dt.astimezone(UTC) == at("03-05T17:00")
    assert game["DTSTART"].params["TZID"] == "Europe/Berlin"
    triggers = [one["TRIGGER"].dt for one in game.walk("VALARM")]
    assert triggers == [
        *(-timedelta(hours=1), at("03-04T08:00"), -timedelta(hours=3), at("03-01T12:00")),
    ]
    assert int(game.walk("VALARM")[2]["REPEAT"]) == 2
    assert rent["RRULE"].to_ical() == b"FREQ=MONTHLY;UNTIL=20261201T090000Z"
    assert [one.dt for one in rent["EXDATE"].dts] == [at("04-01T09:00")]
    assert moved["RECURRENCE-ID"].dt == at("05-01T09:00")
    assert moved["DTSTART"].dt == at("05-02T09:00")
    assert b"VTIMEZONE" in file
    assert all(len(line) <= 75 for line in file.split(b"\r\n"))


REPEATS = st.sampled_from(
    [
        "0 9 * * 1-5",
        "FREQ=WEEKLY;BYDAY=MO,TH",
        {"rrule": "FREQ=DAILY;INTERVAL=2", "start": "2026-02-03T07:30:00Z"},
        {"rrule": "FREQ=MONTHLY;BYMONTHDAY=-1;COUNT=30", "start": "2026-01-31T22:00:00Z"},
        {"rrule": "FREQ=DAILY", "start": "2026-02-27T09:00:00Z", "until": "2026-06-01T09:00:00Z"},
        {"rrule": "FREQ=DAILY", "start": "2026-02-27T09:00:00Z", "exclude": ["2026-03-05"]},
        ["FREQ=WEEKLY;BYDAY=SA", {"at": "2026-03-04T11:00:00Z"}],
        {"every": "36h", "start": "2026-02-01T00:00:00Z"},
    ]
)
ALARMS = st.lists(
    st.sampled_from(["-10m", "+1h", "0s", "-2d at 18:00", "every 6h within the last 2d", "-1w"]),
    max_size=3,
    unique=True,
)


@settings(max_examples=60)
@given(
    REPEATS,
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    ALARMS,
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80),
    st.data(),
)
def test_what_we_write_we_read(
    repeats: Any, tz: str, rules: list[str], title: str, data: st.DataObject
) -> None:
    app = Duetime("sqlite:///never_opened.db")
    entry = subject(app, "s", rules, repeats=repeats, tz=tz, data={"title": title})
    made = entry.subject.repeats
    assert made is not None
    for one in list(islice(made.occurrences(NOW), 4)):
        other: list[Any] = [None, "skip", one.due + timedelta(hours=5)]
        exception = data.draw(st.sampled_from(other))
        made = made.changed(one.original, exception, NOW)
    entry.subject.repeats = made

    [found], problems = read_events(write_calendar([entry], NOW))

    assert problems == []
    assert found.repeats is not None
    again = parse_repeats(found.repeats, found.tz)
    assert found.tz == tz
    assert [one.due for one in islice(again.occurrences(NOW), 40)] == [
        one.due for one in islice(made.occurrences(NOW), 40)
    ]
    assert [rule.text for rule in found.rules or ()] == [rule.text for rule in parse_rules(rules)]


# Into the database


async def test_importing_again_changes_only_what_has_changed(app: Duetime) -> None:
    first = calendar(
        event("SUMMARY:One", alarm("TRIGGER:-PT10M"), uid="one"),
        event("RRULE:FREQ=DAILY", alarm("TRIGGER:-PT10M"), uid="daily"),
    )
    moved = first.replace(b"DTSTART:20260310T090000Z", b"DTSTART:20260310T110000Z", 1)
    async with app.testing(now=NOW):
        await app.scopes.put("team")
        tried = await app.subjects.import_ical(first, scope="team", dry_run=True)
        assert await app.reminders.list() == []
        done = await app.subjects.import_ical(first, scope="team", recipients=["ann"], by="bob")
        same = await app.subjects.import_ical(first)
        await app.subjects.complete("daily", occurrence=at("03-11T09:00"))
        kept = await app.subjects.import_ical(first)
        changed = await app.subjects.import_ical(moved)
        one, daily = await app.subjects.get("one"), await app.subjects.get("daily")
        gone = await app.reminders.list(subject="one", status="superseded")
        [event_of] = [e for e in await app.audit.list(entity="subject:one") if e.before is None]

    assert tried.results == done.results == {"one": "added", "daily": "added"}
    assert same.results == kept.results == {"one": "same", "daily": "same"}
    assert changed.results == {"one": "changed", "daily": "same"}
    assert (one.due_at, one.scope, one.recipients) == (at("03-10T11:00"), "team", ("ann",))
    assert len(gone) == 1
    assert daily.repeats is not None
    assert daily.repeats.exceptions == {at("03-11T09:00"): "done"}
    assert event_of.actor == "bob"


async def test_a_cancelled_event_is_closed_and_a_done_one_stays_done(app: Duetime) -> None:
    file = calendar(event(alarm("TRIGGER:-PT10M"), uid="a"), event(uid="b"))
    cancelled = file.replace(b"UID:a", b"STATUS:CANCELLED\r\nUID:a")
    later = file.replace(b"20260310T090000Z", b"20260311T090000Z")
    async with app.testing(now=NOW):
        never = await app.subjects.import_ical(cancelled)
        with pytest.raises(SubjectNotFound):
            await app.subjects.get("a")
        await app.subjects.import_ical(file)
        closed = await app.subjects.import_ical(cancelled)
        [reminder] = await app.reminders.list(subject="a")
        await app.subjects.complete("b")
        again = await app.subjects.import_ical(cancelled)
        done = (await app.subjects.get("b")).status
        await app.subjects.import_ical(later)
        opened = await app.subjects.get("b")

    assert never.results == {"a": "same", "b": "added"}
    assert closed.results == {"a": "changed", "b": "same"}
    assert reminder.status == "cancelled"
    assert again.results == {"a": "same", "b": "same"}
    assert done == "done"
    assert (opened.status, opened.due_at) == ("open", at("03-11T09:00"))


async def test_what_is_exported_is_imported_as_it_was(app: Duetime) -> None:
    async with app.testing(now=NOW):
        await app.scopes.put("org", remind=["-1h"])
        await app.scopes.put("team", parent="org")
        await app.subjects.put("inside", due=at("03-09T09:00"), scope="team", data={"room": 5})
        await app.subjects.put("cron", repeats="0 9 * * 1-5", tz="Europe/Berlin", remind=["-5m"])
        await app.subjects.put("done", due=at("03-09T09:00"))
        await app.subjects.complete("done")
        everything = await app.subjects.export_ical()
        in_org = await app.subjects.export_ical(scope="org")
        named = await app.subjects.export_ical(["cron", "done"])
        again = await app.subjects.import_ical(everything)
        inside = await app.subjects.get("inside")
        moved = everything.replace(b"T090000", b"T100000")
        other = await app.subjects.import_ical(moved)
        cron = await app.subjects.occurrences("cron", 2)
        with pytest.raises(SubjectNotFound):
            await app.subjects.export_ical(["cron", "gone"])
        with pytest.raises(InvalidInput, match="There is no scope"):
            await app.subjects.export_ical(scope="gone")
        with pytest.raises(InvalidInput, match="list of names"):
            await app.subjects.export_ical("cron")
        with pytest.raises(InvalidInput, match="list of names"):
            await app.subjects.import_ical(everything, recipients="ann")
        with pytest.raises(InvalidInput, match="There is no time zone 'Mars'"):
            await app.subjects.import_ical(everything, tz="Mars")
        with pytest.raises(InvalidInput, match="'soon' is not a valid rule"):
            await app.subjects.import_ical(everything, remind=["soon"])

    def refs(file: bytes) -> list[str]:
        return [str(one["UID"]) for one in icalendar.Calendar.from_ical(file).walk("VEVENT")]

    assert refs(everything) == ["inside", "cron"]
    assert refs(in_org) == ["inside"]
    assert refs(named) == ["cron", "done"]
    # The rules that hold are written, so that they become its own.
    assert again.results == {"inside": "changed", "cron": "same"}
    assert [rule.text for rule in inside.rules or ()] == ["-1h"]
    assert inside.data == {"room": 5}
    # A program moved the series, and kept what it did not understand.
    assert other.results == {"inside": "changed", "cron": "changed"}
    assert [f"{one.due:%d %H}" for one in cron] == ["02 09", "03 09"]


async def test_many_events(app: Duetime) -> None:
    """More than one batch."""
    file = calendar(
        *[event(alarm("TRIGGER:-PT10M"), "RRULE:FREQ=WEEKLY", uid=f"e{n}") for n in range(510)]
    )
    async with app.testing(now=NOW):
        done = await app.subjects.import_ical(file)
        same = await app.subjects.import_ical(file)
        exported = await app.subjects.export_ical()

    assert (done.count("added"), same.count("same")) == (510, 510)
    assert exported.count(b"BEGIN:VEVENT") == 510


def test_the_rules_of_a_file_take_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MAX_STEPS", 2_000_000)
    rule = "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO"
    events = [
        event(rule, uid=f"e{n}", start=f"DTSTART:20260301T09{n % 60:02}{n // 60:02}Z")
        for n in range(200)
    ]
    with cpu_at_most(10):
        read, problems = read_events(calendar(*events))

    assert 0 < len(read) < 100
    assert len(read) + len(problems) == 200
    assert "the rules of this file take too long to compute" in problems[-1].reason


def test_excluded_dates_are_written_without_a_walk_through_the_years() -> None:
    repeats = parse_repeats(
        {
            "rrule": "FREQ=MINUTELY",
            "start": "2000-01-01T00:00Z",
            "exclude": ["2026-03-07", "2026-12-25"],
        }
    )

    excluded = list(writing._excluded(repeats, datetime(2026, 3, 6, tzinfo=UTC)))

    assert len(excluded) == 2 * 24 * 60
    assert {at.date().isoformat() for at in excluded} == {"2026-03-07", "2026-12-25"}
