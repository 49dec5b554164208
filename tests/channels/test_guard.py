"""Which addresses are of the public internet."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.channels.channel import NotSent
from duetime.channels.guard import Guard, is_public
from duetime.errors import InvalidInput


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "93.184.215.14",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "223.255.255.255",
        "2001:4860:4860::8888",
        "2606:4700:4700::1111",
        "2a00:1450:4001::64",
        "64:ff9b::808:808",
    ],
)
def test_public(address: str) -> None:
    assert is_public(ip_address(address))


@given(st.ip_addresses())
def test_what_python_calls_private_is_never_public(address: object) -> None:
    """Python's own list is the smaller one."""
    known = ip_address(str(address))
    special = known.is_private or known.is_loopback or known.is_link_local or known.is_multicast

    assert not (special and is_public(known))


@pytest.mark.parametrize("entry", ["", "http://hooks.internal", "10.0.0.1/8", "a b", "host:80"])
def test_what_cannot_be_allowed_is_told_at_once(entry: str) -> None:
    with pytest.raises(InvalidInput, match="allow="):
        Guard(allow=[entry])


def test_a_text_is_not_a_list_of_hosts() -> None:
    with pytest.raises(InvalidInput, match=r"such as allow=\['hooks.internal'\]"):
        Guard(allow="hooks.internal")


async def test_a_name_without_addresses_may_get_one() -> None:
    async def nowhere(host: str, port: int) -> list[str]:
        return []

    with pytest.raises(NotSent, match="no address") as failure:
        await Guard(resolve=nowhere).addresses_of("hooks.example", 443)

    assert failure.value.transient


async def test_a_name_too_long_to_be_one_lasts() -> None:
    with pytest.raises(NotSent) as failure:
        await Guard().addresses_of("a" * 64 + ".example", 443)

    assert not failure.value.transient
