"""Spans of OpenTelemetry, made by its own SDK."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from duetime import Constant, Duetime, Flow, Snooze, make_secret
from duetime.telemetry import traces
from tests.channels.http_server import HttpServer
from tests.conftest import Backend, query
from tests.waiting import until_true


class Spans:
    """What was exported."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        found = self._exporter.get_finished_spans()
        return sorted(
            (span for span in found if span.name == name), key=lambda span: span.start_time or 0
        )

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """A tracer provider for this test: the API lets a process set it once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(api, "_TRACER_PROVIDER", provider)
    yield Spans(exporter)
    provider.shutdown()


def links_to(span: ReadableSpan, other: ReadableSpan) -> bool:
    assert other.context is not None
    return [(link.context.trace_id, link.context.span_id) for link in span.links] == [
        (other.context.trace_id, other.context.span_id)
    ]


def is_inside(span: ReadableSpan, other: ReadableSpan) -> bool:
    assert span.parent is not None
    assert other.context is not None
    return span.parent.span_id == other.context.span_id


async def test_attempt_is_linked_to_the_enqueue(app: Duetime, spans: Spans) -> None:
    @app.task(name="pay", queue="money")
    async def pay() -> None: ...

    with api.get_tracer("shop").start_as_current_span("request"):
        job = await pay.enqueue()
    async with app.worker(queues=["money"], name="w1"):
        await job.result()
    enqueued, ran = spans.one("enqueue pay"), spans.one("run pay")

    assert is_inside(enqueued, spans.one("request"))
    assert enqueued.kind is SpanKind.PRODUCER
    assert ran.kind is SpanKind.CONSUMER
    assert ran.parent is None
    assert links_to(ran, enqueued)
    assert enqueued.attributes is not None
    assert enqueued.attributes["messaging.message.id"] == str(job.id)
    assert ran.attributes is not None
    assert dict(ran.attributes) == {
        "messaging.system": "duetime",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "money",
        "messaging.message.id": str(job.id),
        "duetime.task": "pay",
        "duetime.attempt": 1,
        "duetime.worker": "w1",
        "duetime.outcome": "completed",
    }


async def test_each_attempt_has_a_span_and_a_failed_one_its_error(
    app: Duetime, spans: Spans
) -> None:
    attempts: list[int] = []

    @app.task(name="pay", retry=Constant("0s", max_attempts=3))
    async def pay() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("the bank does not answer")
        if len(attempts) == 2:
            raise Snooze("0s")

    async with app.worker():
        await (await pay.enqueue()).result()
    failed, snoozed, completed = spans.named("run pay")

    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "the bank does not answer"
    assert [event.name for event in failed.events] == ["exception"]
    assert snoozed.status.status_code is StatusCode.UNSET
    assert completed.status.status_code is StatusCode.UNSET
    enqueued = spans.one("enqueue pay")
    assert all(links_to(span, enqueued) for span in (failed, snoozed, completed))


async def test_handlers_run_inside_the_span(app: Duetime, spans: Spans) -> None:
    tracer = api.get_tracer("shop")

    @app.task(name="inner")
    async def inner() -> None: ...

    @app.task(name="on_loop")
    async def on_loop() -> None:
        with tracer.start_as_current_span("query of on_loop"):
            await asyncio.sleep(0)
        await inner.enqueue()

    @app.task(name="in_thread")
    def in_thread() -> None:
        with tracer.start_as_current_span("query of in_thread"):
            inner.enqueue_sync()

    async with app.worker():
        for task in (on_loop, in_thread):
            await (await task.enqueue()).result()
        await until_true(lambda: len(spans.named("run inner")) == 2)
    from_loop, from_thread = spans.named("enqueue inner")
    ran = spans.named("run inner")

    assert is_inside(spans.one("query of on_loop"), spans.one("run on_loop"))
    assert is_inside(spans.one("query of in_thread"), spans.one("run in_thread"))
    assert is_inside(from_loop, spans.one("run on_loop"))
    assert is_inside(from_thread, spans.one("query of in_thread"))
    assert {links_to(ran[0], from_loop), links_to(ran[1], from_loop)} == {True, False}


async def test_span_does_not_reach_the_next_job_of_a_runner(app: Duetime, spans: Spans) -> None:
    active: list[bool] = []

    @app.task(name="pay")
    async def pay() -> None:
        active.append(api.get_current_span().get_span_context().is_valid)

    jobs = await app.enqueue_many([pay.job(), pay.job(), pay.job()])
    async with app.worker(concurrency=1):
        for job in jobs:
            await job.result()
    ran = spans.named("run pay")
    enqueued = spans.one("enqueue pay")

    assert active == [True] * 3
    assert [span.parent for span in ran] == [None] * 3
    assert all(links_to(span, enqueued) for span in ran)
    assert enqueued.attributes is not None
    assert enqueued.attributes["messaging.batch.message_count"] == 3


async def test_steps_of_a_flow_are_inside_the_span_of_the_run(app: Duetime, spans: Spans) -> None:
    async def reserve() -> str:
        return "r1"

    def charge() -> None:
        with api.get_tracer("shop").start_as_current_span("bank"):
            pass

    @app.task(name="mail")
    async def mail() -> None: ...

    @app.flow(name="order")
    async def order(flow: Flow) -> str:
        reserved = await flow.step(reserve)
        await flow.step(charge)
        await flow.step(mail, on="default")
        return reserved

    async with app.worker():
        run = await order.start()
        assert await run.result() == "r1"
    first, *_ = ran = spans.named("run order")

    assert all(links_to(span, spans.one("enqueue order")) for span in ran)
    assert is_inside(spans.one("step reserve"), first)
    assert is_inside(spans.one("step charge"), first)
    assert is_inside(spans.one("bank"), spans.one("step charge"))
    assert links_to(spans.one("run mail"), first)


async def test_steps_of_a_graph_are_linked_to_the_start_of_the_run(
    app: Duetime, spans: Spans
) -> None:
    graph = app.graph("onboard")

    @graph.step
    async def first() -> int:
        return 1

    @graph.step
    async def second(first: int) -> int:
        return first + 1

    async with app.worker():
        await (await graph.start()).result()
    started = spans.one("enqueue onboard")

    assert links_to(spans.one("run onboard.first"), started)
    assert links_to(spans.one("run onboard.second"), started)


async def test_without_a_provider_nothing_is_stored(app: Duetime, backend: Backend) -> None:
    @app.task(name="pay")
    async def pay() -> None: ...

    await pay.enqueue()

    assert traces.find_tracer() is None
    assert await asyncio.to_thread(query, backend, "select trace from duetime.job") == [(None,)]


async def test_stored_trace_that_is_no_trace_does_no_harm(
    app: Duetime, backend: Backend, spans: Spans
) -> None:
    @app.task(name="pay")
    async def pay() -> None: ...

    jobs = await app.enqueue_many([pay.job() for _ in range(3)])
    for job, stored in zip(jobs, ('{"traceparent": "00-zz"}', "[1]", '{"x": 1}'), strict=True):
        await asyncio.to_thread(
            query, backend, f"update duetime.job set trace = '{stored}' where id = {job.id}"
        )
    async with app.worker():
        for job in jobs:
            await job.result()

    assert [list(span.links) for span in spans.named("run pay")] == [[], [], []]


async def test_trace_of_a_caller_goes_on(app: Duetime, spans: Spans) -> None:
    @app.task(name="pay")
    async def pay() -> None: ...

    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with traces.trace_request({"traceparent": caller}):
        await pay.enqueue()
    with traces.trace_request({}):
        await pay.enqueue()
    inside, outside = spans.named("enqueue pay")

    assert inside.parent is not None
    assert f"{inside.parent.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert outside.parent is None


def test_without_opentelemetry_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)

    assert traces.find_tracer() is None
    assert traces.current_trace() is None
    assert "opentelemetry" not in sys.modules


async def test_the_service_of_a_webhook_task_can_continue_the_trace(
    app: Duetime, spans: Spans
) -> None:
    async with HttpServer().listening() as server:
        charge = app.webhook_task(
            "charge", url=server.url, secrets=[make_secret()], allow_private=True
        )
        async with app.worker():
            await (await charge.enqueue(order=7)).result()
    ran = spans.one("run charge")

    assert ran.context is not None
    version, trace, span, _ = server.requests[0].headers["traceparent"].split("-")
    assert (version, int(trace, 16), int(span, 16)) == (
        "00",
        ran.context.trace_id,
        ran.context.span_id,
    )
