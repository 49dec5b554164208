"""`duetime worker --metrics-port`: what Prometheus reads from a worker."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import closing

import pytest

from duetime import Duetime
from tests.acceptance.command import duetime, enqueue, new_job, worker
from tests.conftest import Backend
from tests.waiting import until_true

pytestmark = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)


def free_ports() -> int:
    """A port that is free, and so is the next one."""
    while True:
        with closing(socket.socket()) as first, closing(socket.socket()) as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return str(answer.read().decode())


async def test_worker_serves_its_metrics(backend: Backend, app: Duetime) -> None:
    port = free_ports()
    with worker(backend.url, "--metrics-port", str(port), "--name", "w1") as process:
        await enqueue(app, new_job("shop.send", item_id=1))
        await until_true(lambda: process.logged("job_completed"))

        shown = get(port)
        process.signal()
        assert process.exit_code() == 0

    assert 'duetime_job_claimed_total{job_type="shop.send",worker_id="w1"} 1.0' in shown
    assert "duetime_database_up 1.0" in shown
    assert "process_resident_memory_bytes" in shown


async def test_each_of_several_processes_has_a_port(backend: Backend, app: Duetime) -> None:
    port = free_ports()
    with worker(
        backend.url, "--processes", "2", "--name", "w", "--metrics-port", str(port)
    ) as process:
        await until_true(lambda: process.count("metrics_served") == 2)

        for number in (1, 2):
            assert f'worker_id="w-{number}"' in get(port + number - 1)


def test_port_that_is_taken_is_an_error(backend: Backend, app: Duetime) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = duetime(
            backend.url, "worker", "--app", "tests.acceptance.shop:app", "--metrics-port", str(port)
        )

    assert answer.code == 1
    assert f"Metrics cannot be served on 127.0.0.1:{port}" in answer.err
