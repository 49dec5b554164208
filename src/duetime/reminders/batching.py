"""Asks that are made close to each other are answered together, in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

A = TypeVar("A")
B = TypeVar("B")

_MOST = 100


class Batcher(Generic[A, B]):
    """Answers many asks by one call: `answer(asks)` returns an answer to each, in their order.

    Nothing waits to be gathered. The first ask begins a call at once, with what else was asked in
    the same turn of the event loop; asks made while a call is under way form the next one. So a
    call always begins after each of its asks was made. An error of the call reaches all its asks.
    Asks of different groups are answered apart, and do not wait for each other.

    `lasting`: who is cancelled while the call is under way waits for its end: it cannot be undone.
    """

    def __init__(
        self,
        answer: Callable[[list[A]], Awaitable[Sequence[B]]],
        *,
        most: int = _MOST,
        lasting: bool = False,
    ) -> None:
        self._answer = answer
        self._most = most
        self._lasting = lasting
        self._rounds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Round[A, B]]] = (
            WeakKeyDictionary()
        )
        """Of each event loop and group, while something is asked there."""

    async def get(self, what: A, *, group: Hashable = None) -> B:
        loop = asyncio.get_running_loop()
        ask = _Ask[A, B](what, loop.create_future())
        rounds = self._rounds.setdefault(loop, {})
        current = rounds.get(group)
        if current is None:
            current = rounds[group] = _Round()
            serve = self._serve(loop, group, current)
            current.task = loop.create_task(serve, name="duetime-batch")
        current.waiting.append(ask)
        try:
            return await asyncio.shield(ask.answer)
        except asyncio.CancelledError:
            if self._lasting and ask.begun:
                await asyncio.wait([ask.answer])
            ask.answer.cancel()
            raise

    async def _serve(
        self, loop: asyncio.AbstractEventLoop, group: Hashable, current: _Round[A, B]
    ) -> None:
        try:
            while current.waiting:
                asks = [ask for ask in current.waiting[: self._most] if not ask.answer.done()]
                del current.waiting[: self._most]
                if asks:
                    await self._call(asks)
        finally:
            # Reached by a cancel too, as the event loop ends: nobody is left to wait.
            del self._rounds[loop][group]
            if not self._rounds[loop]:
                del self._rounds[loop]
            for ask in current.waiting:
                ask.answer.cancel()

    async def _call(self, asks: list[_Ask[A, B]]) -> None:
        for ask in asks:
            ask.begun = True
        try:
            answers = await self._answer([ask.what for ask in asks])
            pairs = list(zip(asks, answers, strict=True))
        except Exception as error:  # noqa: BLE001 -- whoever asked shall have it.
            for ask in asks:
                if not ask.answer.done():
                    ask.answer.set_exception(error)
        except BaseException:
            for ask in asks:
                ask.answer.cancel()
            raise
        else:
            for ask, answer in pairs:
                if not ask.answer.done():
                    ask.answer.set_result(answer)


class _Ask(Generic[A, B]):
    def __init__(self, what: A, answer: asyncio.Future[B]) -> None:
        self.what = what
        self.answer = answer
        self.begun = False


class _Round(Generic[A, B]):
    """What waits for the next call, and the task that makes the calls."""

    def __init__(self) -> None:
        self.waiting: list[_Ask[A, B]] = []
        self.task: asyncio.Task[None] | None = None
