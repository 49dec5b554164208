"""The example of an agent: it survives a kill at every step."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from duetime import Duetime, FlowInfo, FlowState, StepState
from tests.acceptance.agent_process import Kill, Moment, run_agent
from tests.waiting import until, until_true

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["__main__", "tests.acceptance.agent_process"])

WRITES = [
    "ask_model",
    "read_stock",
    "ask_model",
    "suspend",
    "approve-2",
    "place_order",
    "ask_model",
]
"""What a run writes, one after the other."""
STEPS = [name for name in WRITES if name != "suspend"]
CALLED = {
    "ask_model": "/model",
    "read_stock": "/shop/stock",
    "place_order": "/shop/orders",
}
CALLS = [CALLED[name] for name in WRITES if name in CALLED]
"""The requests of a run that nothing disturbs."""
MOMENTS: list[Moment] = ["before", "after"]
KILLS = [Kill(write, moment) for write in range(1, len(WRITES) + 1) for moment in MOMENTS]
ANSWERS = [
    {"text": "I check the stock.", "tool": "read_stock", "arguments": {"item": "tea"}},
    {"tool": "place_order", "arguments": {"item": "tea", "quantity": 7}},
    {"text": "There were 3, and I have ordered 7."},
]


class Request(NamedTuple):
    path: str
    key: str
    body: Any


class Provider:
    """The model and the shop, which log every request. The same key has the same answer."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Request]] = {}
        """By the run that sent them, which is the first part of the path."""
        self._orders: dict[str, str] = {}
        self.url = ""

    def answer(self, path: str, key: str, body: Any) -> Any:
        _, run, path = path.split("/", 2)
        self.requests.setdefault(run, []).append(Request(f"/{path}", key, body))
        match path:
            case "model":
                return ANSWERS[len(body["messages"]) // 2]
            case "shop/stock":
                return 3
            case "shop/orders":
                return self._orders.setdefault(key, f"order {len(self._orders)}")
        raise AssertionError(path)

    def has_proposed_an_order(self, run: str) -> bool:
        requests = self.requests.get(run, ())
        return [request.path for request in requests].count("/model") >= 2


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = provider.answer(self.path, self.headers["idempotency-key"], body)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Agent:
    """The example with a database of its own."""

    def __init__(self, home: Path, name: str, provider: Provider) -> None:
        self._name = name
        self._provider = provider
        self._folder = home / name
        self._folder.mkdir()
        self._app = Duetime(f"sqlite:///{self._folder / 'duetime.db'}", migrate=True)
        self._urls = {
            "MODEL_URL": f"{provider.url}/{name}/model",
            "SHOP_URL": f"{provider.url}/{name}/shop",
        }

    async def run(self, kill: Kill | None = None) -> int | None:
        """Run the program; return its exit code."""
        # A worker that is killed is missed soon.
        lease = {"DUETIME_LEASE": "30s" if kill is None else "3s", "DUETIME_RESCUE_EVERY": "200ms"}
        process = PROCESSES.Process(target=run_agent, args=(self._folder, self._urls | lease, kill))
        process.start()
        try:
            await until_true(lambda: not process.is_alive())
        finally:
            process.kill()
            process.join()
        return process.exitcode

    async def steps(self) -> list[str]:
        """The calls of its run, all of which have completed."""
        [run] = await self._app.flows.list(state=FlowState.COMPLETED)
        steps = await self._app.flows.steps(run.id)
        assert {step.state for step in steps} == {StepState.COMPLETED}
        return [step.name for step in steps]

    async def __aenter__(self) -> Self:
        self._approving = asyncio.create_task(self._approve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._approving.cancel()
        await self._app.close()

    async def _approve(self) -> None:
        """Approve what the agent asks for, when it does."""

        async def waiting() -> list[FlowInfo]:
            return [*await self._app.flows.list(state=FlowState.WAITING)]

        await until_true(lambda: self._provider.has_proposed_an_order(self._name))
        [run] = await until(waiting)
        await self._app.flows.signal(run.id, "approve-2", True)


async def test_an_agent_survives_a_kill_at_every_step(tmp_path: Path, provider: Provider) -> None:
    async def survive(kill: Kill) -> None:
        name = f"{kill.moment}-{kill.write}"
        async with Agent(tmp_path, name, provider) as agent:
            assert await agent.run(kill) == -signal.SIGKILL, name
            assert await agent.run() == 0, name

            assert await agent.steps() == STEPS, name
        requests = provider.requests[name]
        assert [request.path for request in requests] == expected_calls(kill), name
        # What was sent twice had the same key and content; each call has a key of its own.
        assert len({(request.key, str(request)) for request in requests}) == len(CALLS), name
        assert len({request.key for request in requests}) == len(CALLS), name

    await asyncio.gather(*map(survive, KILLS))


async def test_an_agent_that_nothing_disturbs_writes_no_more_than_was_killed(
    tmp_path: Path, provider: Provider
) -> None:
    async with Agent(tmp_path, "whole", provider) as agent:
        assert await agent.run(Kill(len(WRITES) + 1, "before")) == 0

        assert await agent.steps() == STEPS
    assert [request.path for request in provider.requests["whole"]] == CALLS


def expected_calls(kill: Kill) -> list[str]:
    """What is sent: only a call that was made and not recorded is sent again."""
    if kill.moment == "after" or WRITES[kill.write - 1] not in CALLED:
        return CALLS
    sent = sum(name in CALLED for name in WRITES[: kill.write])
    return [*CALLS[:sent], *CALLS[sent - 1 :]]
