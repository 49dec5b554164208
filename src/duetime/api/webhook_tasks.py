"""`app.webhook_task`: a task whose jobs another service runs, in whatever language."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from duetime.api.tasks import AsyncTask
from duetime.domain.checks import check_task_not_reserved
from duetime.domain.duration import Duration, parse_duration, parse_positive_duration
from duetime.domain.jobs.job import DEFAULT_PRIORITY, DEFAULT_QUEUE
from duetime.domain.jobs.retry import RetryPolicy
from duetime.errors import InvalidInput

if TYPE_CHECKING:
    import ssl

    from duetime.app import Duetime
    from duetime.channels.signed_post import SignedPost

_MAX_ANSWER_BYTES = 256 * 1024


class WebhookTaskRegistry:
    """`app.webhook_task`: `charge = app.webhook_task("billing.charge", url="https://…", …)`."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._requests: dict[str, SignedPost] = {}

    def __call__(
        self,
        name: str,
        *,
        url: str,
        secrets: Sequence[str],
        headers: Mapping[str, str] | None = None,
        allow_private: bool = False,
        allow: Iterable[str] = (),
        ports: Collection[int] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_retry_after: Duration = "1h",
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        max_attempts: int | None = None,
        timeout: Duration = "30s",
        expires: Duration | None = None,
        keep_result: bool = True,
    ) -> AsyncTask[..., Any]:
        """Register a task whose jobs are posted to `url`, signed with `secrets`.

        Its arguments are any JSON object: `await charge.enqueue(order=7, cents=1999)`. The service
        answers with the outcome. `headers` to `max_retry_after` are those of a `Webhook`, the other
        options those of a task. `timeout`: how long the service may take to answer.
        """
        from duetime.channels.channel import NotSent
        from duetime.channels.guard import Guard
        from duetime.channels.signed_post import SignedPost, read_secrets
        from duetime.webhooks import make_handler

        check_task_not_reserved(name)
        read_secrets(secrets)
        requests = SignedPost(
            guard=Guard(allow_private=allow_private, allow=allow, ports=ports),
            headers=headers,
            max_answer_bytes=_MAX_ANSWER_BYTES,
            max_retry_after=parse_duration(max_retry_after, name="max_retry_after"),
            ssl_context=ssl_context,
        )
        try:
            handler = make_handler(
                requests,
                url,
                secrets=tuple(secrets),
                timeout=parse_positive_duration(timeout, name="timeout"),
            )
        except NotSent as error:
            raise InvalidInput(f"Task {name!r}: {error}") from None
        task = self._app.task.register(
            handler,
            name=name,
            queue=queue,
            priority=priority,
            retry=retry,
            max_attempts=max_attempts,
            timeout=timeout,
            expires=expires,
            keep_result=keep_result,
            any_arguments=True,
            registered=("webhook task", url),
        )
        self._requests[name] = requests
        return cast("AsyncTask[..., Any]", task)

    async def close(self) -> None:
        """Close this event loop's connections to services."""
        for requests in self._requests.values():
            await requests.close()
