"""Webhook tasks: a service gets jobs as signed requests, and its answers are their outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import standardwebhooks

from duetime import Constant, Delays, Duetime, Flow, make_secret
from duetime.api.tasks import AsyncTask
from duetime.domain.jobs.job import JobInfo
from duetime.domain.reasons import describe_error
from duetime.errors import InvalidArguments, InvalidInput
from tests.channels.conftest import Certificate
from tests.channels.http_server import Answer, HttpServer, Request
from tests.channels.receivers import SECRET
from tests.conftest import Backend, query
from tests.waiting import until, until_true

START = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


def webhook_task(app: Duetime, url: str, **options: Any) -> AsyncTask[..., Any]:
    """A task whose service is on this machine."""
    options = {"secrets": [SECRET], "allow": ["127.0.0.1"], "retry": Constant("1m"), **options}
    return app.webhook_task("billing.charge", url=url, **options)


def by_case(answers: dict[str, Answer]) -> Callable[[Request], Answer]:
    """A service that answers each job as its argument `case` says."""
    return lambda request: answers[request.json["data"]["args"]["case"]]


def message_of(job: JobInfo) -> str | None:
    """What people read about the last attempt."""
    last = job.history[-1]
    return describe_error(last.error_code, last.facts, last.error)


async def run_cases(
    app: Duetime, http: HttpServer, answers: dict[str, Answer], **options: Any
) -> dict[str, JobInfo]:
    """Run a job for each answer once, and return the jobs."""
    charge = webhook_task(app, http.url, **options)
    http.answer = by_case(answers)
    async with app.testing(now=START) as world:
        jobs = {case: await charge.enqueue(case=case) for case in answers}
        await world.drain()
        return {case: await job.get() for case, job in jobs.items()}


# What is sent


async def test_the_service_gets_the_job(app: Duetime, http: HttpServer) -> None:
    charge = webhook_task(app, http.url, queue="billing", max_attempts=3)
    async with app.testing(now=START) as world:
        job = await charge.using(key="order-7").enqueue(order=7, items=[{"sku": "Ä", "price": 1.5}])
        await world.drain()
        info = await job.get()

    [request] = http.requests
    assert (request.method, request.path) == ("POST", "/hook")
    data = request.json["data"]
    assert request.json == {
        "type": "job.run",
        "timestamp": "2026-03-02T00:00:00Z",
        "data": {
            "job_id": job.id,
            "task": "billing.charge",
            "args": {"order": 7, "items": [{"sku": "Ä", "price": 1.5}]},
            "attempt": 1,
            "max_attempts": 3,
            "token": info.history[0].token,
            "key": data["key"],
            "queue": "billing",
            "due_at": "2026-03-02T00:00:00Z",
            "schedule": None,
        },
    }
    assert data["key"].startswith("dtj_")
    assert request.headers["duetime-attempt"] == "1"
    assert request.headers["duetime-token"] == str(info.history[0].token)
    assert info.state.value == "completed"


async def test_the_request_is_signed(app: Duetime, http: HttpServer) -> None:
    new, old = make_secret(), make_secret()
    charge = webhook_task(app, http.url, secrets=[new, old])
    async with app.testing(now=START) as world:
        await charge.enqueue(order=7)
        await world.drain()

    [request] = http.requests
    for secret in (new, old):
        assert standardwebhooks.Webhook(secret).verify(request.body, request.headers)


async def test_every_attempt_of_a_job_has_its_id_and_no_other_job_has_it(
    app: Duetime, http: HttpServer
) -> None:
    """Two jobs with one key are two jobs: a service that drops repeated ids must not drop one."""
    charge = webhook_task(app, http.url)
    http.answer = lambda request: Answer(500 if request.json["data"]["attempt"] == 1 else 200)
    async with app.testing(now=START) as world:
        for _ in range(2):
            await charge.using(key="home").enqueue(order=7)
            await world.advance("5m")

    ids = [request.headers["webhook-id"] for request in http.requests]
    attempts = [request.headers["duetime-attempt"] for request in http.requests]
    tokens = [int(request.headers["duetime-token"]) for request in http.requests]
    assert ids == [ids[0], ids[0], ids[2], ids[2]]
    assert ids[0] != ids[2]
    assert attempts == ["1", "2", "1", "2"]
    assert tokens == sorted(set(tokens))


async def test_a_scheduled_run_names_its_schedule_and_its_tick(
    app: Duetime, http: HttpServer
) -> None:
    charge = webhook_task(app, http.url)
    async with app.testing(now=START) as world:
        await app.schedules.put("nightly", charge, "0 3 * * *", tz="UTC", args={"all": True})
        await world.advance("4h")

    [request] = http.requests
    data = request.json["data"]
    assert (data["schedule"], data["args"]) == ("nightly", {"all": True})
    assert data["due_at"] == request.json["timestamp"] == "2026-03-02T03:00:00Z"


async def test_arguments_may_have_any_name(app: Duetime, http: HttpServer) -> None:
    names = {"context": 1, "self": 2, "running": 3, "a b": 4, "": 5, "function": 6}
    seen: list[Any] = []

    @app.middleware
    async def see(ctx: Any, call_next: Any) -> Any:
        seen.append(ctx.args)
        return await call_next()

    charge = webhook_task(app, http.url)
    async with app.testing(now=START) as world:
        await charge.enqueue(**names)
        await world.assert_enqueued(charge, args={"a b": 4})
        await world.assert_not_enqueued(charge, args={"other": 4})
        await world.drain()

    assert http.requests[0].json["data"]["args"] == names
    assert seen == [names]


async def test_a_job_from_sql_is_sent(app: Duetime, backend: Backend, http: HttpServer) -> None:
    if not backend.is_postgres:
        pytest.skip("SQL functions exist on PostgreSQL only")
    webhook_task(app, http.url)
    query(backend, """select duetime.enqueue('billing.charge', '{"order": 7}')""")

    async with app.worker():
        await until_true(lambda: http.requests)

    assert http.requests[0].json["data"]["args"] == {"order": 7}


# What is answered


def outcome(body: str, status: int = 200) -> Answer:
    return Answer(status, {"content-type": "application/json"}, body.encode())


ANSWERS = {
    "empty": (Answer(204), "completed", None, None),
    "page": (Answer(200, body=b"<p>OK</p>"), "completed", None, None),
    "plain JSON": (outcome('{"id": 7}'), "completed", None, None),
    "completed": (outcome('{"outcome": "completed"}', 202), "completed", None, None),
    "result": (outcome('{"outcome": "completed", "result": [1, "é"]}'), "completed", None, None),
    "retry": (
        outcome('{"outcome": "retry", "after": "5m", "reason": "the bank is closed"}'),
        "retrying",
        "the bank is closed",
        timedelta(minutes=5),
    ),
    "retry by policy": (
        outcome('{"outcome": "retry"}'),
        "retrying",
        "its handler requested a retry",
        timedelta(minutes=1),
    ),
    "snooze": (
        outcome('{"outcome": "snooze", "after": 7200, "reason": "not yet"}'),
        "pending",
        "not yet",
        timedelta(hours=2),
    ),
    "cancel": (
        outcome('{"outcome": "cancel", "reason": "refunded"}'),
        "cancelled",
        "refunded",
        None,
    ),
    "dead": (
        outcome('{"outcome": "dead", "reason": "no such card"}'),
        "dead",
        "no such card",
        None,
    ),
    "misspelled": (
        outcome('{"outcome": "retyr"}'),
        "retrying",
        (
            "127.0.0.1 answered an outcome that is not valid: Invalid enum value 'retyr' - at "
            "`$.outcome`. The outcome must be completed, retry, snooze, cancel or dead; after is a "
            "duration, and reason is text."
        ),
        timedelta(minutes=1),
    ),
    "snooze without time": (
        outcome('{"outcome": "snooze"}'),
        "retrying",
        '127.0.0.1 answered an outcome that is not valid: "snooze" requires "after", such as "5m".',
        timedelta(minutes=1),
    ),
    "no duration": (
        outcome('{"outcome": "retry", "after": "soon"}'),
        "retrying",
        (
            "127.0.0.1 answered an outcome that is not valid: after 'soon' is not a duration. "
            "Write numbers with units ms, s, m, h, d or w: '30s', '1h30m', '7d'."
        ),
        timedelta(minutes=1),
    ),
    "bad request": (
        Answer(400, body=b"order\n 7 is\x1b[31m unknown"),
        "dead",
        "127.0.0.1 answered 400: order 7 is[31m unknown",
        None,
    ),
    "not found": (Answer(404), "dead", "127.0.0.1 answered 404", None),
    "redirect": (
        Answer(302, {"location": "http://127.0.0.1:1/"}),
        "dead",
        (
            "127.0.0.1 answered 302, a redirect. Redirects are not followed: use the URL that it "
            "leads to."
        ),
        None,
    ),
    "too early": (Answer(425), "retrying", "127.0.0.1 answered 425", timedelta(minutes=1)),
    "too many": (
        Answer(429, {"retry-after": "90"}),
        "retrying",
        "127.0.0.1 answered 429",
        timedelta(seconds=90),
    ),
    "down": (
        Answer(503, {"retry-after": "999999"}, b"maintenance"),
        "retrying",
        "127.0.0.1 answered 503: maintenance",
        timedelta(hours=1),
    ),
    "broken": (Answer(500), "retrying", "127.0.0.1 answered 500", timedelta(minutes=1)),
}


async def test_the_answer_is_the_outcome(app: Duetime, http: HttpServer) -> None:
    answers = {case: answer for case, (answer, *_) in ANSWERS.items()}

    jobs = await run_cases(app, http, answers)

    def again(job: JobInfo) -> timedelta | None:
        waits = job.state.value in ("retrying", "pending")
        return job.run_at - START if waits and job.run_at is not None else None

    assert {case: (job.state.value, message_of(job), again(job)) for case, job in jobs.items()} == {
        case: tuple(expected) for case, (_, *expected) in ANSWERS.items()
    }
    assert jobs["result"].history[-1].result == [1, "é"]
    assert jobs["not found"].error_code == "webhook_answered"
    assert jobs["not found"].facts == {"host": "127.0.0.1", "status": 404}
    assert len(http.requests) == len(ANSWERS)


async def test_an_answer_that_does_not_end_is_not_a_completion(
    app: Duetime, http: HttpServer
) -> None:
    """It may have said anything: the service gets the job again."""
    endless = Answer(200, body=b" " * 300_000 + b'{"outcome": "dead"}')
    cut_off = Answer(200, {"content-length": "99"}, b"{", drip=0.0)

    jobs = await run_cases(app, http, {"endless": endless, "cut off": cut_off})

    for job in jobs.values():
        assert job.state.value == "retrying"
        assert "cut off or is too large" in str(message_of(job))


async def test_a_result_that_is_too_large_is_not_stored(app: Duetime, http: HttpServer) -> None:
    large = outcome('{"outcome": "completed", "result": "%s"}' % ("x" * 70_000))

    jobs = await run_cases(app, http, {"large": large})

    assert jobs["large"].state.value == "completed"
    assert jobs["large"].history[-1].error_code == "result_not_stored"


async def test_a_service_that_is_away_is_called_again(app: Duetime, http: HttpServer) -> None:
    async with HttpServer().listening() as server:
        closed = server.url
    charge = webhook_task(app, closed, retry=Delays("0s", "30s"))
    async with app.testing(now=START) as world:
        job = await charge.enqueue(order=7)
        await world.drain()
        first = await job.get()
        await world.advance("1m")
        second = await job.get()

    assert (first.state.value, first.run_at) == ("retrying", START + timedelta(seconds=30))
    assert message_of(first) == "127.0.0.1: ConnectError: Connection refused."
    assert second.state.value == "dead"


async def test_a_service_that_does_not_answer_in_time_is_called_again(
    app: Duetime, http: HttpServer
) -> None:
    jobs = await run_cases(app, http, {"silent": Answer(wait=asyncio.Event())}, timeout="50ms")

    assert jobs["silent"].state.value == "retrying"
    assert jobs["silent"].error_code == "timed_out"


async def test_a_job_without_a_timeout_has_that_of_the_task(
    app: Duetime, backend: Backend, http: HttpServer
) -> None:
    """SQL made it before any worker knew the task."""
    if not backend.is_postgres:
        pytest.skip("SQL functions exist on PostgreSQL only")
    webhook_task(app, http.url, timeout="50ms")
    http.answer = lambda _: Answer(wait=asyncio.Event())
    [(job_id,)] = query(backend, "select duetime.enqueue('billing.charge', '{}')")

    async with app.worker():
        job = await attempted(app, job_id)

    assert message_of(job) == "127.0.0.1 did not answer within 50ms."


async def attempted(app: Duetime, job_id: int) -> JobInfo:
    """The job, once an attempt is recorded."""

    async def has_history() -> bool:
        return bool((await app.jobs.get(job_id)).history)

    await until(has_history)
    return await app.jobs.get(job_id)


async def test_cancelling_the_job_aborts_the_call(app: Duetime) -> None:
    server = HttpServer()
    async with server.listening():
        server.answer = lambda _: Answer(wait=asyncio.Event())
        charge = webhook_task(app, server.url, timeout="1h")
        async with app.worker():
            job = await charge.enqueue(order=7)
            await until_true(lambda: server.requests)
            await job.cancel()
            info = await attempted(app, job.id)

    assert info.state.value == "cancelled"


async def test_a_flow_waits_for_the_report_of_a_service(app: Duetime, http: HttpServer) -> None:
    render = webhook_task(app, http.url)

    @app.flow(name="film")
    async def film(flow: Flow, title: str) -> Any:
        await flow.step(render, title=title, run=flow.id, on="render")
        return await flow.wait_for("rendered", timeout="1d")

    async with app.testing(now=START) as world:
        run = await film.start(title="Metropolis")
        await world.drain()
        args = http.requests[0].json["data"]["args"]
        await app.flows[args["run"]].signal("rendered", {"minutes": 153})
        await world.drain()
        result = await run.result()

    assert args == {"title": "Metropolis", "run": run.id}
    assert result == {"minutes": 153}


# Where it may go, and what errors say


async def test_private_addresses_are_refused_unless_they_are_allowed(
    app: Duetime, http: HttpServer
) -> None:
    jobs = await run_cases(app, http, {"refused": Answer()}, allow=())

    assert jobs["refused"].state.value == "dead"
    assert "outside the public internet" in str(message_of(jobs["refused"]))
    assert http.connections == 0


async def test_errors_and_logs_show_neither_the_secret_nor_the_path(
    app: Duetime, http: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = http.url + "/hunter2?token=hunter2"
    charge = webhook_task(app, url, headers={"authorization": "hunter2"}, max_attempts=1)
    answers = iter([Answer(404), Answer(500), Answer(302, {"location": "http://x/"})])
    http.answer = lambda _: next(answers)
    async with app.testing(now=START) as world:
        for _ in range(3):
            await charge.enqueue(order=7)
        await world.drain()
        jobs = await app.jobs.list()
        infos = [await app.jobs.get(job.id) for job in jobs]

    assert http.requests[0].headers["authorization"] == "hunter2"
    shown = f"{infos} {charge!r} {charge.definition!r} {vars(app.webhook_task)} {caplog.text}"
    assert "hunter2" not in shown
    assert SECRET not in shown


async def test_the_certificate_is_checked(app: Duetime, certificate: Certificate) -> None:
    """It is one for hooks.example, not for this machine."""
    server = HttpServer()
    async with server.listening(certificate.server):
        url = server.url.replace("http:", "https:")
        charge = webhook_task(app, url, ssl_context=certificate.client)
        async with app.testing(now=START) as world:
            job = await charge.enqueue()
            await world.drain()
            info = await job.get()

    assert "CERTIFICATE_VERIFY_FAILED" in str(message_of(info))
    assert server.requests == []


# Registration


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "http://example.com:22/"}, "port 22"),
        ({"url": "ftp://example.com/"}, "https://"),
        ({"url": "https://ann:hunter2@example.com/"}, "user name"),
        ({"secrets": []}, "secret"),
        ({"secrets": SECRET}, "secret"),
        ({"headers": {"Duetime-Token": "1"}}, "cannot be overridden"),
        ({"timeout": 0}, "greater than zero"),
        ({"allow": "10.0.0.0/8"}, "list of hosts"),
    ],
)
def test_what_cannot_work_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"url": "https://example.com/", "secrets": [SECRET], **changes}

    with pytest.raises(InvalidInput, match=message) as refused:
        Duetime("sqlite:///:memory:").webhook_task("billing.charge", **options)

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["duetime.remind", ""])
def test_the_name_must_be_a_name_for_a_task(name: str) -> None:
    with pytest.raises(InvalidInput):
        Duetime("sqlite:///:memory:").webhook_task(name, url="https://x.example", secrets=[SECRET])


def test_a_name_is_taken_once() -> None:
    app = Duetime("sqlite:///:memory:")
    for _ in range(2):
        app.webhook_task("charge", url="https://x.example/", secrets=[SECRET])

    with pytest.raises(InvalidInput, match="registered twice"):
        app.webhook_task("charge", url="https://y.example/", secrets=[SECRET])


def test_arguments_have_names_and_are_json() -> None:
    charge = Duetime("sqlite:///:memory:").webhook_task(
        "charge", url="https://x.example/", secrets=[SECRET]
    )

    with pytest.raises(InvalidArguments, match="any arguments by name"):
        charge.job(7)
    with pytest.raises(InvalidArguments, match="cannot be encoded as JSON"):
        charge.job(order=object())
