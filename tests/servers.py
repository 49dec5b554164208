"""Private PostgreSQL clusters for tests and measurements.

A cluster lives in a temporary directory, listens on a free port of 127.0.0.1 and on a Unix socket,
trusts everyone on this machine, and is gone with the process that started it, however that ends.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, LiteralString, Self

import psycopg
from psycopg import sql

from tests.postgres_binaries import Binaries, executable_by_server, server_user

SUPERUSER = "duetime"
START_SECONDS = 30
SETTINGS = {
    "max_connections": "300",
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}
# Nothing in a test cluster has to survive a power failure.
UNSAFE_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
# So it lives in memory, where there is much: on a disk that is busy the kernel takes many times as
# long to copy the files of a database, and most tests have one made.
MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 4 * 2**30
STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}

# Waits for a line or the end of its input: the test process closed the cluster, or was killed.
# Then ends the server, if the process that its pid file names is that server, and removes all.
KEEPER = """
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
ours() { [ -n "$pid" ] && tr '\\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "$1/data"; }
if ours "$1"; then
    kill -QUIT "$pid"; kill -CONT "$pid"
    for _ in $(seq 250); do ours "$1" || break; sleep 0.02; done
    ours "$1" && kill -KILL "$pid"
fi
rm -rf "$1"
"""


class PostgresServer:
    """One private cluster. Use it as a context manager, or call start() and close()."""

    def __init__(
        self,
        binaries: Binaries,
        *,
        fsync: bool = False,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.binaries = executable_by_server(binaries)
        self.settings = SETTINGS | ({} if fsync else UNSAFE_SETTINGS) | (settings or {})
        self._root = None if fsync else _memory()
        self.user = server_user()
        self.port = 0
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []
        self._databases = 0
        self._administrator: psycopg.Connection[Any] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def major(self) -> int:
        return self.binaries.major

    @property
    def home(self) -> Path:
        if self._home is None:
            raise RuntimeError("the server was never started")
        return self._home

    @property
    def log(self) -> Path:
        return self.home / "data" / "server.log"

    @property
    def pid(self) -> int:
        """Of the postmaster, whose children serve the sessions."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def dsn(self, dbname: str = "postgres") -> str:
        """The URL of a database, over TCP, which every driver understands."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{dbname}"

    def socket_dsn(self, dbname: str = "postgres") -> str:
        """The URL of a database over the Unix socket, for libpq's drivers; it is the faster one."""
        return f"postgresql://{SUPERUSER}@/{dbname}?host={self.home}&port={self.port}"

    # Life

    def start(self) -> None:
        """Start the server, with a new cluster the first time. Does nothing if it runs."""
        if self.running:
            return
        if self._home is not None:
            self._launch()
            return
        self._initialise()
        for remaining in reversed(range(5)):
            self.port = free_port()
            try:
                self._launch()
                return
            except RuntimeError as error:
                if not remaining or "Address already in use" not in str(error):
                    self.close()
                    raise

    def stop(self, mode: Literal["fast", "immediate", "kill"] = "fast") -> None:
        """Take the server away; its data stay. "immediate" is a crash with goodbye, "kill" without.

        After "kill" the backends notice the postmaster's death by themselves.
        """
        self.resume()
        if self._process is None:
            return
        if self._administrator is not None:
            self._administrator.close()
        children = _children(self._process.pid) if mode == "kill" else []
        if self.running:
            self._process.send_signal(STOP_SIGNALS[mode])
        try:
            self._process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        _wait_until_gone(children)

    def restart(self, mode: Literal["fast", "immediate", "kill"] = "fast") -> None:
        """Stop and start on the same port with the same data."""
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """Freeze every process of the server: connections stay open and nothing answers."""
        if self._process is None or self._paused:
            return
        # The postmaster first, so that no new backend escapes.
        postmaster = self._process.pid
        _freeze([postmaster])
        self._paused = [postmaster, *_children(postmaster)]
        _freeze(self._paused)

    def resume(self) -> None:
        """Undo pause(). Does nothing if the server is not paused."""
        for pid in reversed(self._paused):
            _send(pid, signal.SIGCONT)
        self._paused.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """pause() and resume() around a block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """Stop at once and remove the cluster. May be called twice."""
        self.stop("immediate")
        if self._keeper is not None and self._keeper.stdin is not None:
            # A line, not only the end: a forked child may still hold the pipe open.
            self._keeper.communicate(b"\n")
        self._keeper = None
        self._home = None

    # Databases

    def create_database(self, name: str | None = None, *, template: str = "template0") -> str:
        """Create a database, with a new name if none is given, and return its name."""
        if name is None:
            self._databases += 1
            name = f"test_{self._databases}"
        # Without fsync a copy of the files takes a third of the time of one through the log.
        strategy = " STRATEGY file_copy" if self.major >= 15 else ""
        self._administer("CREATE DATABASE {} TEMPLATE {}" + strategy, name, template)
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it. Does nothing if there is none."""
        self._administer("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _administer(self, statement: LiteralString, *names: str) -> None:
        if self._administrator is None or self._administrator.closed:
            self._administrator = psycopg.connect(self.dsn(), autocommit=True)
        self._administrator.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    # The processes

    def _initialise(self) -> None:
        # Short, and open to the server's user: a socket's path has at most 107 characters, and a
        # TMPDIR may be deep or closed.
        root = self._root or ("/tmp" if os.access("/tmp", os.W_OK) else None)
        self._home = Path(tempfile.mkdtemp(prefix="duetime-pg-", dir=root))
        if self.user is not None:
            shutil.chown(self._home, self.user)
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, "keeper", self._home],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            user=self.user,
            extra_groups=self._extra_groups,
            start_new_session=True,
        )
        options = {"pgdata": str(self.home / "data"), "username": SUPERUSER, "auth": "trust"}
        options |= {"encoding": "UTF8", "locale": "C"}
        done = subprocess.run(
            [
                self._program("initdb"),
                *(f"--{name}={value}" for name, value in options.items()),
                "--no-sync",
                "--no-instructions",
            ],
            capture_output=True,
            text=True,
            cwd=self.home,
            env=self._environment,
            user=self.user,
            extra_groups=self._extra_groups,
        )
        if done.returncode != 0:
            self.close()
            raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")

    def _launch(self) -> None:
        options = self.settings | {
            "port": str(self.port),
            "unix_socket_directories": str(self.home),
        }
        self.log.touch()
        written = self.log.stat().st_size
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program("postgres"),
                    f"-D{self.home / 'data'}",
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=self._environment,
                user=self.user,
                extra_groups=self._extra_groups,
                # Ctrl-C is for the tests; they still need their database while they clean up.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            if not self.running or time.monotonic() > deadline:
                self.stop("kill")
                said = self.log.read_bytes()[written:].decode(errors="replace")
                raise RuntimeError(f"PostgreSQL {self.major} did not start:\n{said}")
            time.sleep(0.005)

    def _ready(self) -> bool:
        """Whether the pid file names this process and its eighth line says that it is ready."""
        assert self._process is not None
        try:
            lines = (self.home / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return (
            len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready"
        )

    def _program(self, name: str) -> str:
        return str(self.binaries.directory / name)

    @property
    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))}
        return inherited | {"LANG": "C", "LC_ALL": "C"}

    @property
    def _extra_groups(self) -> list[str | int] | None:
        return None if self.user is None else []


def _memory() -> str | None:
    """The folder that lies in memory, if it has room for the servers of a whole run."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_NEEDED:
        return None
    return str(MEMORY)


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to outgoing connections.

    A client that knocks on an ephemeral port while its server is away may be connected to itself,
    and then keeps the server from coming back.
    """
    ports = list(range(20_000, 32_000))
    random.SystemRandom().shuffle(ports)
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("every port from 20000 to 31999 is taken")


def _children(parent: int) -> list[int]:
    return [pid for pid, (_, its_parent) in _processes() if its_parent == parent]


def _processes() -> Iterator[tuple[int, tuple[str, int]]]:
    """Every process's id, with its state and its parent, as Linux shows them."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command's name, in parentheses, may hold spaces; state and parent follow it.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield int(stat.parent.name), (state, int(parent))


def _freeze(pids: Collection[int]) -> None:
    """Stop processes, and wait until they have: a signal is sent, not delivered, at once."""
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    deadline = time.monotonic() + START_SECONDS
    while any(state not in "TtZX" for pid, (state, _) in _processes() if pid in pids):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all of {sorted(pids)} stopped in {START_SECONDS} s")
        time.sleep(0.001)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _wait_until_gone(pids: list[int]) -> None:
    """Wait for processes that are not ours to reap; their shared memory forbids a new start."""
    deadline = time.monotonic() + START_SECONDS
    # A zombie counts as gone: in a container nobody may reap it.
    while any(pid in pids and state != "Z" for pid, (state, _) in _processes()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {pids} of a killed server are still there")
        time.sleep(0.01)
