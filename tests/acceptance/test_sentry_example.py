"""The Sentry example, with the real SDK: what it sends arrives at a server of the test."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.acceptance.command import ROOT, environment


@contextmanager
def sentry_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield a DSN, and the events that were sent to it."""
    events: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            events.extend(read_envelope(body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://public@127.0.0.1:{server.server_port}/1", events
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def read_envelope(body: bytes) -> Iterator[dict[str, Any]]:
    """The events of an envelope: a header, then for each item its own header and its payload."""
    _, _, rest = body.partition(b"\n")
    while rest.strip():
        line, _, rest = rest.partition(b"\n")
        header = json.loads(line)
        payload, rest = rest[: header["length"]], rest[header["length"] + 1 :]
        if header["type"] == "event":
            yield json.loads(payload)


def test_errors_reach_sentry_with_their_job(tmp_path: Path) -> None:
    with sentry_server() as (dsn, events):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "sentry_errors.py")],
            capture_output=True,
            text=True,
            env=environment(None, SENTRY_DSN=dsn),
            cwd=tmp_path,
            timeout=60,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "Job 1 finished as dead: ConnectionError: the bank does not answer\n"
    assert [event["level"] for event in events] == ["warning", "error"]
    for event, retried in zip(events, (True, False), strict=True):
        [raised] = event["exception"]["values"]
        assert (raised["type"], raised["value"]) == ("ConnectionError", "the bank does not answer")
        assert raised["stacktrace"]["frames"][-1]["function"] == "charge"
        assert event["tags"] == {
            "job_id": 1,
            "task": "charge",
            "queue": "default",
            "will_retry": retried,
        }
        assert event["contexts"]["job"]["key"] == "order:7"
        assert event["contexts"]["job"]["arguments"] == {"order": 7}
        crumbs = [crumb["message"] for crumb in event["breadcrumbs"]["values"]]
        assert crumbs.count("calling the bank for order 7") == 1
    assert [event["contexts"]["job"]["attempt"] for event in events] == [1, 2]
