"""Debian's Chromium, started once per test process and driven by Playwright."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

_ADDRESS = re.compile(r"DevTools listening on (ws://\S+)")
_START_SECONDS = 30


def find_chromium() -> str | None:
    """The browser's command; None: it is not installed, and its tests are skipped."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Chromium:
    """One browser without a window. Each test connects to it and gets a profile of its own."""

    def __init__(self, command: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="duetime-chromium-")
        self._process = subprocess.Popen(
            [
                command,
                "--headless=new",
                "--no-sandbox",  # The tests may run as root.
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--hide-scrollbars",
                "--remote-debugging-port=0",
                f"--user-data-dir={self._folder}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._found = threading.Event()
        self.address = ""
        threading.Thread(target=self._read, daemon=True).start()
        if not self._found.wait(_START_SECONDS):
            self.close()
            raise RuntimeError("Chromium did not start in time.")

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := _ADDRESS.search(line):
                self.address = found[1]
                self._found.set()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(Path(self._folder), ignore_errors=True)
