"""How long one thread may keep the interpreter while others wait for it."""

from __future__ import annotations

import sys
import threading

SWITCH_SECONDS = 0.0005
"""Python's default is 5 ms. Beside a handler that computes in a thread, each step of the event loop
waits that long, and each call of a SQLite store several times that."""


class FrequentSwitches:
    """Lets threads take turns often, in the whole process, until the last `with` block ends.

    A shorter interval of the application's own stays, and so does one that it sets meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = sys.getswitchinterval()
                if self._before > SWITCH_SECONDS:
                    sys.setswitchinterval(SWITCH_SECONDS)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and sys.getswitchinterval() == SWITCH_SECONDS:
                sys.setswitchinterval(self._before)


frequent_switches = FrequentSwitches()
