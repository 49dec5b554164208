"""Where failed logins are counted: a fixed number of buckets, which nobody else can aim at."""

from __future__ import annotations

import pytest

from duetime.domain.access.session import account_bucket, address_bucket

KEY = b"key of this installation"


def test_a_flood_of_names_and_addresses_fills_a_bounded_number_of_buckets() -> None:
    names = {account_bucket(KEY, f"name{n}") for n in range(20_000)}
    addresses = {address_bucket(KEY, f"10.0.{n // 256}.{n % 256}") for n in range(20_000)}

    assert min(names) >= 0
    assert max(names) < 2**16 <= min(addresses)
    assert max(addresses) < 2**17
    assert len(names) > 15_000


def test_another_installation_has_other_buckets() -> None:
    same = sum(account_bucket(KEY, f"n{n}") == account_bucket(b"x", f"n{n}") for n in range(500))

    assert same < 5


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::1", True),
        ("unix", "unix", True),
    ],
)
def test_a_client_has_one_ipv4_address_or_a_network_of_ipv6(
    one: str, other: str, same: bool
) -> None:
    assert (address_bucket(KEY, one) == address_bucket(KEY, other)) is same
