"""Subjects, scopes, recipients, reminders and receipts over HTTP, on every backend."""

from __future__ import annotations

from typing import Any

import pytest

from duetime import Duetime, Reminder, Sent
from tests.waiting import until
from tests.web.api.conftest import Api

GAME = {"due": "2030-05-01T18:00:00Z", "recipients": ["bob"], "remind": ["-1d", "-1h"]}


async def test_a_subject_is_put_and_its_reminders_are_armed(api: Api) -> None:
    assert await api("PUT", "/subjects/game:42", GAME) == {"result": "added"}

    shown = await api("GET", "/subjects/game:42")
    assert shown["rules"] == [{"rule": "-1d"}, {"rule": "-1h"}]
    assert (shown["due_at"], shown["recipients"]) == ("2030-05-01T18:00:00Z", ["bob"])
    armed = (await api("GET", "/reminders", subject="game:42"))["items"]
    assert [one["run_at"] for one in armed] == ["2030-04-30T18:00:00Z", "2030-05-01T17:00:00Z"]
    assert [one["rule"] for one in armed] == ["-1d", "-1h"]
    rules = await api("GET", "/subjects/game:42/rules")
    assert rules == {"rules": ["-1d", "-1h"], "source": "game:42"}
    assert (await api("GET", "/subjects/game:42/explain"))["sentence"]
    message = await api("GET", f"/reminders/{armed[0]['id']}/message")
    assert message["recipient"] == "bob"

    await api("POST", "/subjects/game:42/complete", {"reason": "rained off"})
    assert (await api("GET", "/subjects/game:42"))["status"] == "done"
    assert (await api("GET", "/subjects?status=open"))["items"] == []
    [event, *_] = (await api("GET", "/subjects/game:42/audit"))["items"]
    assert (event["actor"], event["reason"]) == ("ann", "rained off")
    await api("DELETE", "/subjects/game:42")
    await api("GET", "/subjects/game:42", status=404)


@pytest.mark.parametrize(
    "body",
    [
        {},
        GAME | {"repeats": "0 9 * * *"},
        GAME | {"due": "2030-05-01T18:00:00"},
        GAME | {"due": "2030-05-01"},
        GAME | {"remind": ["1h"]},
        GAME | {"remind": [{"rule": "-1h", "loud": True}]},
        GAME | {"recipients": "bob"},
        GAME | {"tz": "Mars/Base"},
        GAME | {"data": {"x": "\0"}},
        GAME | {"recipients": [f"r{n}" for n in range(1001)]},
        GAME | {"by": "mallory"},
    ],
)
async def test_a_subject_that_makes_no_sense_is_refused(api: Api, body: Any) -> None:
    problem = await api("PUT", "/subjects/x", body, status=422)

    assert problem["code"] in ("invalid_input", "invalid_schedule")
    await api("GET", "/subjects/x", status=404)


async def test_a_subject_without_a_due_time_is_said_so(api: Api) -> None:
    assert await api("PUT", "/subjects/x", {"due": None}) == {"result": "added"}


async def test_many_subjects_are_put_all_or_none(api: Api) -> None:
    both = {"subjects": [GAME | {"ref": "a"}, GAME | {"ref": "b"}]}
    wrong = {"subjects": [GAME | {"ref": "c"}, GAME | {"ref": "d", "tz": "Mars/Base"}]}

    assert (await api("PUT", "/subjects", both))["results"] == {"a": "added", "b": "added"}
    await api("PUT", "/subjects", wrong, status=422)

    assert [one["ref"] for one in (await api("GET", "/subjects"))["items"]] == ["a", "b"]


async def test_occurrences_of_a_subject_are_changed(api: Api) -> None:
    body = {"repeats": {"cron": "0 9 * * *"}, "remind": ["-1h"], "recipients": ["bob"]}
    await api("PUT", "/subjects/standup", body)
    path, since = "/subjects/standup", "2030-01-01T00:00:00Z"

    async def due() -> list[str]:
        found = await api("GET", f"{path}/occurrences", n=2, since=since)
        return [one["due"][:13] for one in found]

    assert await due() == ["2030-01-01T09", "2030-01-02T09"]
    await api("POST", f"{path}/skip", {"occurrence": "2030-01-01T09:00:00Z"})
    assert await due() == ["2030-01-02T09", "2030-01-03T09"]
    await api("POST", f"{path}/restore", {"occurrence": "2030-01-01T09:00:00Z"})
    move = {"occurrence": "2030-01-01T09:00:00Z", "to": "2030-01-01T11:00:00Z"}
    await api("POST", f"{path}/move", move)
    assert await due() == ["2030-01-01T11", "2030-01-02T09"]
    await api("POST", f"{path}/complete", {"occurrence": "2030-01-02T09:00:00Z"})
    assert await due() == ["2030-01-01T11", "2030-01-03T09"]
    await api("POST", f"{path}/skip", {"occurrence": "2030-01-01T10:00:00Z"}, status=422)
    assert (await api("GET", path))["repeats"]["exceptions"]


async def test_subjects_go_out_and_in_as_a_calendar(api: Api) -> None:
    await api("PUT", "/subjects/game:42", GAME | {"data": {"title": "Finals"}})

    calendar = await api("GET", "/subjects.ics", ref="game:42")
    assert calendar.startswith(b"BEGIN:VCALENDAR")
    await api("DELETE", "/subjects/game:42")
    body = {"calendar": calendar.decode(), "recipients": ["bob"]}
    assert (await api("POST", "/subjects/import_ical", body))["results"] == {"game:42": "added"}
    assert (await api("GET", "/subjects/game:42"))["due_at"] == "2030-05-01T18:00:00Z"
    await api("POST", "/subjects/import_ical", {"calendar": "nonsense"}, status=422)
    await api("GET", "/subjects.ics", ref="nobody", status=404)


async def test_scopes_hand_down_their_rules(api: Api) -> None:
    assert (await api("PUT", "/scopes/guild:1", {"remind": ["-7d"]}))["result"] == "added"
    await api("PUT", "/scopes/guild:1%2Fchess", {"parent": "guild:1"})
    await api("PUT", "/subjects/x", {"due": "2030-05-01T18:00:00Z", "scope": "guild:1/chess"})
    assert (await api("GET", "/subjects/x/rules"))["source"] == "guild:1"

    put = await api("PUT", "/scopes/guild:1", {"remind": ["-1h"], "locked": True})
    assert put == {"result": "changed", "affected": 1}
    assert (await api("GET", "/scopes/guild:1")) == {
        "ref": "guild:1", "parent": None, "rules": [{"rule": "-1h"}], "locked": True,
    }  # fmt: skip
    assert len((await api("GET", "/scopes"))["items"]) == 2
    assert (await api("GET", "/scopes/guild:1%2Fchess/explain"))["sentence"]
    assert len((await api("GET", "/scopes/guild:1/audit"))["items"]) == 2
    await api("DELETE", "/scopes/guild:1", status=422)
    await api("DELETE", "/subjects/x")
    await api("DELETE", "/scopes/guild:1%2Fchess")
    await api("GET", "/scopes/guild:1%2Fchess", status=404)


async def test_recipients_choose_how_they_are_reached(api: Api) -> None:
    body = {
        "tz": "Europe/Berlin",
        "channels": {"push": "t-1", "email": None},
        "quiet": "22:00-7:00",
        "max_per_hour": 5,
    }
    assert await api("PUT", "/recipients/bob", body) == {"result": "added"}
    assert await api("POST", "/recipients/bob/mute", {"what": ["scope:guild:1", "channel:push"]})

    shown = await api("GET", "/recipients/bob")
    assert [one["channel"] for one in shown["channels"]] == ["push", "email"]
    assert (shown["quiet"], shown["muted"]) == ("22:00-07:00", ["scope:guild:1", "channel:push"])
    await api("POST", "/recipients/bob/unmute", {"what": ["channel:push"]})
    assert (await api("GET", "/recipients/bob"))["muted"] == ["scope:guild:1"]
    await api("POST", "/recipients/bob/mute", {"what": ["nonsense"]}, status=422)
    await api("PUT", "/recipients/bob", {"max_per_hour": 0}, status=422)
    await api("POST", "/recipients/nobody/unmute", {"what": ["all"]}, status=404)
    assert len((await api("GET", "/recipients"))["items"]) == 1
    assert len((await api("GET", "/recipients/bob/audit"))["items"]) == 3
    await api("DELETE", "/recipients/bob")
    await api("GET", "/recipients/bob", status=404)


async def test_reminders_are_sent_acknowledged_snoozed_and_resent(app: Duetime, api: Api) -> None:
    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        return Sent(external_id=f"SM{reminder.id}-{reminder.snoozes}")

    game = {"due": "2099-05-01T18:00:00Z", "recipients": ["bob"]}
    body = game | {"remind": [{"rule": "at 2020-01-01T00:00:00Z", "past": "send_now"}]}
    await api("PUT", "/subjects/game:42", body)
    [reminder] = (await api("GET", "/reminders"))["items"]
    path = f"/reminders/{reminder['id']}"

    async def sent() -> bool:
        return (await api("GET", path))["status"] == "sent"

    async with app.worker():
        await until(sent)
    sent_id = (await api("GET", path))["external_id"]
    assert [one["status"] for one in await api("GET", f"{path}/deliveries")] == ["sent"]
    receipt = {"external_id": sent_id, "status": "delivered"}
    assert await api("POST", "/receipts", receipt) == {"changed": 1}
    assert await api("POST", "/receipts", receipt) == {"changed": 0}
    assert await api("POST", f"{path}/acknowledge") == {"new": True}
    assert await api("POST", "/reminders/acknowledge", {"external_id": sent_id}) == {"new": False}
    assert (await api("GET", path))["acknowledged_by"] == "ann"
    assert (await api("GET", f"{path}/explain"))["sentence"]
    assert (await api("POST", f"{path}/resend"))["status"] == "armed"
    assert (await api("GET", "/reminders/preview", within="30d"))["items"]
    async with app.worker():
        await until(sent)
    assert (await api("POST", f"{path}/snooze", {"span": "30m"}))["run_at"]
    await api("POST", f"{path}/snooze", {"span": "30m"}, status=422)
    assert await api("POST", "/reminders/resend", {"within": "1h"}) == {
        "reminders": [],
        "refused": {},
    }
    await api("POST", "/receipts", {"external_id": "nobody's", "status": "failed"}, status=404)
    await api("POST", "/receipts", {"status": "failed"}, status=422)
    await api("GET", "/reminders/4711", status=404)
