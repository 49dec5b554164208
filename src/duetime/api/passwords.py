"""Hashing of passwords: slow on purpose, off the event loop, and not too many at once."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from duetime.domain.access.account import MAX_PASSWORD, prepare_password
from duetime.errors import SettingsError, TooManyLogins

if TYPE_CHECKING:
    from argon2 import PasswordHasher

T = TypeVar("T")

_AT_ONCE = 2
"""Each takes 64 MiB for about 100 ms."""
_MAX_WAITING = 32
_BUSY_SECONDS = 5.0


class Passwords:
    """Hashes and verifies passwords with argon2id."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = make_hasher() if hasher is None else hasher
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._waiting = 0
        self._unknown: str | None = None

    async def hash(self, password: str) -> str:
        """Return the hash of a new password, with its salt and parameters."""
        return await self._run(lambda: self._hasher.hash(password))

    async def verify(self, hashed: str | None, password: str) -> bool:
        """Whether the password has that hash. None takes as long and is False: who measures the
        time cannot tell which names exist."""
        return await self._run(lambda: self._verify(hashed, password))

    def is_outdated(self, hashed: str) -> bool:
        """Whether the hash was made with other parameters than ours."""
        return self._hasher.check_needs_rehash(hashed)

    def _verify(self, hashed: str | None, password: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError

        if self._unknown is None:
            self._unknown = self._hasher.hash(secrets.token_urlsafe())
        prepared = prepare_password(password[: MAX_PASSWORD + 1]).encode(errors="surrogatepass")
        try:
            self._hasher.verify(self._unknown if hashed is None else hashed, prepared)
        except (VerificationError, InvalidHashError):
            return False
        return hashed is not None

    async def _run(self, work: Callable[[], T]) -> T:
        if self._waiting >= _MAX_WAITING:
            raise TooManyLogins(_BUSY_SECONDS)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor(), work)
        finally:
            self._waiting -= 1

    def _executor(self) -> ThreadPoolExecutor:
        # Threads do not survive a fork.
        if self._threads is None or self._threads[0] != os.getpid():
            made = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="duetime-password")
            self._threads = os.getpid(), made
        return self._threads[1]


def make_hasher() -> PasswordHasher:
    """Return argon2id with the parameters that RFC 9106 recommends, or say how to install it."""
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise SettingsError(
            "Accounts with passwords require an extra package: pip install 'duetime[web]'."
        ) from None
    return PasswordHasher()
