"""All rounds of the chosen systems, A B C A B C: what slows the machine down slows all of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.environment import execute
from bench.peers.installing import PeerMissing
from bench.peers.rounds import Round, Sizes, start_side
from bench.peers.systems import System
from bench.processes import ChildFailed
from bench.reading import Wrong
from bench.steal import Steal
from tests.servers import PostgresServer

Results = dict[str, Any]


@dataclass
class Comparison:
    """Runs systems beside each other on one server; what fails fails alone."""

    systems: dict[str, System]
    server: PostgresServer
    directory: Path
    sizes: Sizes
    rounds: int
    left_out: dict[str, str] = field(default_factory=dict)
    _found: dict[str, list[Round]] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)
    _stolen: dict[str, float] = field(default_factory=dict)

    def run(self) -> Results:
        for name, system in self.systems.items():
            with self._attempt(name):
                self._prepare(name, system)
        for number in range(self.rounds):
            for name in self._remaining():
                began = time.monotonic()
                with self._attempt(name), Steal() as steal:
                    self._measure(name, number)
                self._stolen[name] = self._stolen.get(name, 0.0) + steal.seconds
                took = time.monotonic() - began
                print(f"round {number + 1}: {name}, {took:.0f} s", flush=True)
        return self._results()

    def _remaining(self) -> list[str]:
        return [n for n in self.systems if n not in self.left_out and n not in self._failed]

    @contextmanager
    def _attempt(self, name: str) -> Iterator[None]:
        try:
            yield
        except PeerMissing as missing:
            self.left_out[name] = str(missing)
            print(f"{name} is left out: {missing}", flush=True)
        except (Wrong, ChildFailed) as failed:
            self._failed[name] = str(failed)
            print(f"{name} FAILED: {failed}", flush=True)

    def _prepare(self, name: str, system: System) -> None:
        """Install it, and create its tables once; each round begins with a copy."""
        if system.store == "postgresql":
            self.server.create_database(f"peer_{name}")
        with start_side(system, "prepare", self.directory, url=self._url(name)) as side:
            side.hear()

    def _measure(self, name: str, number: int) -> None:
        system = self.systems[name]
        copy = f"{name}_{number}"
        url = self._url(name, copy)
        if system.store == "postgresql":
            create = f"create database peer_{copy} template peer_{name}"
            execute(self.server.dsn(), create, "checkpoint")
        elif system.store == "sqlite":
            self._file(copy).write_bytes(self._file(name).read_bytes())

        def settle() -> None:
            if system.store == "postgresql":
                execute(url, "vacuum analyze", "checkpoint")

        one = Round(system, url, self.sizes, self.directory, settle)
        try:
            one.run()
        finally:
            if system.store == "postgresql":
                with suppress(Exception):
                    self.server.drop_database(f"peer_{copy}")
        self._found.setdefault(name, []).append(one)

    def _url(self, name: str, copy: str | None = None) -> str:
        """Return what the system of this name connects to: its template, or a copy of it."""
        system = self.systems[name]
        if system.store == "postgresql":
            return self.server.dsn(f"peer_{copy or name}")
        file = self._file(copy or name)
        return f"sqlite:///{file}" if system.side == "duetime" else str(file)

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.db"

    def _results(self) -> Results:
        return {
            "machine": {"cores": os.cpu_count(), "postgresql": self._setting("server_version")}
            | {name: self._setting(name) for name in ("fsync", "synchronous_commit")},
            "systems": {
                name: self._describe(name) for name in self.systems if name not in self.left_out
            },
            "left_out": self.left_out,
        }

    def _setting(self, name: str) -> str:
        [[value]] = execute(self.server.dsn(), f"show {name}")
        return str(value)

    def _describe(self, name: str) -> dict[str, Any]:
        system, rounds = self.systems[name], self._found.get(name, [])
        return {
            "title": system.title,
            "version": system.version,
            "store": system.store,
            "durable": system.durable,
            "settings": system.settings,
            "date": datetime.now(UTC).date().isoformat(),
            "jobs": round(system.jobs * self.sizes.share),
            "executed": sum(one.executed for one in rounds),
            "stolen_seconds": round(self._stolen.get(name, 0.0), 2),
            "failed": self._failed.get(name),
            "figures": {} if name in self._failed else _medians(rounds),
        }


def _medians(rounds: Sequence[Round]) -> dict[str, Any]:
    return {
        figure: {
            "value": _round(statistics.median(one.figures[figure] for one in rounds)),
            "rounds": [_round(one.figures[figure]) for one in rounds],
        }
        for figure in rounds[0].figures
    }


def _round(value: float) -> float:
    return float(f"{value:.4g}")
