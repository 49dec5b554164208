"""Calls that are made at about the same time become one."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from duetime.engine.batching import Batcher


class Doubler:
    """Returns the double of each number; each call waits until it is released."""

    def __init__(self, *, waits: bool = True) -> None:
        self.calls: list[list[int]] = []
        self.error: Exception | None = None
        self.ended = 0
        self._waits = waits
        self._go = asyncio.Semaphore(0)

    async def process(self, asks: list[int]) -> Sequence[int]:
        self.calls.append(asks)
        if self._waits:
            await self._go.acquire()
        self.ended += 1
        if self.error is not None:
            raise self.error
        return [2 * ask for ask in asks]

    def release(self, calls: int = 1) -> None:
        for _ in range(calls):
            self._go.release()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def submit(batcher: Batcher[int, int], *asks: int) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(batcher.submit(what)) for what in asks]


async def test_one_item_is_processed_at_once() -> None:
    doubler = Doubler(waits=False)

    assert await Batcher(doubler.process).submit(4) == 8
    assert doubler.calls == [[4]]


async def test_groups_are_processed_separately_and_do_not_wait_for_each_other() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.process)
    asks = [asyncio.create_task(batcher.submit(n, group=n % 2)) for n in range(4)]
    await turns()

    assert doubler.calls == [[0, 2], [1, 3]]
    doubler.release(2)
    assert await asyncio.gather(*asks) == [0, 2, 4, 6]
    await turns()
    assert len(batcher._pending) == 0


async def test_items_of_one_iteration_of_the_event_loop_are_one_call() -> None:
    doubler = Doubler(waits=False)
    batcher = Batcher(doubler.process)

    assert await asyncio.gather(*submit(batcher, 1, 2, 3)) == [2, 4, 6]
    assert doubler.calls == [[1, 2, 3]]


async def test_items_submitted_during_a_call_form_the_next_call() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.process)
    first = submit(batcher, 1)
    await turns()
    later = submit(batcher, 2, 3)
    await turns()
    assert doubler.calls == [[1]]
    doubler.release()
    await turns()
    assert first[0].result() == 2
    assert doubler.calls == [[1], [2, 3]]
    doubler.release()

    assert await asyncio.gather(*later) == [4, 6]


async def test_equal_items_have_a_result_each() -> None:
    doubler = Doubler(waits=False)

    assert await asyncio.gather(*submit(Batcher(doubler.process), 5, 5)) == [10, 10]


async def test_a_call_has_at_most_max_size_items() -> None:
    doubler = Doubler(waits=False)
    batcher = Batcher(doubler.process, max_size=2)

    assert await asyncio.gather(*submit(batcher, 1, 2, 3, 4, 5)) == [2, 4, 6, 8, 10]
    assert doubler.calls == [[1, 2], [3, 4], [5]]


async def test_an_error_is_raised_to_all_items_of_its_call_and_to_none_of_the_next() -> None:
    doubler = Doubler()
    doubler.error = ValueError("no")
    batcher = Batcher(doubler.process)
    failing = submit(batcher, 1, 2)
    await turns()
    fine = submit(batcher, 3)
    doubler.release()
    done = await asyncio.gather(*failing, return_exceptions=True)
    doubler.error = None
    doubler.release()

    assert [str(error) for error in done] == ["no", "no"]
    assert await fine[0] == 6


async def test_too_few_results_are_an_error_for_all() -> None:
    async def forget(asks: list[int]) -> list[int]:
        return asks[1:]

    done = await asyncio.gather(*submit(Batcher(forget), 1, 2), return_exceptions=True)

    assert [type(error) for error in done] == [ValueError, ValueError]


async def test_an_item_that_is_cancelled_before_the_call_is_left_out() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.process, wait_on_cancel=True)
    first = submit(batcher, 1)
    await turns()
    gone, stays = submit(batcher, 2, 3)
    await turns()
    gone.cancel()
    await turns()
    assert gone.cancelled()
    doubler.release(2)

    assert await asyncio.gather(*first, stays) == [2, 6]
    assert doubler.calls == [[1], [3]]


async def test_a_cancellation_during_the_call_does_not_affect_other_items() -> None:
    doubler = Doubler()
    gone, stays = submit(Batcher(doubler.process), 1, 2)
    await turns()
    gone.cancel()
    await turns()
    assert gone.cancelled()
    doubler.release()

    assert await stays == 4


async def test_the_other_items_have_results_if_the_first_is_cancelled() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.process)
    [first] = submit(batcher, 1)
    await turns()
    [second] = submit(batcher, 2)
    first.cancel()
    await turns()
    doubler.release(2)

    assert await second == 4


async def test_with_wait_on_cancel_a_running_call_is_not_interrupted() -> None:
    doubler = Doubler()
    [gone] = submit(Batcher(doubler.process, wait_on_cancel=True), 1)
    await turns()
    gone.cancel()
    await turns()
    assert not gone.done()
    doubler.release()
    await turns()

    assert gone.cancelled()
    assert doubler.ended == 1


async def test_with_stop_abandoned_a_call_ends_when_its_last_item_is_cancelled() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.process, stop_abandoned=True)
    first, second = submit(batcher, 1, 2)
    await turns()
    [third] = submit(batcher, 3)
    first.cancel()
    await turns()
    calls_with_one_left = list(doubler.calls)
    second.cancel()
    await turns()
    calls_with_none_left = list(doubler.calls)
    doubler.release()

    assert await asyncio.wait_for(third, 20) == 6
    assert calls_with_one_left == [[1, 2]]
    assert calls_with_none_left == [[1, 2], [3]]
    assert doubler.ended == 1
    await turns()
    assert len(batcher._pending) == 0


async def test_with_stop_abandoned_a_call_may_ignore_its_cancellation() -> None:
    doubler = Doubler()

    async def process(asks: list[int]) -> Sequence[int]:
        inner = asyncio.ensure_future(doubler.process(asks))
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            return await inner

    batcher = Batcher(process, stop_abandoned=True)
    [first] = submit(batcher, 1)
    await turns()
    first.cancel()
    [second] = submit(batcher, 2)
    await turns()
    doubler.release(2)

    assert await asyncio.wait_for(second, 20) == 4
    assert first.cancelled()
    assert doubler.calls == [[1], [2]]


async def test_with_stop_abandoned_another_cancellation_of_the_task_holds() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.process, stop_abandoned=True)
    [first] = submit(batcher, 1)
    await turns()
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == "duetime-batch"]
    [second] = submit(batcher, 2)
    await asyncio.sleep(0)
    first.cancel()
    task.cancel()
    await asyncio.wait([first, second, task], timeout=20)

    assert first.cancelled()
    assert second.cancelled()
    assert task.cancelled()
    assert doubler.calls == [[1]]


async def test_an_error_that_nobody_awaits_is_not_reported_by_asyncio() -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
    for waits in (False, True):
        doubler = Doubler()
        doubler.error = ValueError("no")
        [gone] = submit(Batcher(doubler.process, wait_on_cancel=waits), 1)
        await turns()
        gone.cancel()
        await turns()
        doubler.release()
        await turns()
        assert gone.cancelled()
        del gone, doubler
    gc.collect()

    assert complaints == []


async def test_many_items_at_random_times_all_have_results() -> None:
    sizes: list[int] = []

    async def answer(asks: list[int]) -> list[int]:
        sizes.append(len(asks))
        await asyncio.sleep(0.001)
        return [2 * what for what in asks]

    batcher = Batcher(answer)

    async def one(what: int) -> int:
        await asyncio.sleep(what % 17 / 2000)
        return await batcher.submit(what)

    tasks = [asyncio.create_task(one(what)) for what in range(500)]
    for task in tasks[::7]:
        asyncio.get_running_loop().call_later(0.004, task.cancel)
    done = await asyncio.gather(*tasks, return_exceptions=True)

    for what, answered in enumerate(done):
        assert answered == 2 * what or (what % 7 == 0 and isinstance(answered, BaseException))
    assert max(sizes) > 10


def test_each_event_loop_has_its_own_calls() -> None:
    """Also one that came to an end in the middle of a call."""
    calls: list[tuple[int, list[int]]] = []
    both = threading.Barrier(2)

    async def answer(asks: list[int]) -> list[int]:
        calls.append((threading.get_ident(), asks))
        if asks == [0]:
            await asyncio.sleep(60)
        return asks

    batcher = Batcher(answer)

    async def leave() -> None:
        asyncio.create_task(batcher.submit(0))  # noqa: RUF006
        await turns()

    def run() -> None:
        asyncio.run(leave())
        both.wait()
        assert asyncio.run(batcher.submit(1)) == 1

    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert sorted(asks for _, asks in calls) == [[0], [0], [1], [1]]
    assert len(batcher._pending) == 0


async def test_a_call_that_fails_at_once_does_not_spin() -> None:
    async def fail(asks: list[int]) -> list[int]:
        raise OSError("down")

    batcher = Batcher(fail)
    for _ in range(3):
        with pytest.raises(OSError, match="down"):
            await batcher.submit(1)


async def test_at_once_the_first_is_alone_and_the_others_follow_together() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.process, at_once=True)
    asks = submit(batcher, 1, 2, 3)
    await turns()
    assert doubler.calls == [[1]]
    doubler.release(2)

    assert await asyncio.wait_for(asyncio.gather(*asks), 20) == [2, 4, 6]
    assert doubler.calls == [[1], [2, 3]]
    await turns()
    assert len(batcher._pending) == 0


async def test_at_once_a_lone_item_needs_no_task() -> None:
    tasks: list[int] = []

    async def process(asks: list[int]) -> list[int]:
        tasks.append(len(asyncio.all_tasks()))
        return asks

    batcher = Batcher(process, at_once=True)
    before = len(asyncio.all_tasks())
    for ask in range(3):
        assert await batcher.submit(ask) == ask

    assert tasks == [before] * 3
    assert len(batcher._pending) == 0


@pytest.mark.parametrize("cancels", [True, False], ids=["cancelled", "failed"])
async def test_at_once_the_first_may_fail_without_the_others(cancels: bool) -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.process, at_once=True)
    first, *others = submit(batcher, 1, 2, 3)
    await turns()
    if cancels:
        first.cancel()
    else:
        doubler.error = ValueError("no")
        doubler.release()
    await turns()
    doubler.error = None
    doubler.release()

    assert await asyncio.wait_for(asyncio.gather(*others), 20) == [4, 6]
    with pytest.raises(asyncio.CancelledError if cancels else ValueError):
        await first
    assert doubler.calls == [[1], [2, 3]]
