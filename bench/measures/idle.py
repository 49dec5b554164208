"""What a worker with nothing to do costs the server: connections, transactions, and CPU.

Beside it a loop by hand that listens, and polls every second in case a notification was lost.
"""

from __future__ import annotations

import time

from bench.cpu import cpu_seconds
from bench.environment import Environment, duetime_worker, execute
from bench.processes import Child
from bench.reading import Reading

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
