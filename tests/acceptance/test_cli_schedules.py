"""`duetime schedules`, as people and scripts use it, on both backends."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from duetime import Duetime
from duetime.cli import main
from duetime.domain.schedules.schedule import Policy, TickStatus
from tests.acceptance.command import SHOP, Answer, duetime
from tests.conftest import Backend
from tests.waiting import until

on_both = pytest.mark.parametrize("backend", ["postgres18", "sqlite"], indirect=True)
on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
HOLIDAY = datetime(2999, 12, 24, tzinfo=UTC)


def schedules(url: str | None, *arguments: str, given: str = "") -> Answer:
    """`duetime schedules …`, in this process: a new one takes half a second."""
    out, err = io.StringIO(), io.StringIO()
    database = [] if url is None else ["--database", url]

    def run() -> int:
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            patch.object(sys, "argv", ["duetime", "schedules", *arguments, *database]),
            patch.object(sys, "stdin", io.StringIO(given)),
            pytest.raises(SystemExit) as left,
        ):
            main()
        return int(left.value.code or 0)

    with ThreadPoolExecutor(1) as beside_our_loop:
        code = beside_our_loop.submit(run).result()
    return Answer(code, out.getvalue(), err.getvalue())


# See


@on_both
async def test_schedules_are_listed(backend: Backend, app: Duetime) -> None:
    none = schedules(backend.url)
    await app.schedules.put("digest", "shop.clean", "0 9 * * 1-5", tz="America/New_York")
    await app.schedules.put("over", "shop.clean", "2020-01-01T00:00:00Z")
    await app.schedules.put("poll", "shop.clean", "@every 10h")
    await app.schedules["poll"].pause(reason="holiday", until="2h", by="ann")
    await app.schedules.put("trial", "shop.clean", "@every 10h", shadow=True)

    table = schedules(backend.url)
    plain = schedules(backend.url, "list", "--json")

    assert none.out.startswith("No schedules. Add one: duetime schedules put")
    heading, digest, over, poll, trial = table.out.splitlines()
    assert heading.split() == ["NAME", "WHEN", "NEXT", "LAST", "STATUS"]
    assert digest.split("  ")[1] == "0 9 * * 1-5 (America/New_York)"
    assert "  in " in digest
    assert digest.endswith("  active")
    assert over.endswith("  ended")
    assert poll.endswith("  paused by ann: holiday, resumes in 2 h")
    assert trial.endswith("  shadow")
    assert [info["name"] for info in plain.json] == ["digest", "over", "poll", "trial"]
    assert plain.json[2]["paused_by"] == "ann"


@on_both
async def test_the_ledger_is_shown_and_explained(backend: Backend, app: Duetime) -> None:
    await app.schedules.put("good", "shop.send", "0 9 * * *", args={"item_id": 7}, tz="Asia/Tokyo")
    await app.schedules.put("bad", "shop.fail", "@every 10h", pause_after=1)
    job_id = await app.schedules["good"].trigger(by="ann")
    await app.schedules["bad"].trigger(by="ann")
    async with app.worker(name="w1"):

        async def both_ended() -> bool:
            rows = [(await app.schedules[name].history())[-1] for name in ("good", "bad")]
            return all(row.finished_at is not None for row in rows)

        await until(both_ended)

    history = schedules(backend.url, "history", "good")
    ran = schedules(backend.url, "history", "good", "--status", "triggered", "--json")
    later = schedules(backend.url, "history", "good", "--since", "2999-01-01T00:00Z")
    shown = schedules(backend.url, "get", "bad")
    plain = schedules(backend.url, "get", "good", "--json")
    [row] = ran.json
    tick = schedules(backend.url, "explain", "good", row["tick"])
    whole = schedules(backend.url, "explain", "bad", "--json")

    heading, *armed, last = history.out.splitlines()
    assert heading.split() == ["TICK", "LOCAL", "STATUS", "LATE", "TOOK", "JOB", "RESULT"]
    assert [line.split()[:4] for line in armed] == [
        [line.split()[0], line.split()[1], "09:00", "armed"] for line in armed
    ]
    assert last.startswith(row["tick"])
    assert last.endswith(f" ms  {job_id:>3}  succeeded on w1; triggered by ann")
    assert row["job_id"] == job_id
    assert later.out == "No ticks match.\n"
    assert shown.out.startswith("Schedule bad: paused\n")
    assert "pause-after  1\n" in shown.out
    assert "by duetime: 1 run failed in a row" in shown.out
    assert "failed: the shop is closed, on w1; triggered by ann" in shown.out
    assert "catch-up" not in shown.out
    assert plain.json["args"] == {"item_id": 7}
    assert len(plain.json["history"]) == 3
    assert f"of 'good' ran as job {job_id}, " in tick.out
    assert "worker       w1\n" in tick.out
    assert whole.json["code"] == "paused"


@on_both
async def test_the_audit_says_who_changed_what(backend: Backend, app: Duetime) -> None:
    put, poll = app.schedules.put, app.schedules["poll"]
    await put("poll", "shop.clean", "@every 10h", by="ann", max_age="2h", max_runs=3)
    await put("poll", "shop.clean", "@every 9h", by="bob", max_age="3h", catch_up="skip")
    await poll.pause(reason="holiday", until=HOLIDAY, by="cem")
    await poll.resume(missed=True, by="dan")
    await poll.trigger(reason="a look", by="eve")
    await poll.delete(by="fay", reason="not wanted")

    table = schedules(backend.url, "audit", "poll")
    page = schedules(backend.url, "audit", "poll", "--limit", "1", "--json")
    nothing = schedules(backend.url, "audit", "else")

    told = [line.split(maxsplit=5)[2:] for line in table.out.splitlines()]
    assert told == [
        ["BY", "ACTION", "ENTITY", "WHAT"],
        ["fay", "schedule.delete", "schedule:poll", "not wanted; shop.clean, every 9h"],
        ["eve", "schedule.trigger", "schedule:poll", "a look"],
        ["dan", "schedule.resume", "schedule:poll", "with what was missed"],
        ["cem", "schedule.pause", "schedule:poll", "holiday; until 2999-12-24T00:00:00Z"],
        ["bob", "schedule.change", "schedule:poll",
         ("when: every 10h → every 9h; catch-up: latest → skip; max-runs: 3 → none; "
          "max-age: 2h → 3h")],
        ["ann", "schedule.add", "schedule:poll", "shop.clean, every 10h"],
    ]  # fmt: skip
    assert [event["actor"] for event in page.json] == ["fay"]
    assert nothing.out == "There are no audit events for schedule:else.\n"


# Change


@on_both
async def test_a_schedule_is_put_with_every_option(backend: Backend, app: Duetime) -> None:
    put = (
        "put", "digest", "shop.clean", "30 9 * * 1-5", '{"every": "10h"}', "--by", "ann",
        "--args", '{"item_id": 7}', "--tz", "Europe/Berlin", "--exclude", "2026-12-25",
        "--exclude", "* * 1 1 *", "--start", "2026-01-01T00:00Z", "--end", "2999-01-01T00:00Z",
        "--jitter", "1m", "--preset", "daily at noon", "--queue", "mail", "--priority", "2",
        "--catch-up", "all", "--max-runs", "9", "--max-age", "2d", "--pace", "1s", "--grace", "1m",
        "--overlap", "buffer_one", "--max-concurrent-runs", "2", "--burst-allowed", "--after",
        "other", "--within", "3h", "--wait", "10m", "--pause-after", "3", "--expires", "5m",
        "--shadow",
    )  # fmt: skip

    await app.schedules.put("other", "shop.clean", "@daily", args={"item_id": 1})
    added = schedules(backend.url, *put)
    same = schedules(backend.url, *put, "--json")
    changed = schedules(backend.url, "put", "digest", "shop.clean", "@daily")

    assert added.out.startswith("Schedule digest is added.\n  when  cron 0 12 * * *")
    assert same.json["result"] == "same"
    assert changed.out.startswith("Schedule digest is changed.\n  when  cron 0 0 * * * (UTC)\n")
    change, add = await app.schedules.audit("digest")
    assert add.actor == "ann"
    assert "@" in change.actor
    assert add.after["args"] == {"item_id": 7}
    assert (add.after["queue"], add.after["priority"]) == ("mail", 2)
    assert add.after["timetable"] == {
        "specs": [{"cron": "0 12 * * *"}, {"cron": "30 9 * * 1-5"}, {"every": "10h"}],
        "tz": "Europe/Berlin", "exclude": ["* * 1 1 *", "2026-12-25"], "jitter": "1m",
        "start": "2026-01-01T00:00:00Z", "end": "2999-01-01T00:00:00Z",
    }  # fmt: skip
    assert set(add.after["policy"]) == set(Policy.__struct_fields__)
    assert (await app.schedules.get("digest")).policy == Policy()


@on_sqlite
async def test_a_person_is_told_that_the_code_declares_it(backend: Backend, app: Duetime) -> None:
    await app.schedules.apply([app.schedules.define("poll", "shop.clean", "@daily")], prune=True)

    refused = schedules(backend.url, "delete", "poll", given="n\n")
    changed = schedules(backend.url, "put", "poll", "shop.clean", "@hourly")

    assert "the next worker that starts will add it again" in refused.err
    assert changed.out.endswith("the next worker that starts will revert the change.\n")


@on_both
async def test_a_schedule_is_paused_and_resumed(backend: Backend, app: Duetime) -> None:
    await app.schedules.put("poll", "shop.clean", "@every 10h")
    pause = ("pause", "poll", "--by", "ann")

    paused = schedules(backend.url, *pause)
    timed = schedules(
        backend.url, *pause, "--until", "2999-12-24T00:00Z", "--reason", "x", "--json"
    )
    resumed = schedules(backend.url, "resume", "poll", "--missed", "--by", "bob")
    again = schedules(backend.url, "resume", "poll", "--json")

    assert paused.out == "Schedule poll is paused by ann, until resumed.\n"
    assert timed.json["paused_until"] == "2999-12-24T00:00:00Z"
    assert timed.json["pause_reason"] == "x"
    assert resumed.out.startswith("Schedule poll is resumed. Next run: ")
    assert again.json["resumed"] is False
    resume, *_ = await app.schedules.audit("poll")
    assert (resume.actor, resume.after) == ("bob", {"missed": True})


@on_both
async def test_a_run_is_triggered_and_moved(backend: Backend, app: Duetime) -> None:
    await app.schedules.put("poll", "shop.clean", "@every 1000h")

    triggered = schedules(backend.url, "trigger", "poll", "--reason", "a look", "--json")
    moved = schedules(backend.url, "reschedule", "poll", "30m", "--by", "ann")
    fixed = schedules(backend.url, "reschedule", "poll", "2999-12-24T00:00Z", "--json")
    history = schedules(backend.url, "history", "poll", "--limit", "3")

    rows = {row.job_id: row for row in await app.schedules["poll"].history()}
    assert rows[triggered.json["job_id"]].run_at <= await app.now()
    assert moved.out.startswith("The run of ")
    assert moved.out.endswith(" UTC (in 30 m).\n")
    assert fixed.json["run_at"] == "2999-12-24T00:00:00Z"
    assert rows[fixed.json["job_id"]].run_at == HOLIDAY
    assert "moved to 2999-12-24T00:00:00Z, due in " in history.out


@on_both
async def test_a_backfill_runs_what_has_not_run(backend: Backend, app: Duetime) -> None:
    await app.schedules.put("daily", "shop.clean", "@daily", exclude="2026-01-03")
    span = ("--from", "2026-01-01T00:00Z", "--to", "2026-01-11T00:00Z")
    backfill = ("backfill", "daily", *span)

    tried = schedules(backend.url, *backfill, "--dry-run", "--json")
    refused = schedules(backend.url, *backfill, given="n\n")
    untouched = await app.schedules["daily"].history(status=TickStatus.ARMED)
    done = schedules(backend.url, *backfill, "--yes", "--by", "ann")
    again = schedules(backend.url, *backfill)

    assert tried.json["runs"] == 9
    assert "Run 9 ticks of daily, from 2026-01-01T00:00:00Z to 2026-01-11" in refused.err
    assert refused.code == 1
    assert len(untouched) == 2
    assert done.out.startswith("9 ticks of daily will run, from 2026-01-01T00:00:00Z")
    assert again.out.endswith("have already run.\n")
    assert len(await app.schedules["daily"].history(before=datetime(2026, 2, 1, tzinfo=UTC))) == 9


@on_both
async def test_a_schedule_is_deleted_only_when_confirmed(backend: Backend, app: Duetime) -> None:
    await app.schedules.put("poll", "shop.clean", "@daily")

    refused = schedules(backend.url, "delete", "poll")
    kept = len(await app.schedules.list())
    done = schedules(backend.url, "delete", "poll", "--yes", "--reason", "not wanted")

    assert refused.code == 1
    assert "nothing was changed" in refused.err
    assert kept == 1
    assert done.out == "Schedule poll is deleted.\n"
    assert await app.schedules.list() == []


@on_both
async def test_presets_are_kept(backend: Backend, app: Duetime) -> None:
    put = ("presets", "put", "closing", "0 18 * * 1-5", "--tz", "Europe/Berlin")

    stored = schedules(backend.url, *put, "--description", "The shop closes")
    table = schedules(backend.url, "presets")
    plain = schedules(backend.url, "presets", "list", "--json")
    deleted = schedules(backend.url, "presets", "delete", "closing")
    again = schedules(backend.url, "presets", "delete", "closing")

    assert stored.out == "Preset closing is added.\n"
    assert table.out.splitlines()[-1].split()[-4:] == ["The", "shop", "closes", "own"]
    assert [one["name"] for one in plain.json if one["own"]] == ["closing"]
    assert deleted.out == "Preset closing is deleted.\n"
    assert again.code == 1
    assert "There is no preset 'closing'" in again.error


# Preview


def test_a_spec_is_tried_without_a_database(tmp_path: Path) -> None:
    """The command in a process of its own, where nothing is set."""
    preview = ("schedules", "preview", "--tz", "America/New_York", "-n", "3")
    spring = ("--spec", "30 2 * * *", "--since", "2026-03-07T12:00Z", "--exclude", "2026-03-09")
    autumn = ("--spec", "0 * * * *", "--since", "2026-11-01T04:30Z")
    once = ("--spec", "2026-01-01T00:00Z", "--since", "2025-01-01T00:00Z")

    forward = duetime(None, *preview, *spring, cwd=tmp_path)
    back = duetime(None, *preview, *autumn, "--json", cwd=tmp_path)
    ended = duetime(None, *preview, *once, cwd=tmp_path)

    rows = [[cell.strip() for cell in line.split("  ")] for line in forward.out.splitlines()[2:]]
    assert [(row[0], row[1], row[-1]) for row in rows[:3]] == [
        ("2026-03-08T07:00:00Z", "Sun 2026-03-08 03:00 -04:00", "clocks go forward 1h before this"),
        ("", "", "moved out of the gap from 02:30"),
        ("2026-03-09T06:30:00Z", "Mon 2026-03-09 02:30 -04:00",
         "does not run: excluded date 2026-03-09"),
    ]  # fmt: skip
    assert rows[3][:2] == ["2026-03-10T06:30:00Z", "Tue 2026-03-10 02:30 -04:00"]
    assert [(row["at"], row["notes"]) for row in back.json] == [
        ("2026-11-01T05:00:00Z", ["first of two 01:00"]),
        ("2026-11-01T06:00:00Z", ["clocks go back 1h before this", "second of two 01:00"]),
        ("2026-11-01T07:00:00Z", []),
    ]
    assert ended.out.endswith("The timetable ends there.\n")
    assert list(tmp_path.iterdir()) == []


@on_sqlite
async def test_a_schedule_is_previewed(backend: Backend, app: Duetime) -> None:
    await app.schedules.put("poll", "shop.clean", "@daily", jitter="1h")
    await app.schedules["poll"].pause(until=HOLIDAY)
    preview = ("preview", "poll", "--limit", "2")

    table = schedules(backend.url, *preview, "--since", "2026-01-01T12:00Z")
    plain = schedules(backend.url, *preview, "--json")

    when, paused, _, first, _ = table.out.splitlines()
    assert when == "poll: cron 0 0 * * * (UTC), up to 1h later"
    assert paused.startswith("It is paused until 2999-12-24T00:00:00Z")
    assert first.startswith("2026-01-02T00:00:00Z")
    assert first.endswith(" later")
    gap = datetime.fromisoformat(plain.json[1]["at"]) - datetime.fromisoformat(plain.json[0]["at"])
    assert gap == timedelta(days=1)


# Errors


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("put", "a", "b"), "Give a SPEC"),
        (("put", "a", "b", "0", "9", "x"), "Put the whole spec in quotes: '0 9 * * *'"),
        (("put", "a", "b", "@every", "10m"), "Put the whole spec in quotes: '@every 10m'"),
        (("put", "a", "b", "@daily", "--args", "[7]"), "is not a JSON object"),
        (("put", "a", "b", "@daily", "--overlap", "maybe"), "'maybe' is not one of"),
        (("put", "a", "b", "@daily", "--priority", "10"), "10 must be between 0 and 9"),
        (("pause", "a", "--until", "2026-12-24"), "Write '2026-12-24T00:00:00Z'"),
        (("pause", "a", "--until", "soon"), "neither a duration such as '30m' nor a time"),
        (("reschedule", "a", "9999-12-31T23:00-05:00"), "between the years 1970 and 9000"),
        (("history", "a", "--status", "asleep"), "'asleep' is not one of"),
        (("explain", "a", "30m"), "'30m' is not a valid time such as"),
        (("preview",), "Give either the NAME of a schedule, or --spec"),
        (("preview", "a", "--spec", "@daily"), "Give either the NAME of a schedule, or --spec"),
        (("preview", "a", "--tz", "UTC"), "--tz can only be combined with --spec"),
        (("backfill", "a"), "Missing option '--from'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_wrong_command_line(
    command: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = schedules(None, *command)

    assert answer.code == 2
    assert message in answer.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--spec", "0 9 * *"), "has 4 fields"),
        (("--spec", "@daily", "--tz", "Mars"), "There is no time zone 'Mars'"),
        (("--preset", "weekdays 9"), "Did you mean 'Weekdays 9 AM'"),
    ],
    ids=["cron", "zone", "preset"],
)
def test_a_spec_that_cannot_be_read(options: tuple[str, ...], message: str) -> None:
    answer = schedules(None, "preview", *options)

    assert answer.code == 1
    assert message in answer.error


@on_sqlite
async def test_what_the_library_refuses_is_one_line(backend: Backend, app: Duetime) -> None:
    await app.schedules.put("poll", "shop.clean", "@daily")
    verbs = ("get", "history", "explain", "preview", "pause", "resume", "trigger", "delete")

    unknown = [schedules(backend.url, verb, "nothing") for verb in verbs]
    unknown += [
        schedules(backend.url, "reschedule", "nothing", "1h"),
        schedules(backend.url, "backfill", "nothing", "--from", "1d"),
    ]
    put = ("put", "poll", "shop.send", "@hourly")
    refused = [
        schedules(backend.url, *put, "--within", "3m"),
        duetime(backend.url, "schedules", *put, "--app", SHOP, "--args", '{"wrong": 1}'),
        schedules(backend.url, "backfill", "poll", "--from", "1h", "--to", "2h"),
    ]

    for answer in unknown:
        assert answer.code == 1
        assert "There is no schedule named 'nothing'" in answer.error
    for answer, message in zip(
        refused,
        ("need --after", "argument 'wrong'", "must start before it ends"),
        strict=True,
    ):
        assert answer.code == 1
        assert message in answer.error
    spelt_wrong = schedules(backend.url, *put, "--max-age", "5 minutes")
    assert spelt_wrong.code == 2
    assert "is not a duration" in spelt_wrong.error
    assert (await app.schedules.get("poll")).revision == 1
