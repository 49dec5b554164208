"""Spans of OpenTelemetry: one for each enqueue, and one for each attempt, linked to it.

An application that has set up a tracer provider gets them. In every other one, nothing of
OpenTelemetry is imported or called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, Enqueued, FinishedJob, NewJob

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Trace = dict[str, str]
"""What is stored with a job: `traceparent` and, if there is one, `tracestate`, as W3C defines."""

_FAILED = frozenset({AttemptOutcome.RETRIED, AttemptOutcome.DEAD})
_decode = msgspec.json.Decoder(Trace).decode


def find_tracer() -> Tracer | None:
    """Return the tracer; None if the application has not set up a tracer provider."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider):
        return None
    tracer: Tracer = provider.get_tracer("duetime")
    return tracer


def current_trace() -> Trace | None:
    """Return what to store with a job that is made inside the active span; None if none is."""
    if find_tracer() is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    trace: Trace = {}
    # Not by the application's own propagators: baggage may be private, and the database keeps it.
    TraceContextTextMapPropagator().inject(trace)
    return trace or None


def read_trace(stored: str | None) -> Trace | None:
    """Return what is stored with a job. Anybody may have stored anything."""
    if stored is None:
        return None
    try:
        return _decode(stored)
    except msgspec.MsgspecError:
        return None


class Enqueueing:
    """The jobs of an enqueue, and its span."""

    def __init__(self, jobs: Sequence[NewJob], span: Span | None = None) -> None:
        self.jobs = jobs
        self._span = span

    def done(self, enqueued: Sequence[Enqueued]) -> None:
        if self._span is not None and len(enqueued) == 1:
            self._span.set_attribute("messaging.message.id", str(enqueued[0].job_id))
            self._span.set_attribute("duetime.action", enqueued[0].action)


def trace_enqueue(jobs: Sequence[NewJob]) -> AbstractContextManager[Enqueueing]:
    """A span around an enqueue. Its jobs carry it, unless they carry one already."""
    tracer = find_tracer()
    return nullcontext(Enqueueing(jobs)) if tracer is None else _trace_enqueue(tracer, jobs)


@contextmanager
def _trace_enqueue(tracer: Tracer, jobs: Sequence[NewJob]) -> Iterator[Enqueueing]:
    from opentelemetry.trace import SpanKind

    tasks, queues = {job.task for job in jobs}, {job.queue for job in jobs}
    attributes: dict[str, Any] = {
        "messaging.system": "duetime",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }
    if len(tasks) == 1:
        attributes["duetime.task"] = jobs[0].task
    if len(queues) == 1:
        attributes["messaging.destination.name"] = jobs[0].queue
    if len(jobs) > 1:
        attributes["messaging.batch.message_count"] = len(jobs)
    name = f"enqueue {jobs[0].task}" if len(tasks) == 1 else "enqueue jobs"
    with tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
        trace = current_trace()
        yield Enqueueing(
            [
                msgspec.structs.replace(job, trace=trace) if job.trace is None else job
                for job in jobs
            ],
            span,
        )


class Attempt:
    """The span of an attempt."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def ended(self, record: FinishedJob | None) -> None:
        """None: the attempt does not count."""
        from opentelemetry.trace import Status, StatusCode

        span = self._span
        if record is None:
            span.set_attribute("duetime.outcome", "given_back")
            return
        span.set_attribute("duetime.outcome", record.outcome.value)
        if record.outcome in _FAILED:
            if record.exception is not None:
                span.record_exception(record.exception)
            if record.error_code is not None:
                span.set_attribute("error.type", record.error_code)
            span.set_status(Status(StatusCode.ERROR, record.message))


@contextmanager
def trace_attempt(tracer: Tracer, job: ClaimedJob, worker: str) -> Iterator[Attempt]:
    """A span around an attempt, in a trace of its own: it may run days after its enqueue, and an
    enqueue may have made thousands of jobs. It is linked to the enqueue."""
    from opentelemetry import context
    from opentelemetry.trace import Link, SpanKind

    source = _span_context(read_trace(job.trace))
    attributes: dict[str, Any] = {
        "messaging.system": "duetime",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": job.queue,
        "messaging.message.id": str(job.id),
        "duetime.task": job.task,
        "duetime.attempt": job.attempt,
        "duetime.worker": worker,
    }
    with tracer.start_as_current_span(
        f"run {job.task}",
        context=context.Context(),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(source)] if source is not None else [],
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield Attempt(span)


def trace_step(name: str, *, seq: int, attempt: int) -> AbstractContextManager[object]:
    """A span around a step of a flow, inside that of the run's attempt."""
    tracer = find_tracer()
    if tracer is None:
        return nullcontext()
    attributes: dict[str, Any] = {
        "duetime.step": name,
        "duetime.seq": seq,
        "duetime.attempt": attempt,
    }
    return tracer.start_as_current_span(f"step {name}", attributes=attributes)


def trace_request(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """Continue the trace of a caller: what is enqueued inside belongs to it.

    If the web framework is instrumented, a span of its own is active, which has done so.
    """
    if "traceparent" not in headers or find_tracer() is None:
        return nullcontext()
    from opentelemetry import trace as api

    if api.get_current_span().get_span_context().is_valid:
        return nullcontext()
    return _trace_request(
        {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
    )


@contextmanager
def _trace_request(trace: Trace) -> Iterator[None]:
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(trace))
    try:
        yield
    finally:
        context.detach(token)


def _span_context(trace: Trace | None) -> Any:
    if not trace:
        return None
    from opentelemetry import trace as api
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found = api.get_current_span(TraceContextTextMapPropagator().extract(trace))
    source = found.get_span_context()
    return source if source.is_valid else None
