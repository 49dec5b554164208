"""A private RabbitMQ for the tests, from Debian's package.

It lives in a temporary directory, listens on free ports of 127.0.0.1, has its own epmd (Erlang's
register of nodes), and is gone with the process that started it, however that ends.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Literal, Self

from tests.servers import free_port

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SECONDS = 60
CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
log.console.level = warning
vm_memory_high_watermark.absolute = 512MB
disk_free_limit.absolute = 1MB
"""

# Waits for a line or the end of its input: the test process closed the server, or was killed. Then
# ends the processes that the file names, if their command lines still are what it says.
KEEPER = """
read -r _
while read -r pid mark; do
    tr '\\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "$mark" && kill -KILL "$pid"
done <"$1/processes"
for _ in $(seq 100); do rm -rf "$1" 2>/dev/null && break; sleep 0.05; done
"""


class RabbitMQMissing(RuntimeError):
    """RabbitMQ is not installed; the message says how to get it."""


def find_rabbitmq() -> Path | None:
    """The server's start script, if Debian's package is there."""
    return PROGRAM if PROGRAM.exists() and shutil.which("erl") else None


class RabbitMQServer:
    """One private broker. Use it as a context manager, or call start() and close()."""

    def __init__(self) -> None:
        if find_rabbitmq() is None:
            raise RabbitMQMissing(
                "RabbitMQ is not installed: sudo apt-get install rabbitmq-server "
                "(as root, `make test` does it)."
            )
        self.user = _server_user()
        self.port = 0
        self._home: Path | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def home(self) -> Path:
        if self._home is None:
            raise RuntimeError("the server was never started")
        return self._home

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, for the first time or again with its data. Nothing if it runs."""
        if self.running:
            return
        try:
            if self._home is None:
                self._initialise()
            self._launch()
        except BaseException:
            self.close()
            raise

    def stop(self, mode: Literal["fast", "kill"] = "fast") -> None:
        """Take the server away; what is durable stays. "kill" is a crash."""
        if self._process is None:
            return
        if mode == "fast":
            self._process.terminate()
        else:
            self._process.kill()
        try:
            self._process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self, mode: Literal["fast", "kill"] = "fast") -> None:
        """Stop and start on the same port with the same data."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop at once and remove everything. May be called twice."""
        self.stop("kill")
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None
        if self._keeper is not None:
            # A line, not only the end: a forked child may still hold the pipe open.
            self._keeper.communicate(b"\n")
            self._keeper = None
        self._home = None

    def _initialise(self) -> None:
        root = "/tmp" if os.access("/tmp", os.W_OK) else None
        self._home = Path(tempfile.mkdtemp(prefix="duetime-rabbitmq-", dir=root))
        if self.user is not None:
            shutil.chown(self._home, self.user)
        self.port, epmd_port, node_port = free_port(), free_port(), free_port()
        (self.home / "rabbitmq.conf").write_text(CONFIGURATION.format(port=self.port))
        (self.home / "processes").touch()
        (self.home / "plugins").write_text("[].\n")
        for path in self.home.iterdir():
            path.chmod(0o644)
        kept = ("PATH", "LANG", "TZ", "TMPDIR")
        self._environment = {name: os.environ[name] for name in kept if name in os.environ} | {
            "HOME": str(self.home),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd_port),
            # The script then becomes the server, so that a signal meets the right process.
            "RABBITMQ_ALLOW_INPUT": "yes",
            "RABBITMQ_CONF_ENV_FILE": str(self.home / "none"),
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "plugins"),
            "RABBITMQ_LOG_BASE": str(self.home / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": str(self.home / "data"),
            "RABBITMQ_NODENAME": f"duetime{self.port}@localhost",
            "RABBITMQ_PID_FILE": str(self.home / "pid"),
        }
        self._keeper = self._run(["/bin/sh", "-c", KEEPER, "keeper", str(self.home)], hold=True)
        epmd = ["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"]
        self._epmd = self._run(epmd)
        self._remember(self._epmd, f"-port {epmd_port}")
        self._wait_for(epmd_port, self._epmd)

    def _launch(self) -> None:
        # The last argument means nothing to Erlang; by it the keeper knows the process.
        arguments = ["-noinput", "-start_epmd", "false", "-duetime", str(self.home)]
        self._process = self._run([str(PROGRAM), *arguments])
        self._remember(self._process, str(self.home))
        self._wait_for(self.port, self._process)

    def _run(self, command: list[str], *, hold: bool = False) -> subprocess.Popen[bytes]:
        with (self.home / "server.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE if hold else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._environment,
                user=self.user,
                extra_groups=None if self.user is None else [],
                # Ctrl-C is for the tests; they still need their broker while they clean up.
                start_new_session=True,
            )

    def _remember(self, process: subprocess.Popen[bytes], mark: str) -> None:
        with (self.home / "processes").open("a") as processes:
            processes.write(f"{process.pid} {mark}\n")

    def _wait_for(self, port: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until it listens, which RabbitMQ does when all of it has started."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if process.poll() is not None or time.monotonic() > deadline:
                said = (self.home / "server.log").read_text(errors="replace")
                raise RuntimeError(f"RabbitMQ did not start:\n{said}")
            time.sleep(0.02)


def _server_user() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "rabbitmq" if "rabbitmq" in known else "nobody"
