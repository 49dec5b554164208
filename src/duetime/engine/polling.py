"""One poll for everything that a worker checks regularly.

If each service polled by itself, an idle worker would make ten transactions a second. Here a check
waits a little for others, and all that wait share one transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from duetime.errors import DatabaseCorrupted, StorageError, TransientError
from duetime.storage.store import PollResult, Statements

Check = Callable[[], Statements]
"""Statements that only read, and return whether there is something to do."""
Poll = Callable[[Sequence[Check]], Awaitable[tuple[PollResult, list[Any]]]]

_EARLY, _LATE = 0.7, 0.3
"""How many seconds early a check may be made, to join a poll that is made anyway, and how many
seconds late, to wait for one; shares of its interval if that is less than a second. An idle worker
polls every second, so each check finds a poll to join."""


class Polled(NamedTuple):
    """The answer to one request."""

    result: PollResult
    answer: Any
    """What the check returned."""
    sent: float
    received: float


class _Request:
    __slots__ = ("after", "answer", "check", "urgent")

    def __init__(self, check: Check | None, seconds: float) -> None:
        self.check = check
        self.urgent = seconds <= 0.0
        """It may not wait for others any longer."""
        self.after = time.monotonic() + seconds - _EARLY * min(1.0, seconds)
        self.answer: asyncio.Future[Polled | None] = asyncio.get_running_loop().create_future()


class Poller:
    """Gathers checks until the first of them may wait no longer."""

    def __init__(self, poll: Poll) -> None:
        self._poll = poll
        self._requests: list[_Request] = []
        self._polling: asyncio.Task[None] | None = None
        self._unanswered: set[_Request] = set()
        self._stopped = False

    def request(self, seconds: float, check: Check | None = None) -> asyncio.Future[Polled | None]:
        """Have `check` made in about so many `seconds`. The future may be cancelled. None: the
        worker stops."""
        request = _Request(check, seconds)
        if self._stopped:
            request.answer.set_result(None)
            return request.answer
        self._requests.append(request)
        self._unanswered.add(request)
        request.answer.add_done_callback(lambda _: self._unanswered.discard(request))
        if request.urgent:
            self._poll_soon()
        else:
            latest = seconds + _LATE * min(1.0, seconds)
            timer = asyncio.get_running_loop().call_later(latest, self._time_is_up, request)
            request.answer.add_done_callback(lambda _: timer.cancel())
        return request.answer

    def _time_is_up(self, request: _Request) -> None:
        request.urgent = True
        self._poll_soon()

    def stop(self) -> None:
        """Answer all requests now, also those whose poll is under way: there is nothing to do."""
        self._stopped = True
        for request in list(self._unanswered):
            if not request.answer.done():
                request.answer.set_result(None)

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel all requests; return the poll in progress, if there is one."""
        for request in self._requests:
            request.answer.cancel()
        return [] if self._polling is None else [self._polling]

    def _poll_soon(self) -> None:
        if self._polling is None:
            self._polling = asyncio.create_task(self._run(), name="duetime-poll")

    async def _run(self) -> None:
        try:
            while chosen := self._choose():
                await self._answer(chosen)
        finally:
            self._polling = None

    def _choose(self) -> list[_Request]:
        """Take those whose time has come; none if no one of them is urgent."""
        waiting = [request for request in self._requests if not request.answer.done()]
        chosen = []
        if any(request.urgent for request in waiting):
            now = time.monotonic()
            chosen = [request for request in waiting if request.urgent or request.after <= now]
        self._requests = [request for request in waiting if request not in chosen]
        return chosen

    async def _answer(self, requests: Sequence[_Request]) -> None:
        checks = [one.check for one in requests if one.check is not None]
        sent = time.monotonic()
        try:
            result, answers = await self._poll(checks)
        except BaseException as error:
            if checks and len(requests) > 1 and _may_pass_for_others(error):
                for one in requests:
                    await self._answer([one])
                return
            for one in requests:
                _fail(one.answer, error)
            if not isinstance(error, Exception):
                raise
            return
        received = time.monotonic()
        found = iter(answers)
        for one in requests:
            answer = None if one.check is None else next(found)
            if not one.answer.done():
                one.answer.set_result(Polled(result, answer, sent, received))


def _may_pass_for_others(error: BaseException) -> bool:
    """Whether one of the checks may be the cause, so that the others must go on without it."""
    return isinstance(error, StorageError) and not isinstance(
        error, (TransientError, DatabaseCorrupted)
    )


def _fail(answer: asyncio.Future[Polled | None], error: BaseException) -> None:
    if isinstance(error, Exception):
        if not answer.done():
            answer.set_exception(error)
    else:
        answer.cancel()
