"""Combines calls that are made at about the same time into one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from duetime.errors import TransientError

A = TypeVar("A")
B = TypeVar("B")

MAX_BATCH_SIZE = 100


class Batcher(Generic[A, B]):
    """Runs many items through one call: `process(items)` returns a result for each, in order.

    No item waits for a batch to fill. The first item starts a batch at once, together with every
    item that is submitted in the same iteration of the event loop. Items that are submitted while
    a batch runs form the next one, so a batch always starts after each of its items was submitted.
    An exception of the call is raised to every item of its batch. Batches of different groups are
    separate and do not wait for each other.

    With `at_once`, an item that finds no batch running is processed by its submitter itself: that
    saves a task, and the item is alone. `process` is then cancelled if that submitter is.

    With `wait_on_cancel`, a submitter that is cancelled while its batch runs is released only when
    the batch is done: use it for writes, which cannot be undone.

    With `stop_abandoned`, `process` is cancelled once every submitter of its batch is: use it for
    calls that may wait for long.
    """

    def __init__(
        self,
        process: Callable[[list[A]], Awaitable[Sequence[B]]],
        *,
        max_size: int = MAX_BATCH_SIZE,
        at_once: bool = False,
        wait_on_cancel: bool = False,
        stop_abandoned: bool = False,
    ) -> None:
        self._process = process
        self._at_once = at_once
        self._max_size = max_size
        self._wait_on_cancel = wait_on_cancel
        self._stop_abandoned = stop_abandoned
        self._pending: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[Hashable, _Pending[A, B]]
        ] = WeakKeyDictionary()
        """By event loop and group; an entry exists only while items are pending."""

    async def submit(self, item: A, *, group: Hashable = None) -> B:
        """Process the item in the next batch of its group, and return its result."""
        loop = asyncio.get_running_loop()
        groups = self._pending.get(loop)
        if groups is None:
            groups = self._pending[loop] = {}
        pending = groups.get(group)
        if pending is None:
            pending = groups[group] = _Pending()
            if self._at_once:
                return await self._run_alone(loop, group, pending, item)
            self._start(loop, group, pending)
        submitted: _Submitted[A, B] = _Submitted(item, loop.create_future())
        pending.items.append(submitted)
        try:
            return await submitted.result
        except asyncio.CancelledError:
            if self._wait_on_cancel and submitted.finished is not None:
                await asyncio.wait([submitted.finished])
            if self._stop_abandoned:
                pending.stop_if_abandoned()
            raise

    async def _run_alone(
        self, loop: asyncio.AbstractEventLoop, group: Hashable, pending: _Pending[A, B], item: A
    ) -> B:
        try:
            [result] = await self._process([item])
        finally:
            if pending.items:
                self._start(loop, group, pending)
            else:
                self._remove(loop, group)
        return result

    def _start(
        self, loop: asyncio.AbstractEventLoop, group: Hashable, pending: _Pending[A, B]
    ) -> None:
        run = self._run_batches(loop, group, pending)
        pending.task = loop.create_task(run, name="duetime-batch")

    def _remove(self, loop: asyncio.AbstractEventLoop, group: Hashable) -> None:
        groups = self._pending[loop]
        del groups[group]
        if not groups:
            del self._pending[loop]

    async def _run_batches(
        self, loop: asyncio.AbstractEventLoop, group: Hashable, pending: _Pending[A, B]
    ) -> None:
        try:
            while pending.items:
                batch = pending.items[: self._max_size]
                del pending.items[: self._max_size]
                if batch := [item for item in batch if not item.result.done()]:
                    pending.running = batch
                    await self._run_batch(pending, batch)
        finally:
            # Also reached when the event loop closes and cancels this task.
            self._remove(loop, group)
            for item in pending.items:
                item.result.cancel()

    async def _run_batch(self, pending: _Pending[A, B], batch: list[_Submitted[A, B]]) -> None:
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for submitted in batch:
            submitted.finished = finished
        try:
            results = await self._process([submitted.item for submitted in batch])
            pairs = list(zip(batch, results, strict=True))
        except Exception as error:  # noqa: BLE001 -- Every submitter receives it.
            for submitted in batch:
                if not submitted.result.done():
                    submitted.result.set_exception(error)
        except BaseException as error:
            for submitted in batch:
                submitted.result.cancel()
            if not (isinstance(error, asyncio.CancelledError) and pending.resume()):
                raise
        else:
            for submitted, result in pairs:
                if not submitted.result.done():
                    submitted.result.set_result(result)
        finally:
            pending.running = []
            pending.resume()
            finished.set_result(None)


class _Submitted(Generic[A, B]):
    def __init__(self, item: A, result: asyncio.Future[B]) -> None:
        self.item = item
        self.result = result
        self.finished: asyncio.Future[None] | None = None
        """Done when the batch that took the item is."""


class _Pending(Generic[A, B]):
    """The items that wait for the next batch of a group, and the task that runs its batches."""

    def __init__(self) -> None:
        self.items: list[_Submitted[A, B]] = []
        self.running: list[_Submitted[A, B]] = []
        """The batch that is processed by the task."""
        self.task: asyncio.Task[None] | None = None
        self._is_abandoned = False

    def stop_if_abandoned(self) -> None:
        """Cancel the running batch if nobody waits for any of its results."""
        if self._is_abandoned or not self.running or self.task is None:
            return
        if all(submitted.result.done() for submitted in self.running):
            self._is_abandoned = True
            self.task.cancel()

    def resume(self) -> bool:
        """Take back the cancellation of an abandoned batch, so that the task goes on with the next
        one. Returns whether there was one, and nobody else has cancelled the task."""
        if not self._is_abandoned or self.task is None:
            return False
        self._is_abandoned = False
        return self.task.uncancel() == 0


async def process_alone_if_refused(
    process: Callable[[Sequence[A]], Awaitable[Sequence[B]]], items: Sequence[A]
) -> Sequence[B | Exception]:
    """Process items in one call. If the database refuses them, process each alone, so that only the
    item at fault fails: its exception takes the place of its result."""
    try:
        return await process(items)
    except TransientError:
        raise
    except Exception:
        if len(items) == 1:
            raise
    results: list[B | Exception] = []
    for item in items:
        try:
            results += await process([item])
        except TransientError:
            raise
        except Exception as error:  # noqa: BLE001 -- it is raised where the item was submitted.
            results.append(error)
    return results
