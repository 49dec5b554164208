"""What sends reminders: handlers, channels, templates; and the receipts of providers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from duetime.domain.checks import check_actor, check_name, check_sought
from duetime.domain.duration import Duration, parse_positive_duration
from duetime.domain.jobs.retry import Exponential, check_max_attempts
from duetime.domain.keys import DIGEST_PREFIX
from duetime.errors import DeliveryNotFound, InvalidInput

if TYPE_CHECKING:
    from duetime.api.task_registry import TaskArguments
    from duetime.app import Duetime
    from duetime.channels.channel import Channel
    from duetime.domain.reminders.delivery import ReceiptStatus
    from duetime.domain.reminders.digest import Digest
    from duetime.domain.reminders.reminder import Reminder
    from duetime.engine.context import Context
    from duetime.storage.store import Dialect, Statements

ReminderHandler = TypeVar(
    "ReminderHandler",
    bound="Callable[[Reminder], Any] | Callable[[Reminder, Context], Any]",
)
DigestHandler = TypeVar(
    "DigestHandler",
    bound="Callable[[Digest], Any] | Callable[[Digest, Context], Any]",
)
_ONE_HANDLER = "An app can have only one. Register a function that calls both."


class Sending:
    """`app.on_reminder`, `app.add_channel`, `app.template` and their siblings."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    @overload
    def on_reminder(self, handler: ReminderHandler, /) -> ReminderHandler: ...
    @overload
    def on_reminder(
        self, **options: Unpack[TaskArguments]
    ) -> Callable[[ReminderHandler], ReminderHandler]: ...

    def on_reminder(self, *handler: Any, **options: Any) -> Any:
        """Register the function that sends reminders. It takes the `Reminder` and, if it has two
        parameters, the `Context`, and returns `Sent(external_id=…)`, `Retry`, `Snooze` or `Skip`.

        `@app.on_reminder`, or `@app.on_reminder(retry=…, timeout=…)` with the options of a task.
        """

        from duetime.api.handler_source import refuse_return_in_transaction
        from duetime.reminders.send_attempt import SendHandler

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            sends = SendHandler(function)
            refuse_return_in_transaction(
                function, sends.context_name, what="The @app.on_reminder handler"
            )
            self._app._registrations.add("@app.on_reminder handler", function, advice=_ONE_HANDLER)
            self._register_remind(**options)
            self._app._sender.handler = sends
            return function

        return register(*handler) if handler else register

    def on_digest(self, handler: DigestHandler) -> DigestHandler:
        """Register the function that sends digests. It takes the `Digest` and, if it has two
        parameters, the `Context`, and returns the same as that of `@app.on_reminder`.

        A digest has the reminders that waited because of their recipient's hourly limit.
        """
        from duetime.api.handler_source import refuse_return_in_transaction
        from duetime.reminders.send_attempt import SendHandler

        sends = SendHandler(handler)
        refuse_return_in_transaction(handler, sends.context_name, what="The @app.on_digest handler")
        self._app._registrations.add("@app.on_digest handler", handler, advice=_ONE_HANDLER)
        self._app._sender.digest_handler = sends
        return handler

    def add_channel(
        self,
        channel: Channel,
        *,
        tries: int | None = None,
        rate: str | None = None,
        retry_for: Duration | None = None,
        replace: bool = False,
        **options: Unpack[TaskArguments],
    ) -> None:
        """Send reminders through a channel; several are tried in the order in which they were
        added.

        A transient failure is retried until the reminder expires, or for a day if it does not.
        `retry_for`: at most this long. `tries`: at most this often; then the next channel is
        tried, by default after as many tries as a reminder has attempts. `rate`: the limit of
        messages over all workers, such as `"10/s"`. `replace`: replace the channel with the same
        name, for tests. The other options are a task's, for all reminders: give each once.
        """
        from duetime.domain.jobs.rate import parse_rate
        from duetime.reminders.send_attempt import ConfiguredChannel

        if not all(hasattr(channel, part) for part in ("name", "send", "close")):
            raise InvalidInput(
                "A channel must have a name, an async send(message) method and an async close() "
                f"method, got {channel!r:.100}."
            )
        name = check_name(channel.name, what="channel")
        configured = ConfiguredChannel(
            channel,
            None if tries is None else check_max_attempts(tries, name="tries"),
            None if rate is None else parse_rate(rate),
            None if retry_for is None else parse_positive_duration(retry_for, name="retry_for"),
        )
        self._app._registrations.add(
            f"channel {name!r}",
            channel,
            replace=replace,
            advice="Give one of them another name=, or pass replace=True.",
        )
        self._register_remind(replace=replace, **options)
        self._app._sender.channels[name] = configured

    def template(self, name: str, *, body: str, title: str | None = None) -> None:
        """Add a template that rules use by its name: `{"rule": "-1h", "template": "soon"}`.

        Raises `InvalidInput` with the line if it is not a template.
        """
        self._app._sender.messages.add(name, body=body, title=title)

    def template_folder(self, folder: str | Path) -> list[str]:
        """Add every `NAME.txt` of a folder as the template NAME; return their names.

        Its first line is the title, if an empty line follows; the rest is the body.
        """
        return self._app._sender.messages.add_folder(folder)

    def digest_template(self, name: str) -> None:
        """Use the template with this name for digests; it may be added later."""
        self._app._sender.messages.use_for_digests(name)

    async def receipt(
        self,
        external_id: str | None,
        status: ReceiptStatus,
        *,
        key: str | None = None,
        reason: str | None = None,
        channel: str | None = None,
        by: str = "provider",
        tx: Any = None,
    ) -> int:
        """Record what a provider reports later: `delivered`, `bounced`, `failed`, `acknowledged`.

        Returns how many deliveries changed: 0 if the receipt is a repeat, or is late. After
        `bounced` or `failed` the next channel is tried. `key`: the message's, if the provider
        echoes it. It finds a message even if its send is not recorded, because the provider was
        faster or its answer was lost; then that channel is not tried again. Raises
        `DeliveryNotFound`.
        """
        from duetime.domain.reminders.delivery import check_external_id, clean_error, read_receipt
        from duetime.storage.reminders.receipts import ReceiptStatements

        if external_id is not None:
            external_id = check_external_id(
                external_id, otherwise="If the provider has none, give None, and key=."
            )
        elif key is None:
            raise InvalidInput(
                "A receipt must identify its message: give the provider's id, or key=."
            )
        if key is not None and (not isinstance(key, str) or not key):
            raise InvalidInput(
                "key must be the key of the message, such as reminder.key or message.key, got "
                f"{key!r:.60}."
            )
        reported = read_receipt(status)
        actor = check_actor(by)
        why = None if reason is None else clean_error(reason)
        if channel is not None:
            check_sought(channel, what="channel")

        def record(dialect: Dialect) -> Statements:
            statements = ReceiptStatements(dialect, self._enqueue_follow_up)
            try:
                if external_id is not None:
                    return (
                        yield from statements.receipt(
                            external_id, reported, reason=why, channel=channel, actor=actor
                        )
                    )
            except DeliveryNotFound:
                if key is None:
                    raise
            assert key is not None
            return (
                yield from statements.receipt_by_key(
                    key, reported, external_id=external_id, reason=why, channel=channel,
                    only_channel=self._only_channel(key), actor=actor,
                )
            )  # fmt: skip

        changed: int = await self._app._perform(record, tx)
        return changed

    def _enqueue_follow_up(self, reminder: Reminder) -> Statements:
        """Enqueue the job that escalates a reminder, in the transaction that records it as sent."""
        job = self._app._sender.follow_up(reminder)
        if job is not None:
            yield from self._app._unopened().enqueue_in([job])

    def _only_channel(self, key: str) -> str | None:
        """The channel that a message with this key went through, if there is only one."""
        from duetime.domain.reminders.delivery import HANDLER

        sender = self._app._sender
        handler = sender.digest_handler if key.startswith(DIGEST_PREFIX) else sender.handler
        names = [HANDLER] if handler else list(sender.channels)
        return names[0] if len(names) == 1 else None

    def _register_remind(self, *, replace: bool = False, **options: Any) -> None:
        from duetime.domain.reminders.digest import DIGEST_TASK
        from duetime.domain.reminders.reminder import ESCALATE_TASK, REMIND_TASK

        sender = self._app._sender
        for name, value in options.items():
            self._app._registrations.add(
                f"option {name}= of reminders",
                value,
                replace=replace,
                advice="It applies to all reminders. Set it only once.",
            )
        # Those of an earlier channel hold on.
        sender.options |= options
        own = sender.options | {"overrides_jobs": True}
        self._app.task.register(sender.remind, name=REMIND_TASK, **own)
        self._app.task.register(sender.digest, name=DIGEST_TASK, **own)
        lane = {n: value for n, value in sender.options.items() if n in ("queue", "priority")}
        patient = Exponential("1s", max="1m", max_attempts=100)
        sender.escalation = self._app.task.register(
            sender.escalate, name=ESCALATE_TASK, retry=patient, **lane
        )
