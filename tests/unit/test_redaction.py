"""What people are shown has no secrets in it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest

from duetime import Duetime, JobInfo, JobState, Page
from duetime.domain.jobs.job import AttemptInfo
from duetime.domain.jobs.log_lines import CapturedLog, LogLine
from duetime.domain.redaction import DEFAULT_REDACT_NAMES, REDACTED, Redaction
from duetime.errors import InvalidInput

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DEFAULT = Redaction(DEFAULT_REDACT_NAMES)


def job(**fields: Any) -> JobInfo:
    nothing: dict[str, Any] = dict.fromkeys(JobInfo.__struct_fields__)
    plain = {"id": 1, "task": "pay", "queue": "q", "state": JobState.DEAD, "history": ()}
    return JobInfo(**(nothing | plain | fields))


@pytest.mark.parametrize(
    "name",
    [
        "password", "Password", "PASSWORD", "smtp_password", "smtpPassword", "new-password",
        "token", "accessToken", "ACCESS_TOKEN", "x-api-key", "apiKey", "APIKEY", "Authorization",
        "client_secret", "private_key", "Set-Cookie", "card_number", "DBPassword",
    ],
)  # fmt: skip
def test_a_value_of_such_a_name_is_hidden(name: str) -> None:
    assert DEFAULT.data({"a": [{name: {"deep": 1}}]}) == {"a": [{name: REDACTED}]}


@pytest.mark.parametrize(
    "name", ["secretary", "tokens_used", "keyboard", "pass", "author", "", "7"]
)
def test_other_names_are_shown(name: str) -> None:
    assert DEFAULT.data({name: "shown"}) == {name: "shown"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2 for ann", "password=[redacted] for ann"),
        ("{'api_key': 'abc def', 'user': 'ann'}", "{'api_key': [redacted], 'user': 'ann'}"),
        ('{"accessToken":"abc"}', '{"accessToken":[redacted]}'),
        ("Authorization: Bearer abc.def", "Authorization: [redacted]"),
        ("no postgresql://ann:hunter2@db/shop", "no postgresql://…@db/shop"),
        ("?token=abc&page=2", "?token=[redacted]&page=2"),
        ("the token is missing", "the token is missing"),
    ],
)
def test_secrets_in_texts_are_hidden(text: str, shown: str) -> None:
    assert DEFAULT.text(text) == shown


@pytest.mark.parametrize("text", ["a" * 50_000, "token" * 10_000, "token=" * 10_000, '"' * 50_000])
def test_no_text_takes_long(text: str) -> None:
    began = time.monotonic()
    DEFAULT.text(text)

    assert time.monotonic() - began < 1


def test_all_of_a_job_is_hidden_and_the_job_itself_stays_as_it_is() -> None:
    line = LogLine(NOW, "INFO", "shop", "token=abc")
    attempt = AttemptInfo(
        token=1, attempt=1, worker=None, outcome="dead", claimed_at=None, started_at=None,
        finished_at=NOW, error_code=None, error="password=x", facts=None,
        traceback="KeyError: 'token=abc'", result={"secret": 1}, log=CapturedLog((line,)),
    )  # fmt: skip
    real = job(
        args={"password": "x"}, error="password=x", progress={"token": 1}, history=(attempt,)
    )
    shown = DEFAULT.record(real)
    [past] = shown.history
    assert past.log is not None

    assert shown.args == {"password": REDACTED}
    assert shown.progress == {"token": REDACTED}
    assert shown.error == past.error == "password=[redacted]"
    assert past.result == {"secret": REDACTED}
    assert "abc" not in msgspec.json.encode(shown).decode()
    assert past.token == 1, "the fencing token is no secret"
    assert real.args == {"password": "x"}


def test_a_page_keeps_its_cursor() -> None:
    page = Page([job(args={"token": 1})], next="cursor", examined=7)
    shown = DEFAULT.record(page)

    assert (shown.next, shown.examined, shown[0].args) == ("cursor", 7, {"token": REDACTED})
    assert page[0].args == {"token": 1}


def test_a_hook_decides_what_else_is_shown() -> None:
    app = Duetime(redact_names="pin")

    @app.redact
    def hide(field: str, value: Any, task: str | None) -> Any:
        return "hidden" if (field, task) == ("result", "pay") else value

    attempt = AttemptInfo(
        token=1, attempt=1, worker=None, outcome="completed", claimed_at=None, started_at=None,
        finished_at=NOW, error_code=None, error=None, facts=None, traceback=None, result={"a": 1},
    )  # fmt: skip
    shown = app.redacted(job(args={"pin": 1, "password": "x"}, history=(attempt,)))

    assert shown.args == {"pin": REDACTED, "password": "x"}
    assert shown.history[0].result == "hidden"


def test_a_hook_that_fails_shows_nothing() -> None:
    app = Duetime()

    @app.redact
    def hide(field: str, value: Any, task: str | None) -> Any:
        raise LookupError(value)

    shown = app.redacted(job(args={"a": "x"})).args

    assert shown == f"{REDACTED}: @app.redact failed with LookupError"
    with pytest.raises(InvalidInput, match="the field, the value and the task"):
        app.redact(lambda value: value)  # type: ignore[type-var]


def test_edited_arguments_get_back_what_was_hidden() -> None:
    real = {"password": "x", "order": 7, "url": "amqp://a:b@c", "lines": [{"token": 1}]}
    shown = DEFAULT.data(real)

    assert DEFAULT.restore(shown, real) == real
    assert DEFAULT.restore(shown | {"order": 8}, real) == real | {"order": 8}
    assert DEFAULT.restore(shown | {"password": "new"}, real) == real | {"password": "new"}


def test_data_that_is_nested_too_deeply_is_hidden() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    assert DEFAULT.data(deep) == REDACTED


def test_records_within_a_record_and_in_named_tuples_are_redacted() -> None:
    class Inner(msgspec.Struct):
        args: dict[str, str]

    class Outer(msgspec.Struct):
        job: Inner
        jobs: list[Inner]

    class Pair(NamedTuple):
        first: Inner
        number: int

    secret = Inner({"password": "hunter2"})
    shown = DEFAULT.record([Pair(secret, 1), Outer(secret, [secret])])

    assert isinstance(shown[0], Pair)
    assert shown[0].number == 1
    assert "hunter2" not in repr(shown)
    assert secret.args == {"password": "hunter2"}
