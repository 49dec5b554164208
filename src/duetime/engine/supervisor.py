"""Several worker processes under one parent, which replaces those that die."""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from types import FrameType

from duetime.engine.process import COULD_NOT_START, DAMAGED, STOP_SIGNALS
from duetime.telemetry.events import log_event

log = logging.getLogger("duetime.runtime")

_BACKOFF = (1.0, 2.0, 4.0)
_STEADY_SECONDS = 30.0
"""A child that lived this long did not die because of how it starts."""
_TICK_SECONDS = 0.05
_FORCED_SECONDS = 2.0


class Child:
    """A worker process and its replacements."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.failures = 0
        self.start_at = 0.0
        self.could_not_start = False

    def start(self, command: Sequence[str]) -> None:
        # In a separate process group, Ctrl-C in a terminal reaches only the parent, which forwards
        # it. Otherwise one key press would count as two signals.
        self.process = subprocess.Popen(command, process_group=0)
        self.started_at = time.monotonic()
        log_event(
            log,
            logging.INFO,
            "process_started",
            "Worker process %(number)s started with the process id %(pid)s.",
            number=self.number,
            pid=self.process.pid,
        )

    def send(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class Supervisor:
    """Runs `count` children until a signal; `command(n)` is the command line of the n-th."""

    def __init__(self, count: int, *, command: Callable[[int], Sequence[str]]) -> None:
        self._children = [Child(number) for number in range(1, count + 1)]
        self._command = command
        self._signals: list[int] = []
        self._forwarded = 0
        self._code = 0
        self._stopping = False

    def run(self, *, greet: Callable[[], None] = lambda: None) -> int:
        """Return the highest exit code of the children when all have exited.

        `greet` is called once signals are handled.
        """
        former = {number: signal.signal(number, self._received) for number in STOP_SIGNALS}
        try:
            greet()
            while self._step():
                time.sleep(_TICK_SECONDS)
        finally:
            for child in self._children:
                child.send(signal.SIGKILL)
            for number, handler in former.items():
                signal.signal(number, handler)
        return self._code

    def _step(self) -> bool:
        """Forward signals, start missing children, reap dead ones; return whether to continue."""
        now = time.monotonic()
        if self._forwarded < len(self._signals):
            self._forwarded += 1
            self._stop()
        for child in self._children:
            if child.process is None:
                if not self._stopping and now >= child.start_at:
                    child.start(self._command(child.number))
            elif (code := child.process.poll()) is not None:
                child.process = None
                self._exited(child, code)
        if self._forwarded > 2:
            return self._force()
        return not self._stopping or any(child.process for child in self._children)

    def _exited(self, child: Child, code: int) -> None:
        if self._stopping:
            # Our signal killed it before it had started: it held no jobs.
            self._remember(0 if code == -signal.SIGTERM else code)
            return
        if code == DAMAGED:
            # They all use the same file.
            self._remember(code)
            self._stop()
            return
        child.could_not_start = code == COULD_NOT_START
        if all(one.could_not_start and one.process is None for one in self._children):
            # All have logged why, and would fail again. As long as one child works, the failure may
            # be temporary: the database was read-only, or being migrated.
            self._remember(code)
            self._stop()
            return
        lived = time.monotonic() - child.started_at
        child.failures = 1 if lived >= _STEADY_SECONDS else child.failures + 1
        wait = _BACKOFF[min(child.failures, len(_BACKOFF)) - 1]
        child.start_at = time.monotonic() + wait
        if child.could_not_start:
            log_event(
                log,
                logging.WARNING,
                "process_cannot_start",
                "Worker process %(number)s could not start. It is started again in "
                "%(restart_in_s)g s.",
                number=child.number,
                restart_in_s=wait,
            )
            return
        log_event(
            log,
            logging.ERROR,
            "process_died",
            "Worker process %(number)s died with exit code %(exit_code)s. It is started again in "
            "%(restart_in_s)g s.",
            number=child.number,
            exit_code=code,
            restart_in_s=wait,
        )

    def _received(self, number: int, _frame: FrameType | None) -> None:
        # Only recorded here: this may interrupt the start of a child.
        self._signals.append(number)

    def _stop(self) -> None:
        self._stopping = True
        for child in self._children:
            child.send(signal.SIGTERM)

    def _force(self) -> bool:
        deadline = time.monotonic() + _FORCED_SECONDS
        while time.monotonic() < deadline and any(
            child.process is not None and child.process.poll() is None for child in self._children
        ):
            time.sleep(_TICK_SECONDS)
        self._remember(128 + self._signals[-1])
        return False

    def _remember(self, code: int) -> None:
        self._code = max(self._code, 128 - code if code < 0 else code)
