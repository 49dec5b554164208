"""What of a run goes on in this process, and when it stops: the run waits, or is interrupted."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from duetime.engine.context import Context
from duetime.errors import ClaimLost
from duetime.flows.branches import Branch
from duetime.flows.turns import Turns
from duetime.flows.unwinding import Suspended

_IDLE_TURNS = 3
"""A function waits once it did nothing for so many turns of the event loop: what `gather` has just
made needs one to start."""
_IDLE_TURNS_OF_BRANCHES = 12
"""An error needs two for each task group that it ends, one in the other."""


class Activity:
    """The calls of an activation that run, and those that wait for something outside of it.

    A function does not say that it waits; it just makes no more calls. So while calls wait, the run
    is watched: once no call runs, and none has begun or ended for some turns of the event loop, the
    run is suspended. If recorded calls wait for their turn, the next of them returns instead.
    """

    def __init__(self, ctx: Context, main: Branch, turns: Turns) -> None:
        self._ctx = ctx
        self._main = main
        self._turns = turns
        self._running = 0
        self.moves = 0
        """Counts the calls and branches that began, and the calls that ended: it changes as long as
        the function makes progress."""
        self._waiting: dict[asyncio.Future[None], tuple[int, ...]] = {}
        """What ends the wait of a branch, and the calls that it waits for."""
        self._is_watched = False
        self._is_suspended = False
        self._interruption: BaseException | None = None

    @property
    def interruption(self) -> BaseException | None:
        """What ends this activation, though not the run. The function cannot handle it: every later
        call raises it again, and so does the end of the function."""
        if self._interruption is None and self._ctx.has_to_leave:
            # The function was cancelled and goes on, to clean up for example. It has not failed:
            # the next activation continues with the call that was under way.
            self._interruption = self._claim_lost()
        return self._interruption

    def interrupt(self, error: BaseException) -> None:
        """End this activation with an error that says nothing of the call that raises it: the same
        call may return in the next activation."""
        if self._interruption is None:
            self._interruption = error

    def _claim_lost(self) -> ClaimLost:
        return ClaimLost(self._ctx.id, self._ctx.token)

    # Calls that run

    def check(self) -> None:
        """Raise what prevents calls from doing anything more in this activation."""
        if self.interruption is None and not self._ctx.holds_lease():
            # The process stood still: another worker may have done meanwhile what comes next.
            self.interrupt(self._claim_lost())
        if self.interruption is not None:
            raise self.interruption

    def start(self) -> None:
        """A call begins to run."""
        self.check()
        self._running += 1

    def stop(self) -> None:
        """A call has run."""
        self._running -= 1
        self.moves += 1
        if self._waiting and not self._running:
            self._watch()

    @property
    def is_running(self) -> bool:
        return self._running > 0

    @property
    def is_one_call(self) -> bool:
        """Whether just one call runs, and none waits."""
        return self._running == 1 and not self._waiting

    # Calls that wait

    @property
    def waits(self) -> list[int]:
        """The calls that wait, of which none can go on."""
        return [seq for calls in self._waiting.values() for seq in calls]

    async def wait(self, *calls: int) -> None:
        """Wait for something outside of this process: the run goes on in another activation."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = calls
        if not self._running:
            self._watch()
        try:
            await future
        except asyncio.CancelledError:
            if not self._is_suspended:
                # A task group has cut the branch off: the run does not wait for this any more.
                del self._waiting[future]
            raise

    async def wait_for_turn(self, turn: asyncio.Future[None]) -> None:
        """Wait until a recorded call may return."""
        self._watch()
        self._running += 1
        try:
            await turn
        finally:
            self.stop()

    async def settle(self) -> None:
        """The function has ended: wait until the calls that it left running have ended, too. If the
        run went on without them, they would be made a second time while the first is under way."""
        if not self._is_suspended and (self._running or self._waiting):
            with suppress(Suspended):
                await self.wait()

    # When nothing goes on

    def _watch(self) -> None:
        """Let the next call return, or suspend the run, once nothing begins or ends for a while."""
        if not self._is_watched:
            self._is_watched = True
            self._check(0, -1)

    def _check(self, turns: int, moves: int) -> None:
        in_turn = self._turns.are_awaited
        if not in_turn and (self._running or self._is_suspended or not self._waiting):
            self._is_watched = False
            return
        if self.moves != moves:
            moves = self.moves
            turns = _IDLE_TURNS_OF_BRANCHES if self._main.branches else _IDLE_TURNS
        if turns:
            asyncio.get_running_loop().call_soon(self._check, turns - 1, moves)
            return
        if in_turn:
            self._turns.next()
            self._check(0, -1)
            return
        self._is_suspended = True
        self.interrupt(Suspended())
        for future in self._waiting:
            if not future.done():
                future.set_exception(Suspended())
