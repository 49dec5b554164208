"""Asks that are made close to each other are answered together."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from duetime.reminders.batching import Batcher


class Clerk:
    """Answers each number with its double; each call waits to be let go."""

    def __init__(self, *, waits: bool = True) -> None:
        self.calls: list[list[int]] = []
        self.error: Exception | None = None
        self.ended = 0
        self._waits = waits
        self._go = asyncio.Semaphore(0)

    async def answer(self, asks: list[int]) -> Sequence[int]:
        self.calls.append(asks)
        if self._waits:
            await self._go.acquire()
        self.ended += 1
        if self.error is not None:
            raise self.error
        return [2 * ask for ask in asks]

    def let_go(self, calls: int = 1) -> None:
        for _ in range(calls):
            self._go.release()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def ask(gathering: Batcher[int, int], *asks: int) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(gathering.get(what)) for what in asks]


async def test_one_ask_is_answered_at_once() -> None:
    clerk = Clerk(waits=False)

    assert await Batcher(clerk.answer).get(4) == 8
    assert clerk.calls == [[4]]


async def test_groups_are_answered_apart_and_do_not_wait_for_each_other() -> None:
    clerk = Clerk()
    gathering = Batcher(clerk.answer)
    asks = [asyncio.create_task(gathering.get(n, group=n % 2)) for n in range(4)]
    await turns()

    assert clerk.calls == [[0, 2], [1, 3]]
    clerk.let_go(2)
    assert await asyncio.gather(*asks) == [0, 2, 4, 6]
    await turns()
    assert len(gathering._rounds) == 0


async def test_what_is_asked_in_one_turn_is_one_call() -> None:
    clerk = Clerk(waits=False)
    gathering = Batcher(clerk.answer)

    assert await asyncio.gather(*ask(gathering, 1, 2, 3)) == [2, 4, 6]
    assert clerk.calls == [[1, 2, 3]]


async def test_asks_during_a_call_are_the_next_call_and_never_join_it() -> None:
    clerk = Clerk()
    gathering = Batcher(clerk.answer)
    first = ask(gathering, 1)
    await turns()
    later = ask(gathering, 2, 3)
    await turns()
    assert clerk.calls == [[1]]
    clerk.let_go()
    await turns()
    assert first[0].result() == 2
    assert clerk.calls == [[1], [2, 3]]
    clerk.let_go()

    assert await asyncio.gather(*later) == [4, 6]


async def test_the_same_is_asked_twice_and_answered_twice() -> None:
    clerk = Clerk(waits=False)

    assert await asyncio.gather(*ask(Batcher(clerk.answer), 5, 5)) == [10, 10]


async def test_a_call_has_no_more_asks_than_it_may() -> None:
    clerk = Clerk(waits=False)
    gathering = Batcher(clerk.answer, most=2)

    assert await asyncio.gather(*ask(gathering, 1, 2, 3, 4, 5)) == [2, 4, 6, 8, 10]
    assert clerk.calls == [[1, 2], [3, 4], [5]]


async def test_an_error_reaches_all_of_its_call_and_none_of_the_next() -> None:
    clerk = Clerk()
    clerk.error = ValueError("no")
    gathering = Batcher(clerk.answer)
    failing = ask(gathering, 1, 2)
    await turns()
    fine = ask(gathering, 3)
    clerk.let_go()
    done = await asyncio.gather(*failing, return_exceptions=True)
    clerk.error = None
    clerk.let_go()

    assert [str(error) for error in done] == ["no", "no"]
    assert await fine[0] == 6


async def test_answers_that_are_too_few_are_an_error_for_all() -> None:
    async def forget(asks: list[int]) -> list[int]:
        return asks[1:]

    done = await asyncio.gather(*ask(Batcher(forget), 1, 2), return_exceptions=True)

    assert [type(error) for error in done] == [ValueError, ValueError]


async def test_who_is_cancelled_before_the_call_is_left_out() -> None:
    clerk = Clerk()
    gathering = Batcher(clerk.answer, lasting=True)
    first = ask(gathering, 1)
    await turns()
    gone, stays = ask(gathering, 2, 3)
    await turns()
    gone.cancel()
    await turns()
    assert gone.cancelled()
    clerk.let_go(2)

    assert await asyncio.gather(*first, stays) == [2, 6]
    assert clerk.calls == [[1], [3]]


async def test_who_is_cancelled_during_the_call_harms_no_other() -> None:
    clerk = Clerk()
    gone, stays = ask(Batcher(clerk.answer), 1, 2)
    await turns()
    gone.cancel()
    await turns()
    assert gone.cancelled()
    clerk.let_go()

    assert await stays == 4


async def test_the_first_to_ask_is_cancelled_and_the_others_are_answered() -> None:
    clerk = Clerk()
    gathering = Batcher(clerk.answer)
    [first] = ask(gathering, 1)
    await turns()
    [second] = ask(gathering, 2)
    first.cancel()
    await turns()
    clerk.let_go(2)

    assert await second == 4


async def test_what_lasts_is_not_broken_off() -> None:
    clerk = Clerk()
    [gone] = ask(Batcher(clerk.answer, lasting=True), 1)
    await turns()
    gone.cancel()
    await turns()
    assert not gone.done()
    clerk.let_go()
    await turns()

    assert gone.cancelled()
    assert clerk.ended == 1


async def test_an_error_that_nobody_waits_for_is_no_complaint() -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
    for lasting in (False, True):
        clerk = Clerk()
        clerk.error = ValueError("no")
        [gone] = ask(Batcher(clerk.answer, lasting=lasting), 1)
        await turns()
        gone.cancel()
        await turns()
        clerk.let_go()
        await turns()
        assert gone.cancelled()
        del gone, clerk
    gc.collect()

    assert complaints == []


async def test_many_at_random_are_all_answered() -> None:
    sizes: list[int] = []

    async def answer(asks: list[int]) -> list[int]:
        sizes.append(len(asks))
        await asyncio.sleep(0.001)
        return [2 * what for what in asks]

    gathering = Batcher(answer)

    async def one(what: int) -> int:
        await asyncio.sleep(what % 17 / 2000)
        return await gathering.get(what)

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

    gathering = Batcher(answer)

    async def leave() -> None:
        asyncio.create_task(gathering.get(0))  # noqa: RUF006
        await turns()

    def run() -> None:
        asyncio.run(leave())
        both.wait()
        assert asyncio.run(gathering.get(1)) == 1

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
    assert len(gathering._rounds) == 0


async def test_a_call_that_fails_at_once_does_not_spin() -> None:
    async def fail(asks: list[int]) -> list[int]:
        raise OSError("down")

    gathering = Batcher(fail)
    for _ in range(3):
        with pytest.raises(OSError, match="down"):
            await gathering.get(1)
