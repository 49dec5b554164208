"""What a worker with nothing to do costs the server: connections, transactions, and CPU.

Beside it a loop by hand that listens, and polls every second in case a notification was lost.
"""

from __future__ import annotations

import time

from bench.cpu import cpu_seconds
from bench.environment import Environment, duetime_worker, execute, stop_worker
from bench.measures.drain import start
from bench.processes import Child, children
from bench.reading import Reading
from duetime.settings import load_settings
from duetime.storage.migrations import upgrade
from duetime.wiring import make_migrator
from tests.postgres_binaries import find_system
from tests.servers import PostgresServer

_MAX_CONNECTIONS = 400

_CONNECTIONS = """
select count(*) from pg_stat_activity
where datname = '{}' and backend_type = 'client backend'
"""
_TRANSACTIONS = "select xact_commit + xact_rollback from pg_stat_database where datname = '{}'"


def measure(environment: Environment) -> dict[str, Reading]:
    names = {"duetime": "idle", "bare": "bare_idle"}
    ours, bare = environment.database(names["duetime"]), environment.bare_database(names["bare"])
    watcher = environment.server.dsn("postgres")

    def read(statement: str) -> dict[str, int]:
        return {
            side: execute(watcher, statement.format(name))[0][0] for side, name in names.items()
        }

    with duetime_worker(ours) as worker, Child("raw_idle", dsn=bare) as loop:
        loop.hear()
        time.sleep(environment.scale.idle_settle_seconds)
        before, cpu, began = read(_TRANSACTIONS), cpu_seconds([worker.pid]), time.monotonic()
        time.sleep(environment.scale.watch_seconds)
        after, seconds = read(_TRANSACTIONS), time.monotonic() - began
        share = (cpu_seconds([worker.pid]) - cpu) / seconds
        connections = read(_CONNECTIONS)
    rates = {side: max(1, after[side] - before[side]) / seconds for side in names}
    return {
        "idle_connections": Reading(connections["duetime"], connections["bare"]),
        "idle_transactions": Reading(
            rates["duetime"], rates["bare"], note=f"{share:.2%} of a CPU in the worker"
        ),
    }


def measure_fleet(environment: Environment) -> dict[str, Reading]:
    """A hundred idle workers, each a process of its own, on a server for 400 connections."""
    scale = environment.scale
    settings = {"max_connections": str(_MAX_CONNECTIONS)}
    with PostgresServer(find_system(), fsync=scale.fsync, settings=settings) as server:
        server.create_database("fleet")
        database = server.dsn("fleet")
        upgrade(make_migrator(load_settings({"database": database})))
        with children(scale.idle_processes, "worker", database=database) as workers:
            start(workers)
            time.sleep(scale.idle_settle_seconds)
            watcher = server.dsn("postgres")
            [(before,)] = execute(watcher, _TRANSACTIONS.format("fleet"))
            cpu, began = cpu_seconds([worker.pid for worker in workers]), time.monotonic()
            time.sleep(scale.watch_seconds)
            [(connections,)] = execute(watcher, _CONNECTIONS.format("fleet"))
            [(after,)] = execute(watcher, _TRANSACTIONS.format("fleet"))
            seconds = time.monotonic() - began
            share = (cpu_seconds([worker.pid for worker in workers]) - cpu) / seconds
            for worker in workers:
                stop_worker(worker)
    note = (
        f"{len(workers)} workers: {(after - before) / seconds:.0f} transactions/s, "
        f"{share / len(workers):.2%} of a CPU each"
    )
    return {"idle_fleet_connections": Reading(connections, _MAX_CONNECTIONS, note=note)}
