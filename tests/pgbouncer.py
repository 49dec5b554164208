"""A private pgbouncer in transaction mode, before a private PostgreSQL."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.postgres_binaries import server_user
from tests.servers import free_port

CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 15
max_client_conn = 200
logfile = {directory}/pgbouncer.log
pidfile = {directory}/pgbouncer.pid
ignore_startup_parameters = extra_float_digits
"""


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def pgbouncer(url: str, *, mode: str = "transaction") -> Iterator[str]:
    """Yield the URL of the same database, through a pooler."""
    program = find_pgbouncer()
    assert program is not None
    target = urlsplit(url)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="duetime-pgbouncer-") as name:
        directory = Path(name)
        user = server_user() if os.geteuid() == 0 else None
        settings = directory / "pgbouncer.ini"
        settings.write_text(
            CONFIGURATION.format(
                host=target.hostname,
                port=target.port,
                user=target.username,
                own_port=port,
                mode=mode,
                directory=directory,
            )
        )
        if user is not None:
            shutil.chown(directory, user)
        process = subprocess.Popen(
            [program, "-q", str(settings)], user=user, stderr=subprocess.DEVNULL
        )
        try:
            wait_for(port, process)
            yield f"postgresql://{target.username}@127.0.0.1:{port}{target.path}"
        finally:
            process.terminate()
            process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        assert process.poll() is None, "pgbouncer ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("pgbouncer did not start")
