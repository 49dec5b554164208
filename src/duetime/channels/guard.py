"""Keeps requests to addresses that others gave away from our own network (SSRF).

The check is part of connecting: a name is resolved once, all its addresses are checked, and the
connection goes to one of them. Nothing is resolved a second time, so that a name which changes its
mind in between (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from duetime.channels.channel import NotSent
from duetime.errors import InvalidInput

Resolve = Callable[[str, int], Awaitable[list[str]]]

_LOWEST_FREE_PORT = 1024
_WEB_PORTS = (80, 443)

# The registries of special addresses, written out: what `ipaddress` calls global differs between
# versions of Python.
_SPECIAL_IPV4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # Carriers' NAT; also the metadata service of some clouds.
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host, on a public address.
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
_UNICAST_IPV6 = IPv6Network("2000::/3")
_SPECIAL_IPV6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # Protocols, among them Teredo, which hides an IPv4 address.
        "2001:db8::/32",
        "2002::/16",  # 6to4, which hides one, too.
        "3fff::/20",
    )
]
# In networks without IPv4, the public hosts that have nothing else are reached through these.
_NAT64 = IPv6Network("64:ff9b::/96")


async def resolve(host: str, port: int) -> list[str]:
    """Every address of the host, as the system resolves it, in its order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Guard:
    """Says where a request may go.

    `allow` names hosts and networks that are fine although they are private; `allow_private` lets
    all pass. `ports` default to 80, 443 and everything from 1024 on.
    """

    def __init__(
        self,
        *,
        allow_private: bool = False,
        allow: Iterable[str] = (),
        ports: Collection[int] | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        self._allow_private = allow_private
        self._ports = None if ports is None else frozenset(ports)
        self._resolve = resolve
        self._hosts: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        if isinstance(allow, str):
            raise InvalidInput(f"allow= must be a list of hosts, such as allow=[{allow!r:.60}].")
        for entry in allow:
            self._allow(entry)

    def check_port(self, port: int) -> None:
        """Raise a lasting `NotSent` unless requests may go to this port."""
        if self._ports is None:
            fine = port in _WEB_PORTS or _LOWEST_FREE_PORT <= port <= 65535
        else:
            fine = port in self._ports
        if not fine:
            raise NotSent(
                f"Requests to port {port} are not allowed. Use another port, or add this one to "
                "ports=.",
                transient=False,
            )

    async def addresses_of(self, host: str, port: int) -> list[str]:
        """Resolve the host; raise `NotSent` unless requests may go to all of its addresses."""
        self.check_port(port)
        try:
            addresses = await self._resolve(host, port)
        except UnicodeError:
            raise NotSent(f"{host[:80]!r} is not a valid host name.", transient=False) from None
        except OSError as error:
            raise NotSent(f"{host} cannot be resolved: {error}.", transient=True) from error
        if not addresses:
            raise NotSent(f"{host} has no address.", transient=True)
        if not self._allow_private and host.lower().rstrip(".") not in self._hosts:
            self._check(host, addresses)
        return addresses

    def _check(self, host: str, addresses: list[str]) -> None:
        # The error does not name the address: its readers could explore our network.
        for text in addresses:
            address = ip_address(text)
            if not is_public(address) and not any(address in known for known in self._networks):
                raise NotSent(
                    f"{host} resolves to an address outside the public internet. To allow requests "
                    "to it, add the host or its network to allow=.",
                    transient=False,
                )

    def _allow(self, entry: str) -> None:
        try:
            self._networks.append(ip_network(entry))
        except ValueError:
            if not entry or set(entry) & set("/:@ "):
                raise InvalidInput(
                    "allow= takes hosts and networks, such as 'hooks.internal' or '10.1.0.0/16', "
                    f"got {entry!r}."
                ) from None
            self._hosts.add(entry.lower().rstrip("."))


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether the address belongs to a single host of the public internet.

    >>> is_public(ip_address("93.184.215.14")), is_public(ip_address("169.254.169.254"))
    (True, False)
    """
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_IPV4)
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _UNICAST_IPV6 and not any(address in network for network in _SPECIAL_IPV6)
