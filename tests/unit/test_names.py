"""Names that nobody can see, and names that are taken."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from duetime import Duetime
from duetime.channels.console import Console
from duetime.domain.access.token import check_token_name
from duetime.domain.checks import check_name, check_names
from duetime.domain.jobs.queue import make_limits
from duetime.domain.reminders.recipient import make_recipient
from duetime.domain.reminders.tracking import make_track
from duetime.domain.schedules.schedule import make_policy
from duetime.errors import InvalidInput

BLANKS = {
    "spaces": "   ",
    "a tab": "\t",
    "a new line": "\n",
    "a space that does not break": "\xa0",
    "a wide space": "\u3000",
}


@pytest.fixture
def app() -> Duetime:
    return Duetime("sqlite:///unused.db")


NAMED: dict[str, Callable[[Duetime, str], Any]] = {
    "task": lambda app, name: app.task(name=name)(_send),
    "queue of a task": lambda app, name: app.task(queue=name)(_send),
    "queue of a job": lambda app, name: app.task(_send).using(queue=name),
    "key": lambda app, name: app.task(_send).using(key=name),
    "partition": lambda app, name: app.task(_send).using(partition=name),
    "queue with limits": lambda app, name: make_limits(name, running=1),
    "schedule": lambda app, name: app.schedules.define(name, "send", "@every 1h"),
    "declared schedule": lambda app, name: app.schedule("@every 1h", name=name)(app.task(_send)),
    "task of a schedule": lambda app, name: app.schedules.define("x", name, "@every 1h"),
    "schedule to come after": lambda app, name: make_policy({"after": name}),
    "subject": lambda app, name: app.subjects.define(name, due=None),
    "scope": lambda app, name: app.subjects.define("x", due=None, scope=name),
    "recipient of a subject": lambda app, name: app.subjects.define(
        "x", due=None, recipients=[name]
    ),
    "recipient": lambda app, name: make_recipient(name),
    "channel": lambda app, name: app.add_channel(Console(name=name)),
    "API token": lambda app, name: check_token_name(name),
    "tracked table": lambda app, name: make_track(name, id="id", due="due_at"),
}


def _send() -> None: ...


@pytest.mark.parametrize("what", NAMED)
def test_a_name_of_blanks_is_refused(app: Duetime, what: str) -> None:
    with pytest.raises(InvalidInput, match="at least one visible character"):
        NAMED[what](app, "  ")


@pytest.mark.parametrize("what", NAMED)
def test_an_empty_name_is_refused(app: Duetime, what: str) -> None:
    with pytest.raises(InvalidInput, match="must have 1 to 200 characters, got 0"):
        NAMED[what](app, "")


@pytest.mark.parametrize("blanks", BLANKS)
def test_every_kind_of_blank(blanks: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"The queue must have at least one visible character, got"
    ):
        check_name(BLANKS[blanks], what="queue")
    with pytest.raises(InvalidInput, match="at least one visible character"):
        check_names(["ann", BLANKS[blanks]], what="recipients", example="…")


def test_blanks_beside_letters_are_a_part_of_the_name() -> None:
    assert check_name(" invoice of Ann ", what="key") == " invoice of Ann "


def test_a_second_channel_of_one_name_is_refused(app: Duetime) -> None:
    first = Console(io.StringIO(), name="mail")
    app.add_channel(first)

    with pytest.raises(
        InvalidInput, match=r"The channel 'mail' is registered twice.* replace=True"
    ):
        app.add_channel(Console(io.StringIO(), name="mail"), rate="10/s")

    assert app._sender.channels["mail"].channel is first
    assert app._sender.channels["mail"].rate is None


def test_a_channel_may_be_added_again(app: Duetime) -> None:
    channel = Console(io.StringIO(), name="mail")
    app.add_channel(channel)
    app.add_channel(channel, tries=2)

    assert app._sender.channels["mail"].tries == 2


def test_a_channel_takes_the_place_of_another_if_told_so(app: Duetime) -> None:
    for name in ("mail", "letter"):
        app.add_channel(Console(io.StringIO(), name=name))
    fake = Console(io.StringIO(), name="mail")
    app.add_channel(fake, replace=True)

    assert list(app._sender.channels) == ["mail", "letter"]
    assert app._sender.channels["mail"].channel is fake


def test_apps_share_no_channels() -> None:
    for _ in range(2):
        Duetime("sqlite:///unused.db").add_channel(Console(io.StringIO()))


def test_a_second_task_of_one_name_is_refused(app: Duetime) -> None:
    def other() -> None: ...

    app.task(name="send")(_send)
    app.task(name="send")(_send)

    with pytest.raises(InvalidInput, match="The task 'send' is registered twice"):
        app.task(name="send")(other)


@pytest.mark.parametrize("name", [" mail", "mail ", "mail,sms"])
@pytest.mark.parametrize("what", [what for what in NAMED if what.startswith("queue")])
def test_queue_that_no_worker_could_name(app: Duetime, what: str, name: str) -> None:
    with pytest.raises(
        InvalidInput, match="must not contain commas, nor begin or end with a space"
    ):
        NAMED[what](app, name)
