"""Apprise: more than a hundred services, from chat to text messages, by URLs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context

from duetime.channels.channel import Message, NotSent, Sent
from duetime.domain.duration import Duration, format_duration, parse_positive_duration
from duetime.domain.urls import hide_passwords
from duetime.errors import InvalidInput

try:
    import apprise
except ImportError as error:
    raise ImportError(
        "The Apprise channel requires an extra package: pip install 'duetime[apprise]'."
    ) from error

_said: ContextVar[list[str] | None] = ContextVar("apprise_said", default=None)
_SHOWN = 500


class Apprise:
    """Notifies the services at `urls`, or the one at the recipient's address.

    An address is used only if its scheme is in `schemas`: Apprise reaches private networks and
    local programs, too, so name only services whose addresses you may take from others.

    Apprise reports neither an id nor why it failed: every failure passes, and a repetition is a
    second notification.
    """

    def __init__(
        self,
        *urls: str,
        schemas: Collection[str] = (),
        name: str = "apprise",
        timeout: Duration = "30s",
        threads: int = 8,
    ) -> None:
        self.name = name
        if isinstance(schemas, str):
            raise InvalidInput(f"schemas= must be a list, such as schemas=[{schemas!r:.60}].")
        self._schemas = {schema.lower() for schema in schemas}
        self._timeout = parse_positive_duration(timeout, name="timeout")
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._urls = urls
        try:
            copy_context().run(_check, urls)
        except NotSent as error:
            raise InvalidInput(str(error)) from None

    async def send(self, message: Message) -> Sent:
        """Notify every service; one that fails fails the message."""
        urls = self._urls if message.address is None else (self._allow(message.address),)
        if not urls:
            raise NotSent("Neither the recipient nor the channel has a URL.", transient=False)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, "duetime-apprise")
        said: list[str] = []
        work = asyncio.get_running_loop().run_in_executor(
            self._executor, copy_context().run, _notify, urls, message.title, message.body, said
        )
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                accepted = await work
        except TimeoutError:
            raise NotSent(
                f"Apprise did not finish within {format_duration(self._timeout)}. The notification "
                "may still be sent.",
                transient=True,
            ) from None
        if not accepted:
            reason = hide_passwords(" ".join("; ".join(said).split()))[:_SHOWN].rstrip(". ")
            raise NotSent(
                f"Apprise could not send the notification: {reason or 'it gave no reason'}.",
                transient=True,
            )
        return Sent()

    async def close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def _allow(self, address: str) -> str:
        schema = address.partition("://")[0].lower()
        if schema not in self._schemas:
            raise NotSent(
                f"Addresses with the schema {schema[:40]!r} are not allowed. Add it to schemas= to "
                "allow it.",
                transient=False,
            )
        return address


class _Listener(logging.Filter):
    """Keeps what is logged during our calls, and keeps it out of the logs.

    Apprise logs URLs with the tokens in them, and so does the HTTP library below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        said = _said.get()
        if said is None:
            return True
        if record.name == "apprise" and record.levelno >= logging.WARNING:
            said.append(record.getMessage())
        return False


# A logger keeps one filter once, however often it is added.
_listener = _Listener()
for _name in ("apprise", "urllib3.connectionpool"):
    logging.getLogger(_name).addFilter(_listener)


def _notify(urls: Iterable[str], title: str, body: str, said: list[str]) -> bool:
    """Runs in a thread, in a context of its own."""
    _said.set(said)
    services = _read(urls)
    return bool(services.notify(body=body, title=title, body_format=apprise.NotifyFormat.TEXT))


def _check(urls: Iterable[str]) -> None:
    """Runs in a context of its own."""
    _said.set([])
    _read(urls)


def _read(urls: Iterable[str]) -> apprise.Apprise:
    # One after the other, in this thread, so that what is logged belongs to this call.
    services = apprise.Apprise(asset=apprise.AppriseAsset(async_mode=False))
    for url in urls:
        # In a list: a plain text may hold several URLs, past the check of the first one's scheme.
        if not services.add([url]):
            # Not the URL itself: it holds tokens.
            schema = url.partition("://")[0][:40]
            raise NotSent(f"Apprise cannot parse the {schema!r} URL.", transient=False)
    return services
