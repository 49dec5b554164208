"""What a store's thread waits for: calls of this process, and writes of other ones.

On Linux the kernel reports writes to the database's log (inotify). A job of another process is then
seen as soon as it is committed, and an idle process rarely wakes up. Elsewhere the thread polls.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

_MODIFIED = 0x2
"""IN_MODIFY of inotify(7)."""


class Written(Empty):
    """The file was written to, by this process or another one."""


class Inbox(Protocol[T]):
    """Calls for one thread, in order. `put` may be called by any thread."""

    watches: bool
    """Whether `get` can report writes."""

    def put(self, call: T) -> None: ...

    def get(self, seconds: float | None, *, watch: bool) -> T:
        """Return the next call. Raises Empty after `seconds`, Written after a reported write."""

    def forget_writes(self) -> None:
        """Writes until now were our own."""

    def close(self) -> None: ...


def open_inbox(log: str) -> Inbox[T]:
    """Return an inbox that watches the file `log`, if that is possible here."""
    if sys.platform == "linux":
        try:
            return WatchingInbox(log)
        except OSError:
            # Too many watches, or a kernel without them.
            pass
    return PolledInbox()


class PolledInbox(Generic[T]):
    watches = False

    def __init__(self) -> None:
        self._calls: SimpleQueue[T] = SimpleQueue()

    def put(self, call: T) -> None:
        self._calls.put(call)

    def get(self, seconds: float | None, *, watch: bool) -> T:
        return self._calls.get(timeout=seconds)

    def forget_writes(self) -> None: ...

    def close(self) -> None: ...


class WatchingInbox(Generic[T]):
    watches = True

    def __init__(self, log: str) -> None:
        self._calls: deque[T] = deque()
        self._lock = threading.Lock()
        self._waits = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._writes = _watch(log)
        except OSError:
            os.close(self._bell)
            raise
        self._for_calls = select.poll()
        self._for_both = select.poll()
        self._for_calls.register(self._bell, select.POLLIN)
        self._for_both.register(self._bell, select.POLLIN)
        self._for_both.register(self._writes, select.POLLIN)

    def put(self, call: T) -> None:
        self._calls.append(call)
        # Either this sees that the thread waits, or the thread sees the call. The lock: once the
        # thread has closed the bell, its number may be that of another file.
        with self._lock:
            if self._waits:
                os.eventfd_write(self._bell, 1)

    def get(self, seconds: float | None, *, watch: bool) -> T:
        until = None if seconds is None else time.monotonic() + seconds
        while not self._calls:
            self._waits = True
            if not self._calls:
                self._wait(until, self._for_both if watch else self._for_calls)
            self._waits = False
        return self._calls.popleft()

    def _wait(self, until: float | None, poll: select.poll) -> None:
        """Wait for the bell, which may also have rung for a call that was taken since."""
        left = None if until is None else max(0.0, until - time.monotonic())
        ready = {one for one, _ in poll.poll(None if left is None else left * 1e3)}
        if self._bell in ready:
            os.eventfd_read(self._bell)
        if self._writes in ready:
            self.forget_writes()
        if self._calls or (self._bell in ready and self._writes not in ready):
            return
        self._waits = False
        raise Written if self._writes in ready else Empty

    def forget_writes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._writes, 4096)

    def close(self) -> None:
        with self._lock:
            self._waits = False
            os.close(self._writes)
            os.close(self._bell)


def _watch(path: str) -> int:
    """Return a descriptor that becomes readable when the file is written to."""
    import ctypes  # Loaded when used: most imports of Duetime need no ctypes.

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _MODIFIED) < 0:
        error = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(error, "inotify_add_watch", path)
    return descriptor
