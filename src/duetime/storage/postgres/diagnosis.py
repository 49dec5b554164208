"""What PostgreSQL can say about itself: clock, LISTEN, pooler, vacuum, transactions, time zones."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import psycopg
from psycopg import sql

from duetime.domain.findings import Finding, Thresholds
from duetime.errors import StorageError
from duetime.settings import Settings
from duetime.storage.diagnosis import Check
from duetime.storage.postgres.connection import (
    check_schema_name,
    first_line,
    in_schema,
    make_dsn,
    rows_of,
    shares_sessions,
    translate_errors,
)
from duetime.storage.statements import load_statements
from duetime.storage.store import Row

_DRIVEN = timedelta(seconds=1)
_QUARTERS = 8
_SHOWN_ZONES = 3
_NOT_ZONES = ("posix/", "right/", "localtime", "Factory")
_STATS_ROLE = "a member of pg_read_all_stats"


class PostgresDiagnosis:
    """Each check opens connections of its own, as a worker would."""

    def __init__(
        self,
        settings: Settings,
        thresholds: Thresholds,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.schema = check_schema_name(settings.schema)
        self._settings = settings
        self._thresholds = thresholds
        self._clock = clock
        self._dsn = make_dsn(settings.database)
        listen = settings.listen_database
        self._listen_dsn = make_dsn(listen) if listen else self._dsn
        self._sql = load_statements(
            "duetime.storage.postgres", lambda text: in_schema(text, self.schema)
        )

    def checks(self) -> Sequence[Check]:
        return [
            Check("writable", self._check_writable, needs_tables=False),
            Check("clock", self._check_clock),
            Check("listen", self._check_listen, needs_tables=False),
            Check("pooler", self._check_pooler, needs_tables=False),
            Check("vacuum", self._check_vacuum),
            Check("transactions", self._check_transactions, needs_tables=False),
            Check("zones", self._check_zones, needs_tables=False),
        ]

    def is_refusal(self, error: StorageError) -> bool:
        return isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege)

    async def version(self) -> str:
        [(version,)] = await self._ask("examine_server")
        return f"PostgreSQL {str(version).split()[0]}"

    async def _check_writable(self) -> Sequence[Finding]:
        [(is_standby, is_read_only)] = await self._ask("examine_writable")
        if is_standby:
            return [Finding.of("writable", "read_only", text="the server is a standby")]
        if is_read_only:
            text = "default_transaction_read_only is on"
            return [Finding.of("writable", "read_only", text=text)]
        return [Finding.of("writable", "writable_ok")]

    async def _check_clock(self) -> Sequence[Finding]:
        async with self._connected(self._dsn) as connection:
            await self._on(connection, "examine_clock")  # The first one is slower.
            before = self._clock()
            [(shown, real)] = await self._on(connection, "examine_clock")
            after = self._clock()
        if abs(shown - real) > _DRIVEN:
            return [Finding.of("clock", "clock_driven", shown=shown, real=real)]
        # It was read at some moment between the two: what lies within is no skew.
        skew = max(before - real, real - after, timedelta(0))
        seconds = skew.total_seconds()
        rounded = timedelta(seconds=round(seconds, 1 if seconds >= 1 else 3))
        if skew < self._thresholds.clock_skew:
            return [Finding.of("clock", "clock_ok", skew=rounded)]
        direction = "ahead of" if before > real else "behind"
        return [Finding.of("clock", "clock_skewed", skew=rounded, direction=direction)]

    async def _check_listen(self) -> Sequence[Finding]:
        if not self._settings.notify:
            return [Finding.of("listen", "listen_off", poll=self._settings.poll)]
        channel, payload = f"{self.schema}.doctor", secrets.token_hex(8)
        patience = self._thresholds.notification
        try:
            listener = await psycopg.AsyncConnection.connect(self._listen_dsn, autocommit=True)
        except psycopg.Error as error:
            return [Finding.of("listen", "listen_refused", text=first_line(error))]
        async with listener, self._connected(self._dsn) as sender:
            with translate_errors():
                await listener.execute(f'listen "{channel}"')
            sent = time.monotonic()
            await self._on(sender, "send_notification", channel=channel, payload=payload)
            with translate_errors():
                async for notify in listener.notifies(timeout=patience.total_seconds()):
                    if notify.payload == payload:
                        took = round((time.monotonic() - sent) * 1000)
                        return [Finding.of("listen", "listen_ok", took=took)]
        return [Finding.of("listen", "listen_silent", waited=patience)]

    async def _check_pooler(self) -> Sequence[Finding]:
        settings = self._settings
        with translate_errors():
            is_pooled = await shares_sessions(self._dsn)
            listens_pooled = is_pooled
            if settings.notify and self._listen_dsn != self._dsn:
                listens_pooled = await shares_sessions(self._listen_dsn)
        found = []
        if settings.notify and listens_pooled:
            name = "listen_database" if self._listen_dsn != self._dsn else "database"
            found.append(Finding.of("pooler", "pooler_listen", setting=name))
        if settings.prepare and is_pooled:
            found.append(Finding.of("pooler", "pooler_prepare"))
        return found or [Finding.of("pooler", "pooler_ok" if is_pooled else "pooler_none")]

    async def _check_vacuum(self) -> Sequence[Finding]:
        rows = await self._ask("examine_vacuum")
        found = []
        if not all(row[4] for row in rows):
            found.append(Finding.of("vacuum", "autovacuum_off"))
        elif off := sorted(row[0] for row in rows if row[5]):
            found.append(Finding.of("vacuum", "autovacuum_off", tables=off))
        for table, dead, live, vacuumed_at, *_ in rows:
            # By default, autovacuum begins at a fifth of the live rows.
            if dead >= max(self._thresholds.dead_rows, live // 2):
                found.append(
                    Finding.of(
                        "vacuum",
                        "dead_rows",
                        table=table,
                        dead=dead,
                        live=live,
                        vacuumed_at=vacuumed_at,
                    )
                )
        most = max((row[1] for row in rows), default=0)
        return found or [Finding.of("vacuum", "vacuum_ok", dead=most)]

    async def _check_transactions(self) -> Sequence[Finding]:
        age = self._thresholds.transaction_age
        async with self._connected(self._dsn) as connection:
            sessions = await self._on(connection, "examine_transactions", age=age)
            prepared = await self._on(connection, "examine_prepared", age=age)
            slots = await self._on(connection, "examine_slots")
            [(is_hidden,)] = await self._on(connection, "examine_hidden")
        found = [
            Finding.of(
                "transactions",
                "transaction_old",
                pid=pid,
                user=user,
                application=application or None,
                state=state,
                age=_seconds(open_for),
            )
            for pid, user, application, state, open_for in sessions
        ]
        found += [
            Finding.of(
                "transactions",
                "prepared_transaction_old",
                gid=gid,
                literal=sql.Literal(gid).as_string(),
                user=user,
                age=_seconds(waited),
            )
            for gid, user, waited in prepared
        ]
        found += [
            Finding.of("transactions", "slot_unused", slot=slot, transactions=transactions)
            for slot, transactions in slots
        ]
        if is_hidden:
            text = "it does not see the sessions of other users"
            found.append(Finding.of("transactions", "not_allowed", role=_STATS_ROLE, text=text))
        return found or [Finding.of("transactions", "transactions_ok")]

    async def _check_zones(self) -> Sequence[Finding]:
        moments = _sample(self._clock())
        ours = await asyncio.to_thread(_offsets, moments)
        theirs: dict[str, list[int]] = dict(
            await self._ask("examine_zones", moments=moments, names=sorted(ours))
        )
        differing = sorted(name for name in theirs if theirs[name] != ours[name])
        if differing:
            more = len(differing) - _SHOWN_ZONES
            return [
                Finding.of(
                    "zones",
                    "zones_differ",
                    zones=differing[:_SHOWN_ZONES],
                    more=more if more > 0 else None,
                )
            ]
        return [Finding.of("zones", "zones_agree", count=len(theirs))]

    @asynccontextmanager
    async def _connected(self, dsn: str) -> AsyncIterator[psycopg.AsyncConnection[Row]]:
        with translate_errors():
            connection = await psycopg.AsyncConnection.connect(
                dsn, autocommit=True, prepare_threshold=None
            )
        async with connection:
            yield connection

    async def _ask(self, name: str, /, **parameters: Any) -> list[Row]:
        async with self._connected(self._dsn) as connection:
            return await self._on(connection, name, **parameters)

    async def _on(
        self, connection: psycopg.AsyncConnection[Row], name: str, /, **parameters: Any
    ) -> list[Row]:
        with translate_errors():
            return await rows_of(await connection.execute(self._sql[name], parameters))


def _seconds(age: timedelta) -> timedelta:
    return timedelta(seconds=round(age.total_seconds()))


def _sample(now: datetime) -> list[datetime]:
    """Moments of the next two years: some in every season."""
    return [now + timedelta(days=91 * quarter) for quarter in range(_QUARTERS)]


def _offsets(moments: Sequence[datetime]) -> dict[str, list[int]]:
    """The offsets of each zone that this process knows at each of the moments, in seconds."""
    offsets = {}
    for name in available_timezones():
        if not name.startswith(_NOT_ZONES):
            zone = ZoneInfo(name)
            spans = [moment.astimezone(zone).utcoffset() or timedelta(0) for moment in moments]
            offsets[name] = [round(span.total_seconds()) for span in spans]
    return offsets
