"""schemathesis calls every operation with what its schema allows, and with what it does not.

No input may make the service fail, and every answer must be one that the OpenAPI document has.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from duetime import Duetime, Flow
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.web.service import make_service
from duetime.web.serving import listen
from tests.conftest import Backend
from tests.waiting import PATIENCE

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NOUNS = sorted(
    {
        tag
        for path in make_service(Duetime("sqlite:///unused.db")).openapi()["paths"].values()
        for operation in path.values()
        for tag in operation["tags"]
    }
)


async def fill(app: Duetime) -> None:
    """Something of every noun, so that also the ids 1 and the names `a` are found."""

    @app.task(name="a")
    async def task(x: int = 0) -> int:
        return x

    @app.flow(name="f")
    async def flow(flow: Flow, x: int = 0) -> int:
        await flow.sleep("1h")
        return x

    app.template("a", body="{{ subject }}")
    await app.enqueue_many([app.jobs.define("a", {"x": n}, delay="1h") for n in range(3)])
    await app.flows.start("f")
    await app.schedules.put("a", "a", "0 9 * * *")
    await app.scopes.put("a", remind=["-1h"])
    await app.recipients.put("a", channels={"email": "a@example.org"})
    await app.subjects.put("a", repeats="0 9 * * *", scope="a", recipients=["a"])
    await app.tokens.create("a", scope="read")
    await app.queues.pause("a", reason="broken")


@contextmanager
def served(url: str) -> Iterator[str]:
    """Serve a database from a thread, to whoever asks; yield the address."""
    app = Duetime(url)
    service = make_service(
        app, authenticate=lambda request: Visitor("ann", TokenScope.ADMIN, by_cookie=False)
    )
    started = threading.Event()
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(
            uvicorn.Config(service, log_config=None, timeout_graceful_shutdown=1)
        )

        async def main() -> None:
            await fill(app)
            started.set()
            await server.serve(sockets=[listening])
            await app.close()

        thread = threading.Thread(target=asyncio.run, args=(main(),))
        thread.start()
        assert started.wait(PATIENCE)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


# What differs between the backends is tested below the API; on PostgreSQL it takes minutes.
@pytest.mark.parametrize(
    "backend", ["sqlite", pytest.param("postgres15", marks=pytest.mark.chaos)], indirect=True
)
@pytest.mark.parametrize("noun", NOUNS)
def test_every_answer_is_documented(backend: Backend, noun: str) -> None:
    with served(backend.url) as address:
        schema: Any = schemathesis.openapi.from_url(f"{address}/api/openapi.json")
        schema.config.update(base_url=address)

        for found in schema.include(tag=noun).get_all_operations():
            operation = found.ok()

            @settings(
                max_examples=6,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def call(case: Any) -> None:
                case.call_and_validate(checks=CHECKS, timeout=PATIENCE)

            call()
