"""Hashing of passwords: off the event loop, not too many at once, with real parameters."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from argon2 import PasswordHasher

from duetime.api.passwords import Passwords, make_hasher
from duetime.errors import TooManyLogins


class Held(PasswordHasher):
    """Hashes when it is told to, and counts how many do so at once."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.go = threading.Event()
        self.at_once = 0
        self.most = 0

    def hash(self, password: Any, **options: Any) -> str:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.go.wait(30)
        self.at_once -= 1
        return super().hash(password, **options)


async def test_hashing_leaves_the_event_loop_free_and_does_not_pile_up() -> None:
    hasher = Held()
    passwords = Passwords(hasher)
    hashing = [asyncio.create_task(passwords.hash("correct horse")) for _ in range(32)]
    await asyncio.sleep(0)  # They wait in threads, and we go on.

    with pytest.raises(TooManyLogins, match="Try again in 5 s"):
        await passwords.hash("correct horse")
    hasher.go.set()
    await asyncio.gather(*hashing)
    assert hasher.most <= 2
    assert await passwords.verify(await passwords.hash("correct horse"), "correct horse")


async def test_a_damaged_hash_opens_nothing() -> None:
    passwords = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))

    assert await passwords.verify("$argon2id$nonsense", "correct horse") is False
    assert await passwords.verify("", "") is False
    assert await passwords.verify(None, "") is False


async def test_the_password_of_the_placeholder_opens_nothing() -> None:
    passwords = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    passwords._unknown = await passwords.hash("correct horse")

    assert await passwords.verify(None, "correct horse") is False


def test_the_parameters_are_those_of_rfc_9106() -> None:
    hasher = make_hasher()

    assert hasher.type.name == "ID"
    assert (hasher.memory_cost, hasher.time_cost) == (64 * 1024, 3)
