"""What a backend can say about its database, beyond what is in Duetime's tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from duetime.domain.findings import Finding
from duetime.errors import StorageError


class Check(msgspec.Struct, frozen=True):
    """One thing to examine. It may raise `StorageError`."""

    name: str
    run: Callable[[], Awaitable[Sequence[Finding]]]
    needs_tables: bool = True


class Diagnosis(Protocol):
    """The checks that only one backend has. They open connections of their own."""

    async def version(self) -> str:
        """The database's name and version; raises `StorageError` if it cannot be reached."""

    def checks(self) -> Sequence[Check]: ...

    def is_refusal(self, error: StorageError) -> bool:
        """Whether our role lacks the right to look."""
