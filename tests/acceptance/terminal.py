"""A command on a terminal of its own, and what its screen shows."""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from tests.acceptance.command import DUETIME, ROOT, environment
from tests.waiting import PATIENCE


class Terminal:
    """`duetime …` on a pseudo-terminal. `screen` has the lines of the last frame."""

    def __init__(
        self,
        url: str,
        *arguments: str,
        columns: int = 80,
        lines: int = 24,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.settings = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [str(DUETIME), *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(url, **{"TERM": "xterm"} | dict(variables or {})),
            cwd=ROOT,
            start_new_session=True,
        )
        # Only the command has it now: after it has ended, a read fails once everything was read.
        os.close(slave)
        self.written = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def until(self, text: str, *, gone: str | None = None) -> list[str]:
        """Return the screen as soon as it shows this text, and no longer shows `gone`."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self._read()
            shown = "\n".join(self.screen)
            if text in shown and (gone is None or gone not in shown):
                return self.screen
            if self.process.poll() is not None:
                break
        raise AssertionError(f"{text!r} is not on the screen:\n{self.written[-3000:]!r}")

    def exit_code(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self._read() and time.monotonic() < deadline:
            pass
        return self.process.wait(timeout=PATIENCE)

    @property
    def screen(self) -> list[str]:
        """The lines of the last whole frame, without colours."""
        frames = self.written.split("\x1b[H")
        whole = [frame for frame in frames if "\x1b[J" in frame]
        if not whole:
            return []
        text = re.sub(r"\x1b\[[0-9;]*m", "", whole[-1].partition("\x1b[J")[0])
        return [line.removesuffix("\x1b[K") for line in text.split("\r\n")]

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was before."""
        ended_well = self.written.rstrip().endswith("\x1b[?25h\x1b[?1049l")
        return ended_well and termios.tcgetattr(self._master) == self.settings

    def drain(self) -> None:
        """Read what was written so far."""
        self._read()

    def _read(self) -> bool:
        """Read what was written; return whether more may come."""
        while select.select([self._master], [], [], 0.02)[0]:
            try:
                self.written += self._decoder.decode(os.read(self._master, 65536))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return False
        return True
