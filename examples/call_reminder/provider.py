"""A provider of phone calls to try against: `python provider.py [PORT]`. It is not always well.

    POST /calls   {"to", "text", "status_url"} with an Idempotency-Key: 201 {"id"}; the same key
                  again is the same call. Later it posts {"id", "status"} to status_url.
    GET /calls    every call that was made, with its key and how many requests asked for it

As with real ones, there are numbers for tests:

    +15550503     the first two requests are refused with 503
    +15550504     the call is made, but the first answer takes four seconds
    +15550444     the call is made, but the first answer is lost
    +15550199     nobody picks up
    +15550400     is no number: 422
"""

import json
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

calls: dict[str, dict[str, Any]] = {}  # By idempotency key.
requests: dict[str, int] = {}
lock = threading.Lock()


class Provider(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers["idempotency-key"]
        with lock:
            number = requests[key] = requests.get(key, 0) + 1
        to = order["to"]
        if to == "+15550400":
            self.answer(422, {"error": "this is not a phone number"})
        elif to == "+15550503" and number <= 2:
            self.answer(503, {"error": "all lines are busy"})
        else:
            call = self.call(key, order)
            if to == "+15550504" and number == 1:
                time.sleep(4)
            if to == "+15550444" and number == 1:
                self.close_connection = True  # Nothing is said.
            else:
                self.answer(201, {"id": call["id"]})

    def do_GET(self) -> None:
        with lock:
            made = [call | {"requests": requests[call["key"]]} for call in calls.values()]
        self.answer(200, made)

    def call(self, key: str, order: dict[str, Any]) -> dict[str, Any]:
        """Ring, once for each key."""
        with lock:
            if key in calls:
                return calls[key]
            call = {"id": f"CA{len(calls) + 1:04}", "key": key, **order}
            calls[key] = call
        threading.Timer(0.2, report, [call]).start()
        return call

    def answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            pass  # Who asked has not waited.

    def log_message(self, *_: Any) -> None:
        """It says nothing of its own."""


def report(call: dict[str, Any]) -> None:
    """Tell what became of the call, until somebody listens."""
    status = "no-answer" if call["to"] == "+15550199" else "completed"
    body = json.dumps({"id": call["id"], "status": status}).encode()
    receipt = urllib.request.Request(
        call["status_url"], body, {"content-type": "application/json"}, method="POST"
    )
    for wait in (0.5, 1, 2, 4, 8, 16):
        try:
            with urllib.request.urlopen(receipt, timeout=5):
                return
        except OSError:
            time.sleep(wait)


if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8001
    ThreadingHTTPServer(("127.0.0.1", port), Provider).serve_forever()
