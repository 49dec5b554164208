"""The HTTP API, a bare endpoint beside it, and the client that calls either."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import asyncpg
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench.child import Parent
from bench.payload import note_for
from duetime import Duetime
from duetime.web.service import make_service
from duetime.web.serving import listen

POOL = 8
INSERT = """
insert into raw_job (queue, task, args, priority) values ('default', 'noop', $1, 5) returning id
"""
_BODY = json.dumps({"task": "noop", "args": {"number": 0, "note": note_for(0)}}).encode()


class Job(BaseModel):
    """The body of the bare endpoint."""

    task: str
    args: dict[str, Any]


async def serve_duetime(parent: Parent, *, database: str) -> None:
    """The whole service, as `duetime serve --no-worker` runs it; the client has a token."""
    app = Duetime(database)

    @app.task(name="noop")
    async def noop(number: int, note: str) -> None: ...

    name = f"bench-{time.time_ns()}"
    token = (await app.tokens.create(name, scope="operate")).text
    await _serve(parent, make_service(app), path="/api/v1/jobs", token=token)
    await app.close()


async def serve_raw(parent: Parent, *, database: str) -> None:
    """A bare FastAPI endpoint: the body is checked, and one row is inserted."""
    service = FastAPI()
    pool = await asyncpg.create_pool(database, min_size=POOL, max_size=POOL)

    @service.post("/jobs", status_code=201)
    async def enqueue(job: Job) -> dict[str, int]:
        async with pool.acquire() as connection:
            found = await connection.fetchval(INSERT, json.dumps(job.args))
        return {"id": found}

    await _serve(parent, service, path="/jobs", token="")
    await pool.close()


async def _serve(parent: Parent, service: Any, *, path: str, token: str) -> None:
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(service, log_config=None, access_log=False))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        parent.say({"port": listening.getsockname()[1], "path": path, "token": token})
        await parent.heard()
        server.should_exit = True
        await serving


async def call(
    parent: Parent, *, port: int, path: str, token: str, connections: int, seconds: float
) -> None:
    """Post jobs on a few connections, one after another on each, for some seconds."""
    head = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        f"Content-Length: {len(_BODY)}",
    ]
    request = "\r\n".join(head).encode() + b"\r\n\r\n" + _BODY

    async def post(until: float) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        done = 0
        while time.monotonic() < until:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 201"), answer
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(length)
            done += 1
        writer.close()
        return done

    async def all_post(span: float) -> tuple[int, float]:
        began = time.monotonic()
        counts = await asyncio.gather(*(post(began + span) for _ in range(connections)))
        return sum(counts), time.monotonic() - began

    await all_post(min(seconds, 1.0))
    count, took = await all_post(seconds)
    parent.say({"count": count, "seconds": took})
