"""Commands in processes of their own, without the third of a second that Python takes to import.

A server imports the command line once and forks for each command: what runs is a new process with
its own arguments, environment, folder and files, which ends as the installed `duetime` does. What
is about the start itself runs that one, by `duetime(…, started=True)`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

SECONDS = 60
LONGEST = 100_000


class CommandServer:
    """Runs one command at a time. It ends with the process that started it."""

    def __init__(self) -> None:
        self._start()

    def run(
        self, arguments: list[str], *, given: str, environment: dict[str, str], cwd: Path
    ) -> tuple[int, str, str]:
        """The command's exit code, what it wrote to its output, and what to its error output."""
        request = json.dumps([arguments, environment, str(cwd)]).encode()
        with TemporaryFile() as text, TemporaryFile() as out, TemporaryFile() as err:
            text.write(given.encode())
            text.seek(0)
            socket.send_fds(self._channel, [request], [text.fileno(), out.fileno(), err.fileno()])
            code = self._wait()
            return code, _read(out), _read(err)

    def _start(self) -> None:
        # Packets, not a stream: one command is one message, and its files come with it.
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _wait(self) -> int:
        try:
            return int(self._channel.recv(100))
        except (TimeoutError, ValueError):
            # The command hangs, or the server is gone: the next command has another.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._channel.close()
            self._start()
            raise


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _serve(channel: socket.socket) -> None:
    """Fork for each request. Returns in the child, which is to be the command."""
    while True:
        request, files, _, _ = socket.recv_fds(channel, LONGEST, 3)
        if not request:
            sys.exit()
        child = os.fork()
        if child == 0:
            channel.close()
            arguments, environment, cwd = json.loads(request)
            _become(arguments, environment, cwd, files)
            return
        for file in files:
            os.close(file)
        _, status = os.waitpid(child, 0)
        channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(arguments: list[str], environment: dict[str, str], cwd: str, files: list[int]) -> None:
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(cwd)
    sys.argv = ["duetime", *arguments]


if __name__ == "__main__":
    import click
    import psycopg  # noqa: F401 - what every command on PostgreSQL imports
    import psycopg_pool  # noqa: F401

    from duetime.cli import cli, main

    root = click.Context(cli)
    for name in cli.list_commands(root):
        cli.get_command(root, name)  # Imported once, here.
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main()
