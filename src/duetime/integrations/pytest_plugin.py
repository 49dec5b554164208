"""The pytest plugin: the fixture `duetime_world`. It imports Duetime only when a test asks for it.

Name your app in the ini option `duetime_app = shop.jobs:app`, or define a fixture `duetime_app`.
`@pytest.mark.duetime(now="2026-03-08T00:00Z", inline=True)` passes options to `app.testing`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.testing import Opening, World


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("duetime_app", "the Duetime app under test, as module:name", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "duetime(now=, inline=, isolated=, max_extra_jobs=): options of the test's duetime_world",
    )
    # Whose kind of async fixture it must be depends on the plugins.
    make: Any = pytest.fixture
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio

        make = pytest_asyncio.fixture
    fixtures = ModuleType("duetime_async_fixtures")
    fixtures.__dict__["world"] = make(name="_duetime_world_async")(_world_async)
    config.pluginmanager.register(fixtures, fixtures.__name__)


@pytest.fixture
def duetime_app(pytestconfig: pytest.Config) -> Duetime:
    """The app under test: the one that the ini option `duetime_app` names. Override it freely."""
    module, _, name = pytestconfig.getini("duetime_app").partition(":")
    if not module or not name:
        raise pytest.UsageError(
            "duetime_world needs to know your app. Set the ini option duetime_app = module:name, "
            "or define a fixture duetime_app that returns the app."
        )
    app: Duetime = getattr(import_module(module), name)
    return app


@pytest.fixture
def duetime_world(request: pytest.FixtureRequest) -> World:
    """A test world of `duetime_app`: throw-away tables, and a clock that the test moves.

    In an async test it lives on the test's event loop; else call it through `app.sync`.
    """
    function = getattr(request.function, "hypothesis", None)
    function = getattr(function, "inner_test", request.function)
    asynchronous = inspect.iscoroutinefunction(function)
    name = "_duetime_world_async" if asynchronous else "_duetime_world_sync"
    world: World = request.getfixturevalue(name)
    return world


@pytest.fixture(name="_duetime_world_sync")
def _world_sync(request: pytest.FixtureRequest, duetime_app: Duetime) -> Iterator[World]:
    with _opening(request, duetime_app) as world:
        yield world


async def _world_async(
    request: pytest.FixtureRequest, duetime_app: Duetime
) -> AsyncIterator[World]:
    async with _opening(request, duetime_app) as world:
        yield world


def _opening(request: pytest.FixtureRequest, app: Duetime) -> Opening:
    marker = request.node.get_closest_marker("duetime")
    options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    return app.testing(**options)
