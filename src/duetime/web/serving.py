"""Runs the service with uvicorn, beside a worker in the same process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AsyncExitStack, contextmanager
from ipaddress import ip_network
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from duetime.errors import SettingsError
from duetime.web.access import LoginLink
from duetime.web.security import LOOPBACK, is_loopback
from duetime.web.service import PARTS, Part, make_service

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.engine.worker import Worker

_STOP_SECONDS = 5
_MOST_SIGNALS = 2


async def serve(
    app: Duetime,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    parts: Collection[Part] = PARTS,
    worker: bool = True,
    allowed_hosts: Collection[str] = (),
    proxies: Collection[str] = (),
    read_only: bool = False,
    greet: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until the process is asked to stop. `greet` is called with the address to open.

    `proxies`: addresses or networks of reverse proxies, whose `X-Forwarded-For` and
    `X-Forwarded-Proto` are believed.
    """
    _check_proxies(proxies)
    await _check_reach(app, host, allowed_hosts)
    idle, lifetime = app.settings.session_idle, app.settings.session_lifetime
    link = LoginLink(idle=idle, lifetime=lifetime) if is_loopback(host) else None
    service = make_service(
        app,
        parts=parts,
        link=link,
        allowed_hosts={*LOOPBACK, host, *allowed_hosts},
        read_only=read_only,
    )
    with listen(host, port) as listening:
        config = uvicorn.Config(
            service,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            # The service has nothing to start or stop. After a second signal uvicorn would cancel
            # the wait for that, and log a traceback.
            lifespan="off",
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        server = _Server(config)
        async with AsyncExitStack() as stack:
            if worker:
                server.worker = await stack.enter_async_context(app.worker())
            else:
                await app.store()
            with server.stopped_by_signals():
                greet(_address(listening, link))
                await server.serve(sockets=[listening])
                await stack.aclose()


class _Server(uvicorn.Server):
    """Stops as a worker's process does. uvicorn itself raises a signal again when it has stopped
    serving, which would end the process before the worker has stopped."""

    worker: Worker | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """The first signal stops it gracefully, the second at once, the third ends the process."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        received = 0

        def handle(number: int, _frame: FrameType | None) -> None:
            nonlocal received
            received += 1
            if received > _MOST_SIGNALS:
                os._exit(128 + number)
            loop.call_soon_threadsafe(self._stop, received > 1)

        before = {one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _stop(self, now: bool) -> None:
        self.should_exit = True
        if now:
            self.force_exit = True
            if self.worker is not None:
                self.worker.stop(now=True)


async def _check_reach(app: Duetime, host: str, allowed_hosts: Collection[str]) -> None:
    """Refuse to be reached from other machines before anybody can log in."""
    if is_loopback(host):
        return
    if not allowed_hosts:
        raise SettingsError(
            f"Beyond this machine ({host}) the service must know the names that it is reached by: "
            "--allowed-host duetime.example.com."
        )
    if not await app.accounts.list(limit=1) and not await app.tokens.list(limit=1):
        raise SettingsError(
            f"Beyond this machine ({host}) somebody must be able to log in first: add an account "
            "with `duetime accounts add`, or an API token with `duetime tokens create`."
        )


def _check_proxies(proxies: Collection[str]) -> None:
    for one in proxies:
        try:
            ip_network(one)
        except ValueError:
            raise SettingsError(
                f"--proxy must be an address or a network, such as 10.0.0.5, got {one!r:.60}."
            ) from None


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise `SettingsError` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol, asyncio sends small answers at once (TCP_NODELAY); else each waits 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise SettingsError(
            f"Cannot listen on {host}:{port}: {error.strerror}. Choose another --port."
        ) from None
    listening.listen(1024)
    return listening


def _address(listening: socket.socket, link: LoginLink | None) -> str:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    login = "" if link is None or link.secret is None else f"login/{link.secret}"
    return f"http://{shown}:{port}/{login}"


def run(app: Duetime, **options: object) -> None:
    """Serve on an event loop of its own, and close the app afterwards."""

    async def main() -> None:
        try:
            await serve(app, **options)  # type: ignore[arg-type]
        finally:
            await app.close()

    asyncio.run(main())
