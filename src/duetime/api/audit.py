"""`app.audit`: who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetime.api.handle import iterated
from duetime.domain.audit import AuditEvent, AuditKind, check_entity, check_kind
from duetime.domain.checks import check_sought
from duetime.domain.page import DEFAULT_LIMIT, Id, Page, check_limit, make_page, read_cursor
from duetime.storage.audit import find_events

if TYPE_CHECKING:
    from duetime.app import Duetime


class Audit:
    """`app.audit`: all changes that people made, also of things that are deleted now."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def list(
        self,
        *,
        entity: str | None = None,
        kind: AuditKind | None = None,
        by: str | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[AuditEvent]:
        """Return events, newest first. `after`: the `next` of the previous page.

        `entity`: of one thing, such as `job:42` or `schedule:nightly`. `kind`: of all things of one
        kind, such as `schedule`. `by`: who made the change.
        """
        position = read_cursor(after, order="audit", shape=tuple[Id])
        entity = None if entity is None else check_entity(entity)
        of_kind = None if kind is None else check_kind(kind)
        actor = None if by is None else check_sought(by, what="actor (by=)")
        most = check_limit(limit) + 1
        found = await self._app._perform(
            lambda dialect: find_events(
                dialect,
                entity=entity,
                kind=of_kind,
                actor=actor,
                before_id=None if position is None else position[0],
                limit=most,
            ),
            reads=True,
        )
        return make_page(found, limit=limit, order="audit", position=lambda event: (event.id,))

    iterate = iterated(list)
