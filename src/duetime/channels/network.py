"""The network as httpcore sees it, behind the guard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpcore2

from duetime.channels.guard import Guard


class GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to nothing but addresses that the guard has checked.

    The connection pool knows the host's name: `Host`, the server's name in TLS and the check of its
    certificate stay with it.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout or 0.0)
        try:
            async with asyncio.timeout_at(deadline):
                addresses = await self._guard.addresses_of(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"{host} was not resolved in time") from None
        failure: Exception = httpcore2.ConnectTimeout(f"{host} was resolved too late")
        for tried, address in enumerate(addresses):
            # Each address has its share of the time: one that never answers blocks no other.
            share = (deadline - loop.time()) / (len(addresses) - tried)
            if share <= 0:
                break
            try:
                return await self._network.connect_tcp(
                    address, port, share, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure
