"""`app.recipients`: how and when people are reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import check_actor, check_name, check_sought
from duetime.domain.page import DEFAULT_LIMIT, Page, check_limit, make_page, read_cursor
from duetime.domain.reminders.recipient import (
    ChannelsLike,
    MutedLike,
    Recipient,
    make_recipient,
    parse_muted,
)
from duetime.errors import InvalidInput, RecipientNotFound
from duetime.storage.reminders.recipients import RecipientStatements

if TYPE_CHECKING:
    from duetime.app import Duetime


class Recipients:
    """`app.recipients`: who is reminded, and how. Without an entry, a ref is the address."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def __getitem__(self, ref: str) -> RecipientHandle:
        return RecipientHandle(self, check_sought(ref, what="recipient"))

    async def put(
        self,
        ref: str,
        *,
        tz: str | None = None,
        channels: ChannelsLike | None = None,
        quiet: str | None = None,
        muted: MutedLike | None = None,
        max_per_hour: int | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> str:
        """Add a recipient, or replace it; return `added`, `changed` or `same`.

        `channels`: `{"push": "token", "email": "ann@example.org"}`, in the order in which they are
        tried. `quiet`: "22:00-07:00" in the time zone `tz`, else in the subject's. `muted`: True,
        or any of "scope:…", "subject:…", "channel:…", "rule:…". `max_per_hour`: reminders beyond
        this limit wait, and go out in one digest. Disabled addresses are tried again.
        """
        given = make_recipient(
            ref, tz=tz, channels=channels, quiet=quiet, muted=muted, max_per_hour=max_per_hour
        )
        return await self._change(ref, lambda _: given, by, tx)

    async def mute(self, ref: str, *what: str, by: str = "unknown", tx: Any = None) -> str:
        """Mute "all", or any of "scope:…", "subject:…", "channel:…", "rule:…"."""
        added = parse_muted(_some(what))

        def change(known: Recipient | None) -> Recipient:
            before = known or Recipient(ref=check_name(ref, what="recipient"))
            return msgspec.structs.replace(before, muted=parse_muted([*before.muted, *added]))

        return await self._change(ref, change, by, tx)

    async def unmute(self, ref: str, *what: str, by: str = "unknown", tx: Any = None) -> str:
        """Unmute what was muted, written as it was then."""
        removed = set(parse_muted(_some(what)))

        def change(known: Recipient | None) -> Recipient:
            if known is None:
                raise RecipientNotFound(ref)
            kept = tuple(one for one in known.muted if one not in removed)
            return msgspec.structs.replace(known, muted=kept)

        return await self._change(ref, change, by, tx)

    async def get(self, ref: str) -> Recipient:
        """Return the recipient; raise `RecipientNotFound`."""
        check_sought(ref, what="recipient")
        found: Recipient | None = await self._app._perform(
            lambda d: RecipientStatements(d).recipient(ref), reads=True
        )
        if found is None:
            raise RecipientNotFound(ref)
        return found

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[Recipient]:
        """Return recipients by reference. `after`: the `next` of the previous page."""
        position = read_cursor(after, order="recipients", shape=tuple[str])
        most = check_limit(limit) + 1
        found = await self._app._perform(
            lambda d: RecipientStatements(d).recipients(
                after=position[0] if position else "", limit=most
            ),
            reads=True,
        )
        return make_page(found, limit=limit, order="recipients", position=lambda one: (one.ref,))

    iterate = iterated(list)

    async def delete(self, ref: str, *, by: str = "unknown", tx: Any = None) -> None:
        """Delete the settings of a recipient, who is then reached with the defaults."""
        check_sought(ref, what="recipient")
        actor = check_actor(by)
        deleted = await self._app._perform(
            lambda d: RecipientStatements(d).delete_recipient(ref, actor=actor), tx
        )
        if not deleted:
            raise RecipientNotFound(ref)

    async def audit(
        self, ref: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the recipient, newest first."""
        entity = f"recipient:{check_sought(ref, what='recipient')}"
        return await self._app.audit.list(entity=entity, limit=limit, after=after)

    async def _change(
        self, ref: str, change: Callable[[Recipient | None], Recipient], by: str, tx: Any
    ) -> str:
        actor = check_actor(by)
        answer: str = await self._app._perform(
            lambda d: RecipientStatements(d).put_recipient(ref, change, actor=actor), tx
        )
        return answer


class RecipientHandle(Handle[Recipients, str]):
    """One recipient, by their reference."""

    @property
    def ref(self) -> str:
        return self._ref

    put = bound(Recipients.put)
    get = bound(Recipients.get)
    mute = bound(Recipients.mute)
    unmute = bound(Recipients.unmute)
    delete = bound(Recipients.delete)
    audit = bound(Recipients.audit)


def _some(what: tuple[str, ...]) -> tuple[str, ...]:
    if not what:
        raise InvalidInput(
            "Give at least one thing to mute, such as 'all', 'scope:guild:1' or 'channel:email'."
        )
    return what
