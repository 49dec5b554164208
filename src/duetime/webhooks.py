"""How a job of a webhook task runs: it is posted to a service, whose answer is its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from duetime.channels.channel import NotSent, encode
from duetime.channels.signed_post import PASSING, Answer, SignedPost
from duetime.domain.duration import format_time
from duetime.domain.jobs.answer import read_outcome
from duetime.domain.jobs.outcome import Discard, Outcome, Retry
from duetime.domain.keys import make_job_key
from duetime.domain.reasons import Reason
from duetime.engine.context import Context
from duetime.errors import InvalidInput
from duetime.telemetry.traces import current_trace

EVENT = "job.run"
"""The type of the event that a service receives."""


def make_handler(
    requests: SignedPost, url: str, *, secrets: Sequence[str], timeout: timedelta
) -> Callable[..., Awaitable[Outcome]]:
    """Return the handler of a webhook task. `timeout` is for jobs that have none of their own."""
    target = requests.read_url(url)

    async def call_service(context: Context, **_arguments: Any) -> Outcome:
        """Post the job to the service, and return the outcome that it answers."""
        # The worker cancels the call when the job's own timeout has passed.
        limit = context.job.timeout or timeout
        try:
            answer = await requests.post(
                target,
                encode(_describe_job(context)),
                key=make_job_key(context.installation, context.job.task, context.id, None),
                secrets=secrets,
                timeout=limit,
                read_timeout=limit,
                headers={
                    "duetime-attempt": str(context.attempt),
                    "duetime-token": str(context.token),
                    **(current_trace() or {}),
                },
            )
        except NotSent as error:
            reason = Reason.of("webhook_failed", text=str(error))
            return Retry(reason) if error.transient else Discard(reason)
        return _judge(answer, requests)

    return call_service


def _describe_job(context: Context) -> dict[str, Any]:
    job = context.job
    due_at = format_time(context.tick)
    return {
        "type": EVENT,
        "timestamp": due_at,
        "data": {
            "job_id": job.id,
            "task": job.task,
            "args": context.args,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "token": job.token,
            "key": context.key,
            "queue": job.queue,
            "due_at": due_at,
            "schedule": context.schedule,
        },
    }


def _judge(answer: Answer, requests: SignedPost) -> Outcome:
    status, host = answer.status, answer.host
    if 200 <= status < 300:
        return _read(answer)
    if 300 <= status < 400:
        return Discard(
            _failed(
                f"{host} answered {status}, a redirect. Redirects are not followed: use the URL "
                "that it leads to."
            )
        )
    reason = Reason.of("webhook_answered", host=host, status=status, text=answer.excerpt or None)
    if status in PASSING or status >= 500:
        return Retry(reason, after=requests.retry_after(answer))
    return Discard(reason)


def _read(answer: Answer) -> Outcome:
    """What a service means is not guessed: it gets the job again if its answer is not understood,
    and recognizes it by its id."""
    if not answer.is_whole:
        return Retry(
            _failed(
                f"{answer.host} answered {answer.status}, but its answer was cut off or is too "
                "large."
            )
        )
    try:
        return read_outcome(answer.body)
    except InvalidInput as error:
        return Retry(_failed(f"{answer.host} answered an outcome that is not valid: {error}"))


def _failed(text: str) -> Reason:
    return Reason.of("webhook_failed", text=text)
