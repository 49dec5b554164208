"""`/api/v1/recipients`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from duetime.app import Duetime
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reminders.recipient import MAX_CHANNELS, MAX_MUTED, MAX_PER_HOUR, Recipient
from duetime.web.access import Access
from duetime.web.api.fields import After, Limit, Name, NamePath, PutAnswer, given
from duetime.web.api.routing import Routes, page_of

Address = Annotated[str, Meta(min_length=1, max_length=2000)]
What = Annotated[str, Meta(min_length=1, max_length=250, examples=["scope:guild:1"])]


class RecipientBody(msgspec.Struct, forbid_unknown_fields=True):
    """How and when a person is reached. What is left out is removed."""

    tz: Name | None = None
    channels: Annotated[dict[Name, Address | None], Meta(max_length=MAX_CHANNELS)] | None = None
    """Addresses by channel, in the order in which they are tried."""
    quiet: Annotated[str, Meta(max_length=100)] | None = None
    """The hours in which nothing is sent, such as `22:00-07:00`, on the clock of `tz`."""
    muted: bool | Annotated[list[What], Meta(max_length=MAX_MUTED)] | None = None
    max_per_hour: Annotated[int, Meta(ge=1, le=MAX_PER_HOUR)] | None = None
    """What is more waits, and goes out in one digest."""


class MuteBody(msgspec.Struct, forbid_unknown_fields=True):
    what: Annotated[list[What], Meta(min_length=1, max_length=MAX_MUTED)]
    """`all`, `scope:…`, `subject:…`, `channel:…` or `rule:…`."""


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="recipients")

    @routes.get("/recipients", answer=page_of(Recipient))
    async def list_recipients(limit: Limit = DEFAULT_LIMIT, after: After = None) -> Page[Recipient]:
        """List recipients by reference."""
        return await app.recipients.list(limit=limit, after=after)

    @routes.get("/recipients/{ref}", answer=Recipient, problems=[404])
    async def get_recipient(ref: NamePath) -> Recipient:
        """Show a recipient."""
        return await app.recipients.get(ref)

    @routes.put(
        "/recipients/{ref}",
        body=RecipientBody,
        example={
            "tz": "Europe/Berlin",
            "channels": {"push": "token-1", "email": "ann@example.org"},
            "quiet": "22:00-07:00",
        },
        answer=PutAnswer,
    )
    async def put_recipient(ref: NamePath, body: Any, visitor: Visitor) -> PutAnswer:
        """Add a recipient, or change all of it. Addresses that were disabled are tried again."""
        return PutAnswer(await app.recipients.put(ref, by=visitor.name, **given(body)))

    @routes.post(
        "/recipients/{ref}/mute", body=MuteBody, example={"what": ["all"]}, answer=PutAnswer
    )
    async def mute_recipient(ref: NamePath, body: Any, visitor: Visitor) -> PutAnswer:
        """Send a recipient less."""
        return PutAnswer(await app.recipients.mute(ref, *body.what, by=visitor.name))

    @routes.post("/recipients/{ref}/unmute", body=MuteBody, answer=PutAnswer, problems=[404])
    async def unmute_recipient(ref: NamePath, body: Any, visitor: Visitor) -> PutAnswer:
        """Unmute what was muted, written as it was then."""
        return PutAnswer(await app.recipients.unmute(ref, *body.what, by=visitor.name))

    @routes.delete("/recipients/{ref}", problems=[404])
    async def delete_recipient(ref: NamePath, visitor: Visitor) -> None:
        """Delete the settings of a recipient, who is then reached with the defaults."""
        await app.recipients.delete(ref, by=visitor.name)

    @routes.get("/recipients/{ref}/audit", answer=page_of(AuditEvent))
    async def audit_recipient(
        ref: NamePath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who changed a recipient, newest first."""
        return await app.recipients.audit(ref, limit=limit, after=after)

    return routes
