"""Peers that one measure of `python -m bench` stands beside: schedules that tick, flows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.installing import PeerMissing, install, python_of
from bench.raw_flows import PAUSE_SECONDS
from bench.scale import Scale

_ENVIRONMENTS = {
    "apscheduler_3.py": "apscheduler_3",
    "celery_beat.py": "celery",
    "dbos_flows.py": "dbos",
}
_START_SECONDS = 45.0


@dataclass
class Peers:
    """Each is installed when it is first asked for, and measured once."""

    scale: Scale
    directory: Path
    _installed: dict[str, Path | PeerMissing] = field(default_factory=dict)
    """By script: its environment, or why there is none."""
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
        home = self._install(script)
        if (script, given) not in self._found:
            self._found[script, given] = self._run(script, given, home)
        return self._found[script, given]

    def _install(self, script: str) -> Path:
        if script not in self._installed:
            try:
                self._installed[script] = install(_ENVIRONMENTS[script])
            except PeerMissing as missing:
                self._installed[script] = missing
        home = self._installed[script]
        if isinstance(home, PeerMissing):
            raise home
        return home

    def _run(self, script: str, parameters: str, home: Path) -> dict[str, Any]:
        self.directory.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [python_of(home), Path(__file__).parent / script, parameters],
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
