"""A terminal that is drawn again and again: no scrolling, keys without Enter, and restored whatever
happens."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from duetime.cli.output import write_terminal
from duetime.cli.top.frame import Style

_ENTER = "\x1b[?1049h\x1b[?25l"
"""Another screen, so that what was on the terminal comes back; no cursor."""
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
_COLOURS: Mapping[Style, str] = {
    Style.HEADING: "\x1b[1m",
    Style.BAD: "\x1b[1;31m",
    Style.FAINT: "\x1b[2m",
}
_RESET = "\x1b[0m"


class Screen:
    """Use it as a context manager inside of an event loop. `keys` has what was typed."""

    def __init__(self) -> None:
        self.keys: asyncio.Queue[str] = asyncio.Queue()
        self._input = sys.stdin.fileno()
        self._before: list[Any] = []
        self._paints = paints()

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._input)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._input, self._read)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.keys.put_nowait, "q")
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        loop.add_signal_handler(signal.SIGCONT, self._resume)
        loop.add_signal_handler(signal.SIGWINCH, self.keys.put_nowait, "")
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._input)
        self._leave()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            found = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            # Not the first choice: a COLUMNS in the environment does not follow the window.
            found = shutil.get_terminal_size()
        return max(20, found.columns), max(5, found.lines)

    def paint(self, text: str, style: Style) -> str:
        if not self._paints or style is Style.PLAIN:
            return text
        return f"{_COLOURS[style]}{text}{_RESET}"

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines that are shown. Nothing in them may be stored text that was not
        escaped."""
        _, height = self.size
        body = "\n".join(line + _TO_END_OF_LINE for line in lines[:height])
        write_terminal(f"{_HOME}{body}{_TO_END}")

    def _enter(self) -> None:
        # Keys come one by one and are not shown; Ctrl-C and Ctrl-Z stay signals.
        tty.setcbreak(self._input, termios.TCSANOW)
        write_terminal(_ENTER)

    def _leave(self) -> None:
        try:
            write_terminal(_LEAVE)
        finally:
            termios.tcsetattr(self._input, termios.TCSANOW, self._before)

    def _suspend(self) -> None:
        self._leave()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _resume(self) -> None:
        self._enter()
        self.keys.put_nowait("")

    def _read(self) -> None:
        try:
            typed = os.read(self._input, 1024)
        except OSError:
            typed = b""
        if not typed:
            # The terminal is gone.
            asyncio.get_running_loop().remove_reader(self._input)
            self.keys.put_nowait("q")
        elif not typed.startswith(b"\x1b"):  # Not an arrow key or the like.
            for key in typed.decode(errors="replace"):
                self.keys.put_nowait(key)


def paints() -> bool:
    """Whether the terminal shows colours, and its user wants them."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
