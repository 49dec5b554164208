"""One read for everything that a worker checks regularly.

Each service would otherwise poll by itself, and an idle worker would make ten transactions a
second. Here a check waits a little for others, and all that wait are one transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from duetime.errors import DatabaseCorrupted, StorageError, TransientError
from duetime.storage.store import Look, Statements

Check = Callable[[], Statements]
"""Statements that only read, and return whether there is something to do."""
MakeLook = Callable[[Sequence[Check]], Awaitable[tuple[Look, list[Any]]]]

_EARLY, _LATE = 0.7, 0.3
"""How many seconds a check may be made early, with a look that is made anyway, and late, to wait
for one; shares of its interval if that is less than a second. An idle worker looks every second, so
each check finds a look to join."""


class Seen(NamedTuple):
    """What a look brought for one who asked."""

    look: Look
    answer: Any
    """What the check returned."""
    sent: float
    received: float


class _Asked:
    __slots__ = ("after", "answer", "check", "urgent")

    def __init__(self, check: Check | None, seconds: float) -> None:
        self.check = check
        self.urgent = seconds <= 0.0
        """It may not wait for others any longer."""
        self.after = time.monotonic() + seconds - _EARLY * min(1.0, seconds)
        self.answer: asyncio.Future[Seen | None] = asyncio.get_running_loop().create_future()


class Looks:
    """Gathers checks until the first of them may wait no longer."""

    def __init__(self, make: MakeLook) -> None:
        self._make = make
        self._asked: list[_Asked] = []
        self._looking: asyncio.Task[None] | None = None
        self._unanswered: set[_Asked] = set()
        self._stopped = False

    def ask(self, seconds: float, check: Check | None = None) -> asyncio.Future[Seen | None]:
        """Have `check` made in about so many `seconds`. The future may be cancelled. None: the
        worker stops."""
        asked = _Asked(check, seconds)
        if self._stopped:
            asked.answer.set_result(None)
            return asked.answer
        self._asked.append(asked)
        self._unanswered.add(asked)
        asked.answer.add_done_callback(lambda _: self._unanswered.discard(asked))
        if asked.urgent:
            self._look_soon()
        else:
            latest = seconds + _LATE * min(1.0, seconds)
            timer = asyncio.get_running_loop().call_later(latest, self._time_is_up, asked)
            asked.answer.add_done_callback(lambda _: timer.cancel())
        return asked.answer

    def _time_is_up(self, asked: _Asked) -> None:
        asked.urgent = True
        self._look_soon()

    def stop(self) -> None:
        """Answer everybody now, also those whose look is being made: there is nothing to do."""
        self._stopped = True
        for asked in list(self._unanswered):
            if not asked.answer.done():
                asked.answer.set_result(None)

    def close(self) -> list[asyncio.Task[None]]:
        """Answer nobody any more; return the look in progress, if there is one."""
        for asked in self._asked:
            asked.answer.cancel()
        return [] if self._looking is None else [self._looking]

    def _look_soon(self) -> None:
        if self._looking is None:
            self._looking = asyncio.create_task(self._run(), name="duetime-look")

    async def _run(self) -> None:
        try:
            while chosen := self._choose():
                await self._answer(chosen)
        finally:
            self._looking = None

    def _choose(self) -> list[_Asked]:
        """Take those whose time has come; none if no one of them is urgent."""
        waiting = [asked for asked in self._asked if not asked.answer.done()]
        chosen = []
        if any(asked.urgent for asked in waiting):
            now = time.monotonic()
            chosen = [asked for asked in waiting if asked.urgent or asked.after <= now]
        self._asked = [asked for asked in waiting if asked not in chosen]
        return chosen

    async def _answer(self, asked: Sequence[_Asked]) -> None:
        checks = [one.check for one in asked if one.check is not None]
        sent = time.monotonic()
        try:
            look, answers = await self._make(checks)
        except BaseException as error:
            if checks and len(asked) > 1 and _may_pass_for_others(error):
                for one in asked:
                    await self._answer([one])
                return
            for one in asked:
                _fail(one.answer, error)
            if not isinstance(error, Exception):
                raise
            return
        received = time.monotonic()
        found = iter(answers)
        for one in asked:
            answer = None if one.check is None else next(found)
            if not one.answer.done():
                one.answer.set_result(Seen(look, answer, sent, received))


def _may_pass_for_others(error: BaseException) -> bool:
    """Whether one of the checks may be the cause, so that the others must go on without it."""
    return isinstance(error, StorageError) and not isinstance(
        error, (TransientError, DatabaseCorrupted)
    )


def _fail(answer: asyncio.Future[Seen | None], error: BaseException) -> None:
    if isinstance(error, Exception):
        if not answer.done():
            answer.set_exception(error)
    else:
        answer.cancel()
