"""`enqueue_sync` in a process that was forked, as servers do it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from tests.conftest import Backend, query

SCRIPT = """
import os, sys
from duetime import Duetime

app = Duetime(sys.argv[1], migrate=True)

@app.task(name="note")
def note(who: str) -> None: ...

note.enqueue_sync("parent, before")
child = os.fork()
if not child:
    for _ in range(3):
        note.enqueue_sync("child")
    grandchild = os.fork()
    if not grandchild:
        note.enqueue_sync("grandchild")
        sys.exit()
    _, status = os.waitpid(grandchild, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
_, status = os.waitpid(child, 0)
note.enqueue_sync("parent, after")
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_enqueues_and_so_does_its_parent(backend: Backend) -> None:
    """The thread of the event loop is not in the child, and the connections are the parent's."""
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", SCRIPT, backend.url],
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        # A child that hangs would outlive its parent.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert process.returncode == 0, errors
    assert query(backend, "select count(*) from duetime.job") == [(6,)]
