"""The API of an app on each backend, as `ann`, who may do everything."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from duetime import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.web.service import make_service


class Api:
    """Calls the API without a network between."""

    def __init__(self, app: Duetime, **options: Any) -> None:
        self.service = make_service(
            app,
            authenticate=lambda request: Visitor("ann", TokenScope.ADMIN, by_cookie=False),
            **options,
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.service, raise_app_exceptions=False),
            base_url="http://localhost/api/v1",
        )

    async def __call__(
        self, method: str, path: str, body: Any = None, *, status: int | None = None, **query: Any
    ) -> Any:
        """Return the answer, decoded; a problem fails the test, unless its status is expected."""
        answer = await self.client.request(method, path, json=body, params=query or None)
        if status is None:
            assert answer.status_code < 300, answer.text
        else:
            assert answer.status_code == status, answer.text
        kind = answer.headers.get("content-type", "")
        return answer.json() if kind.endswith("json") else answer.content


@pytest.fixture
def api(app: Duetime) -> Api:
    return Api(app)
