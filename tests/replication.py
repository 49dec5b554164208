"""A plain streaming standby of a private PostgreSQL server, asynchronous, promoted by hand."""

from __future__ import annotations

import subprocess
from typing import Any

import psycopg

from tests.servers import SUPERUSER, PostgresServer


class Standby(PostgresServer):
    """A copy of another server, which follows it until it is promoted."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary.binaries)
        self._primary = primary

    def _initialise(self) -> None:
        super()._initialise()
        data = self.home / "data"
        for command in (
            ["/bin/rm", "-rf", str(data)],
            [
                self._program("pg_basebackup"),
                f"--pgdata={data}",
                f"--dbname={self._primary.dsn()}",
                "--checkpoint=fast",
                "--no-sync",
                "--write-recovery-conf",
            ],
        ):
            subprocess.run(
                command,
                check=True,
                cwd=self.home,
                env=self._environment,
                user=self.user,
                extra_groups=self._extra_groups,
            )

    @property
    def receives(self) -> bool:
        return bool(_ask(self, "select count(*) from pg_stat_wal_receiver"))

    def has_replayed(self, primary: PostgresServer) -> bool:
        """Whether it has everything that the primary has written until now."""
        written = _ask(primary, "select pg_current_wal_lsn()::text")
        return bool(_ask(self, f"select pg_last_wal_replay_lsn() >= '{written}'"))

    def stop_receiving(self) -> None:
        """From now on it lags. A moment later nothing reaches it any more."""
        _ask(self, "alter system set primary_conninfo = 'port=1'")
        _ask(self, "select pg_reload_conf()")

    def promote(self) -> None:
        assert _ask(self, "select pg_promote(true, 60)")


def _ask(server: PostgresServer, statement: str) -> Any:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def url_of(*servers: PostgresServer, dbname: str) -> str:
    """The URL of whichever server accepts writes."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://{SUPERUSER}@{hosts}/{dbname}"
