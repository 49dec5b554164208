"""Jobs that a few clients enqueue over HTTP, each with an API token.

The baseline is a bare FastAPI endpoint with one raw insert, on the same server and database.
"""

from __future__ import annotations

from bench.environment import Environment, execute
from bench.measures.drain import EMPTY_DUETIME
from bench.processes import Child
from bench.reading import Reading, alternate, medians

CONNECTIONS = 8


def measure(environment: Environment) -> dict[str, Reading]:
    seconds = environment.scale.enqueue_seconds
    database = environment.database("plain")
    execute(database, EMPTY_DUETIME, "truncate raw_job", "checkpoint")
    found = alternate(
        environment.scale,
        ours=lambda: _enqueue("api", database, seconds),
        raw=lambda: _enqueue("raw_api", database, seconds),
    )
    execute(database, EMPTY_DUETIME, "truncate raw_job")
    return {"api_enqueue": medians(found["ours"], found["raw"])}


def _enqueue(role: str, database: str, seconds: float) -> float:
    with Child(role, database=database) as server:
        address = server.hear()
        with Child("api_client", **address, connections=CONNECTIONS, seconds=seconds) as client:
            report = client.hear()
        server.tell("stop")
    return float(report["count"] / report["seconds"])
