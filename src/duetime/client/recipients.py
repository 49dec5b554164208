"""`client.recipients`."""

from __future__ import annotations

from duetime.api.handle import Handle, bound, iterated
from duetime.client.connection import Connection
from duetime.client.schedules import PutAnswer
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reminders.recipient import (
    ChannelsLike,
    MutedLike,
    Recipient,
    parse_channels,
    parse_muted,
)


class Recipients:
    """`client.recipients`: the verbs of `app.recipients`. `client.recipients["ann"]` is one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, ref: str) -> RecipientHandle:
        return RecipientHandle(self, ref)

    async def put(
        self,
        ref: str,
        *,
        tz: str | None = None,
        channels: ChannelsLike | None = None,
        quiet: str | None = None,
        muted: MutedLike | None = None,
        max_per_hour: int | None = None,
    ) -> str:
        """Add a recipient or change all of it; return `added`, `changed` or `same`."""
        body = {
            "tz": tz,
            "channels": {route.channel: route.address for route in parse_channels(channels)},
            "quiet": quiet,
            "muted": parse_muted(muted),
            "max_per_hour": max_per_hour,
        }
        answer = await self._connection.call("PUT /recipients/{ref}", PutAnswer, body=body, ref=ref)
        return answer.result

    async def mute(self, ref: str, *what: str) -> str:
        """Send less: "all", or any of "scope:…", "subject:…", "channel:…", "rule:…"."""
        answer = await self._connection.call(
            "POST /recipients/{ref}/mute", PutAnswer, body={"what": what}, ref=ref
        )
        return answer.result

    async def unmute(self, ref: str, *what: str) -> str:
        """Unmute what was muted, written as it was then."""
        answer = await self._connection.call(
            "POST /recipients/{ref}/unmute", PutAnswer, body={"what": what}, ref=ref
        )
        return answer.result

    async def get(self, ref: str) -> Recipient:
        """Return the recipient; raise `RecipientNotFound`."""
        return await self._connection.call("GET /recipients/{ref}", Recipient, ref=ref)

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[Recipient]:
        """Return recipients by reference."""
        query = {"limit": limit, "after": after}
        return await self._connection.page("GET /recipients", Recipient, query=query)

    iterate = iterated(list)

    async def delete(self, ref: str) -> None:
        """Delete the settings of a recipient, who is then reached with the defaults."""
        await self._connection.call("DELETE /recipients/{ref}", ref=ref)

    async def audit(
        self, ref: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the recipient, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /recipients/{ref}/audit", AuditEvent, query=query, ref=ref
        )


class RecipientHandle(Handle[Recipients, str]):
    """One recipient of the service, by their reference."""

    put = bound(Recipients.put)
    mute = bound(Recipients.mute)
    unmute = bound(Recipients.unmute)
    get = bound(Recipients.get)
    delete = bound(Recipients.delete)
    audit = bound(Recipients.audit)
