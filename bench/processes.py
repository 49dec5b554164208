"""Processes of their own for what is measured, and the lines of JSON that they exchange."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parent.parent
ANSWER_SECONDS = 120.0
_GONE = object()


class ChildFailed(RuntimeError):
    """A measured process ended, or did not answer in time."""


class Child:
    """A process in one role (see `bench.child`). It ends when we close it, and when we die.

    `command`: another program that reads and writes the same lines. `errors`: where its standard
    error goes; ours by default.
    """

    def __init__(
        self,
        role: str,
        *,
        command: Sequence[str] | None = None,
        errors: IO[Any] | None = None,
        **parameters: Any,
    ) -> None:
        self.role = role
        self.ended = 0
        """How many jobs it said have ended."""
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", "bench.child", role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            # Ctrl-C is for us; the end of its input tells the child.
            start_new_session=True,
        )
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.tell(parameters)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, message: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise ChildFailed(f"{self.role} ended by itself; its error is above") from None

    def hear(self, seconds: float = ANSWER_SECONDS) -> Any:
        """Return the next message; raise `ChildFailed` if there is none in time."""
        try:
            return self._checked(self._said.get(timeout=seconds))
        except queue.Empty:
            raise ChildFailed(f"{self.role} said nothing for {seconds:g} s") from None

    def heard(self) -> list[Any]:
        """Return what was said meanwhile, without waiting."""
        return [self._checked(self._said.get()) for _ in range(self._said.qsize())]

    def close(self) -> None:
        """Let it end by the end of its input; insist if it does not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass  # It is gone already, with something of ours unread.
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _checked(self, message: Any) -> Any:
        if message is _GONE:
            raise ChildFailed(f"{self.role} ended by itself; its error is above")
        return message

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.put(json.loads(line))
        self._said.put(_GONE)


@contextmanager
def children(count: int, role: str, **parameters: Any) -> Iterator[list[Child]]:
    """Several processes in the same role, each ready: its first message was heard."""
    with ExitStack() as stack:
        started = [stack.enter_context(Child(role, **parameters)) for _ in range(count)]
        for child in started:
            child.hear()
        yield started
