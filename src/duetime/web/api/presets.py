"""`/api/v1/presets`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from duetime.app import Duetime
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.schedules.presets import Preset
from duetime.web.access import Access
from duetime.web.api.fields import After, Limit, Name, NamePath, PutAnswer, Specs
from duetime.web.api.routing import Routes, page_of


class PresetBody(msgspec.Struct, forbid_unknown_fields=True):
    """Times under a name."""

    specs: Specs
    tz: Name = "UTC"
    description: Annotated[str, Meta(max_length=1000)] = ""


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="presets")
    presets = app.schedules.presets

    @routes.get("/presets", answer=page_of(Preset))
    async def list_presets(limit: Limit = DEFAULT_LIMIT, after: After = None) -> Page[Preset]:
        """List the presets that come with Duetime, then your own by name."""
        return await presets.list(limit=limit, after=after)

    @routes.get("/presets/{name}", answer=Preset, problems=[404])
    async def get_preset(name: NamePath) -> Preset:
        """Show a preset."""
        return await presets.get(name)

    @routes.put(
        "/presets/{name}",
        body=PresetBody,
        example={"specs": ["0 18 * * 5"], "description": "Friday evening"},
        answer=PutAnswer,
    )
    async def put_preset(name: NamePath, body: Any, visitor: Visitor) -> PutAnswer:
        """Add a preset of your own, or change it. Schedules made with it stay as they are."""
        return PutAnswer(
            await presets.put(
                name, *body.specs, tz=body.tz, description=body.description, by=visitor.name
            )
        )

    @routes.delete("/presets/{name}", problems=[404])
    async def delete_preset(name: NamePath, visitor: Visitor) -> None:
        """Delete a preset of your own."""
        await presets.delete(name, by=visitor.name)

    @routes.get("/presets/{name}/audit", answer=page_of(AuditEvent))
    async def audit_preset(
        name: NamePath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who changed a preset, newest first."""
        return await presets.audit(name, limit=limit, after=after)

    return routes
