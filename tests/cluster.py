"""A private cluster of PostgreSQL servers that replicate, under Patroni and etcd, on loopback.

Each node has a port and a directory of its own, and a Patroni that keeps it running and promotes
it.
Everything is gone with the process that started it, however that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.postgres_binaries import Binaries, executable_by_server, server_user
from tests.servers import (
    SETTINGS,
    SUPERUSER,
    UNSAFE_SETTINGS,
    _children,
    _memory,
    _send,
    _wait_until_gone,
    free_port,
)

START_SECONDS = 90
"""Patroni is a Python program that starts others: on a busy machine that takes its time."""

# Waits for a line or the end of its input, then ends every process whose arguments name the
# directory, Patroni first, so that it starts no server again, and removes the directory.
KEEPER = """
read -r _
# The pattern is not an argument: grep would find itself.
named() { echo "$home/$1" | grep -lsaF -f - /proc/[0-9]*/cmdline | tr -dc '0-9\\n'; }
end() { for pid in $(named "$2"); do kill "-$1" "$pid"; done; }
home=$1
end KILL patroni-
end QUIT data-
for _ in $(seq 100); do [ -z "$(named data-)" ] && break; sleep 0.05; done
end KILL ''
rm -rf "$home" || { sleep 1; rm -rf "$home"; }
"""


_STREAMING = (
    "select count(*) from pg_stat_replication"
    " where state = 'streaming' and application_name <> 'pg_basebackup'"
)


def find_patroni() -> str | None:
    return shutil.which("patroni")


def find_etcd() -> str | None:
    return shutil.which("etcd")


class Node:
    """One PostgreSQL server with its Patroni."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.name = f"node{number}"
        self.port = free_port()
        self.api_port = free_port()
        self.data = cluster.home / f"data-{self.name}"
        self._cluster = cluster
        self._settings = cluster.home / f"patroni-{self.name}.yml"
        self._patroni: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._cluster.home / f"{self.name}.log"

    def dsn(self, dbname: str = "postgres") -> str:
        """The URL of a database on this node alone, whatever its role."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{dbname}"

    def start(self) -> None:
        """Start its Patroni, which starts the server as what the cluster needs. Does not wait."""
        # JSON is YAML.
        self._settings.write_text(json.dumps(self._cluster.settings_of(self), indent=2))
        self._patroni = self._cluster.launch([str(find_patroni()), str(self._settings)], self.log)

    def kill(self, *, machine: bool = True) -> None:
        """SIGKILL of the server's processes; with `machine`, of its Patroni before, as if the
        machine had died. Otherwise Patroni notices the crash, and hands the lock on."""
        if machine and self._patroni is not None:
            self._patroni.kill()
            self._patroni.wait()
            self._patroni = None
        try:
            postmaster = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        # The postmaster first, so that it starts no process again and records nothing.
        _send(postmaster, signal.SIGSTOP)
        processes = [postmaster, *_children(postmaster)]
        for pid in processes:
            _send(pid, signal.SIGKILL)
        _wait_until_gone(processes)

    def restart(self) -> None:
        """Start its Patroni again if that was killed: it comes back as a standby."""
        if self._patroni is None or self._patroni.poll() is not None:
            self.start()


class Cluster:
    """Three nodes and etcd. Use it as a context manager."""

    def __init__(self, binaries: Binaries, *, synchronous: bool = True, nodes: int = 3) -> None:
        for program, found in (("patroni", find_patroni()), ("etcd", find_etcd())):
            if found is None:
                raise RuntimeError(
                    f"{program} is not installed. Run: python -m tests.setup_servers (as root), or "
                    "sudo apt-get install patroni etcd-server"
                )
        self.binaries = executable_by_server(binaries)
        self.synchronous = synchronous
        self.user = server_user()
        self.home = Path()
        self.nodes: list[Node] = []
        self._count = nodes
        self._etcd_port = 0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="duetime-ha-", dir=_memory() or "/tmp"))
        if self.user is not None:
            shutil.chown(self.home, self.user)
        self._keeper = self.launch(
            ["/bin/sh", "-c", KEEPER, "keeper", str(self.home)], stdin=subprocess.PIPE
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything and remove it. May be called twice."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.communicate(b"\n")
        for process in self._processes:
            process.wait()

    def dsn(self, dbname: str = "postgres", *, attrs: str = "read-write") -> str:
        """The URL of a database on whichever node accepts writes."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://{SUPERUSER}@{hosts}/{dbname}?target_session_attrs={attrs}"

    def create_database(self, name: str) -> str:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f'create database "{name}"'.encode())
        return self.dsn(name)

    def find_primary(self) -> Node | None:
        """The node that accepts writes now; None if there is none."""
        for node in self.nodes:
            if self._ask(node, "select not pg_is_in_recovery()"):
                return node
        return None

    def wait_for_primary(self) -> Node:
        return self._wait(self.find_primary, "a primary")

    def wait_for_standbys(self) -> Node:
        """Wait until every other node follows the primary, and one is synchronous if one must be.

        Returns the primary.
        """
        return self._wait(self._find_followed, "a primary and its standbys")

    def _find_followed(self) -> Node | None:
        primary = self.find_primary()
        if primary is None:
            return None
        # By what Patroni has written to etcd: only such a standby is promoted. PostgreSQL counts it
        # as synchronous a moment earlier.
        try:
            url = f"http://127.0.0.1:{primary.api_port}/cluster"
            with urllib.request.urlopen(url, timeout=5) as answer:
                members = {one["name"]: one for one in json.load(answer)["members"]}
        except (OSError, ValueError):
            return None
        standbys = [one for name, one in members.items() if name != primary.name]
        running = [one for one in standbys if one["state"] in ("running", "streaming")]
        if members.get(primary.name, {}).get("role") != "leader":
            return None
        if len(running) < len(self.nodes) - 1 or (self._ask(primary, _STREAMING) or 0) < len(
            running
        ):
            return None
        if self.synchronous and not any(one["role"] == "sync_standby" for one in running):
            return None
        return primary

    def _wait(self, find: Callable[[], Node | None], what: str) -> Node:
        deadline = time.monotonic() + START_SECONDS
        while (node := find()) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {what} within {START_SECONDS} s:\n{self._tails()}")
            time.sleep(0.05)
        return node

    def _ask(self, node: Node, statement: str) -> Any:
        try:
            with psycopg.connect(node.dsn(), connect_timeout=5) as connection:
                row = connection.execute(statement.encode()).fetchone()
        except psycopg.Error:
            return None
        return row[0] if row else None

    def _start(self) -> None:
        self._etcd_port, peer_port = free_port(), free_port()
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{peer_port}"
        options = {
            "name": "etcd",
            "data-dir": str(self.home / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"etcd={peer}",
            "logger": "zap",
        }
        self.launch(
            [str(find_etcd()), *(f"--{name}={value}" for name, value in options.items())],
            self.home / "etcd.log",
        )
        self.nodes = [Node(self, number) for number in range(1, self._count + 1)]
        for node in self.nodes:
            node.start()
        self.wait_for_standbys()

    def settings_of(self, node: Node) -> dict[str, Any]:
        """Patroni's configuration of a node. The guide, Many machines, shows the same."""
        return {
            "scope": "duetime",
            "name": node.name,
            "restapi": {
                "listen": f"127.0.0.1:{node.api_port}",
                "connect_address": f"127.0.0.1:{node.api_port}",
            },
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {
                "dcs": {
                    # As short as a loaded machine bears: these are tests.
                    "ttl": 10,
                    "loop_wait": 1,
                    "retry_timeout": 4,
                    "primary_start_timeout": 0,
                    "synchronous_mode": self.synchronous,
                    "maximum_lag_on_failover": 2**30,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "use_slots": True,
                        "parameters": SETTINGS
                        | UNSAFE_SETTINGS
                        # pg_rewind needs both, and a server that was killed needs its old log.
                        | {"wal_log_hints": "on", "full_page_writes": "on"}
                        | {"wal_keep_size": "512MB", "wal_level": "replica"},
                    },
                },
                "initdb": ["no-sync", {"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.data),
                "bin_dir": str(self.binaries.directory),
                "pgpass": str(self.home / f"pgpass-{node.name}"),
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
                "basebackup": [{"checkpoint": "fast"}, "no-sync"],
                "authentication": {
                    "superuser": {"username": SUPERUSER},
                    "replication": {"username": SUPERUSER},
                },
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
                "parameters": {"unix_socket_directories": str(self.home)},
            },
        }

    def launch(
        self, command: list[str], log: Path | None = None, *, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "ETCD"))}
        with (log or Path(os.devnull)).open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=output,
                stderr=output,
                cwd="/",
                env=inherited | {"LANG": "C", "LC_ALL": "C", "HOME": str(self.home)},
                user=self.user,
                extra_groups=None if self.user is None else [],
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _tails(self) -> str:
        texts = []
        for log in sorted(self.home.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-15:]
            texts.append("\n".join([f"--- {log.name}", *lines]))
        return "\n".join(texts)
