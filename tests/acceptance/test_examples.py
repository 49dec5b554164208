"""The examples run, as they are."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from duetime import Duetime
from tests.acceptance.command import ROOT, environment
from tests.conftest import Backend
from tests.servers import free_port
from tests.waiting import until

EXAMPLES = ROOT / "examples"
LINK = re.compile(r"http://127\.0\.0\.1:\d+/login/[\w-]+")


def run(example: str, cwd: Path, url: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        capture_output=True,
        text=True,
        env=environment(url),
        cwd=cwd,
        timeout=100,
        check=False,
    )


def test_quickstart(tmp_path: Path) -> None:
    done = run("quickstart.py", tmp_path)

    assert done.stderr == ""
    assert done.stdout == "Hello, world!\nHello, world, a second later!\n"
    assert (tmp_path / "duetime.db").exists()


def test_schedules(tmp_path: Path) -> None:
    done = run("schedules.py", tmp_path)

    assert done.stderr == ""
    assert 2 <= done.stdout.count("pulse of ") <= 4
    assert "paused by the example: enough" in done.stdout
    assert done.stdout.count("09:00 =") == 3


def test_game_reminders(tmp_path: Path) -> None:
    done = run("game_reminders.py", tmp_path)

    assert done.stderr == ""
    assert "reminded of by -2s, from guild:1" in done.stdout
    assert done.stdout.count("to ann: Chess begins") == 1
    assert done.stdout.count("to ann: Go begins") == 1
    assert "to ann: Catan" not in done.stdout
    assert done.stdout.count("superseded, the subject moved to") == 1
    assert done.stdout.count("cancelled, the subject was completed") == 1
    assert "reminder.sent by" in done.stdout


def test_an_order_as_a_function(tmp_path: Path) -> None:
    done = run("order_flow.py", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "order 1: charged 500",
        "order 1: shipped",
        "parcel-1",
        "order 2: charged 900",
        "order 2: refunded 900",
        "order 2: it was declined",
        "order 3: charged 700",
        "order 3: refunded 700",
        "order 3: nobody approved it in time",
    ]


def test_an_order_as_a_graph(tmp_path: Path) -> None:
    done = run("order_graph.py", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "order 1: charged 20",
        "order 1: shipped with label for tea",
        "{'ship': 'parcel-1'}",
        "order 2: charged 500",
        "order 2: shipped with label for desk, label for lamp",
        "{'ship': 'parcel-2'}",
        "order 3: charged 900",
        "order 3: refunded 900",
        "order 3: Step 'accept' failed: order 3 was not approved",
    ]


def test_demo_shows_what_it_says_and_cleans_up(tmp_path: Path) -> None:
    done = run("demo.py", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("✓") == 17
    assert "✗" not in done.stdout
    headings = (
        "On time",
        "Retried",
        "Recovered",
        "Cancelled",
        "Explained",
        "Reminded",
        "Shown",
        "Next:",
    )
    for heading in headings:
        assert heading in done.stdout
    home = Path(done.stdout.splitlines()[0].rpartition(" in ")[2])
    assert home.name.startswith("duetime-demo-")
    assert not home.exists()
    assert list(tmp_path.iterdir()) == []


STAYING_DEMO = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "import demo; demo.show_dashboard(stay=True)"
)
"""With a handler for SIGINT, which whoever runs the tests in the background ignores."""


def test_dashboard_of_the_demo_stays_until_it_is_stopped(tmp_path: Path) -> None:
    with link_of("-c", STAYING_DEMO, cwd=tmp_path, PYTHONPATH=str(EXAMPLES)) as (demo, link):
        first = httpx.get(link, follow_redirects=True, timeout=20)
        second = httpx.get(link, follow_redirects=True, timeout=20)
        demo.send_signal(signal.SIGINT)

        assert demo.wait(20) == 0
    assert (first.status_code, second.status_code) == (200, 403)
    with pytest.raises(httpx.ConnectError):
        httpx.get(link)


SCREENS = {
    "/": ["photos", "gpu", "charge_card", "orders"],
    "/reminders": ["tasting:"],
    "/jobs?state=dead": ["demo_service.charge_card"],
    "/schedules": ["orders", "stock", "nightly-report", "Europe/Berlin", "paused"],
    "/flows": ["large_order", "wedding", "waiting"],
    "/subjects/tasting:9": ["superseded", "moved"],
    "/subjects/tasting:10": ["the room is flooded"],
    "/recipients/ann": ["22:00-07:00", "Europe/Berlin"],
    "/queues/photos": ["the disk is nearly full"],
    "/queues/gpu": ["no live worker serves it"],
    "/metrics": ["duetime_"],
}


def test_demo_service_has_something_on_every_screen(tmp_path: Path) -> None:
    service = [str(EXAMPLES / "demo_service.py"), "--port", "0"]
    with link_of(*service, cwd=tmp_path) as (process, link):
        with httpx.Client(base_url=link.partition("login/")[0], timeout=20) as browser:
            browser.get(link)
            pages = {path: browser.get(path).text for path in SCREENS}
        process.send_signal(signal.SIGTERM)

        assert process.wait(20) == 0
    shop = Duetime(f"sqlite:///{tmp_path}/duetime.db")
    assert shop.sync(shop.jobs.list(state="running")) == []  # Its worker gave back what it held.
    shop.sync(shop.close())
    missing = [
        (path, text) for path, texts in SCREENS.items() for text in texts if text not in pages[path]
    ]
    assert missing == []


@contextmanager
def link_of(
    *arguments: str, cwd: Path, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run Python until it prints the link that logs in."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(None, **variables),
        cwd=cwd,
    )
    assert process.stdout is not None
    try:
        [link] = next(filter(None, (LINK.findall(line) for line in process.stdout)))
        yield process, link
    finally:
        process.kill()
        process.wait()


def test_sync_script_ends_quietly(backend: Backend) -> None:
    script = """
from duetime import Duetime
app = Duetime(migrate=True)
@app.task(name="greet")
def greet() -> None: ...
print(greet.enqueue_sync().id)
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script],
        capture_output=True,
        text=True,
        env=environment(backend.url),
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


async def test_fastapi_keeps_order_and_job_together(backend: Backend, tmp_path: Path) -> None:
    with server(backend.url, tmp_path) as address:
        async with httpx.AsyncClient(base_url=address, timeout=10) as client:

            async def up() -> bool:
                try:
                    return (await client.get("/orders/0")).status_code == 404
                except httpx.TransportError:
                    return False

            await until(up)
            refused = await client.post("/orders", params={"item": "unicorn"})
            placed = await client.post("/orders", params={"item": "book"})

            async def confirmed() -> bool:
                order = await client.get(f"/orders/{placed.json()['id']}")
                return bool(order.json()["status"] == "confirmed")

            await until(confirmed)

    assert refused.status_code == 422
    assert placed.status_code == 201
    assert placed.json()["status"] == "placed"


@contextmanager
def server(url: str, cwd: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "fastapi_app:api", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--app-dir", str(EXAMPLES)],
        env=environment(url),
        cwd=cwd,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(20) in (0, -15)
    finally:
        process.kill()
        process.wait()
