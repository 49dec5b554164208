"""A page of a real browser that is logged in to a service."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from duetime import Duetime
from tests.chromium import Chromium, find_chromium
from tests.web.conftest import Running

# Open pages refresh themselves less often on a busy machine: at the latest after 15 seconds.
expect.set_options(timeout=30_000)

AXE = Path(__file__).parent / "axe.min.js"
WIDE = (1360, 900)
NARROW = (380, 800)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    command = find_chromium()
    if command is None:
        pytest.skip("Chromium is not installed.")
    browser = Chromium(command)
    yield browser
    browser.close()


@pytest.fixture
async def browser(chromium: Chromium) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(chromium.address)
        yield browser
        await browser.close()


@pytest.fixture
def file(tmp_path: Path, sqlite_tables: Path) -> Path:
    return Path(shutil.copy(sqlite_tables, tmp_path / "duetime.db"))


@pytest.fixture
async def app(file: Path) -> AsyncIterator[Duetime]:
    """On SQLite: what a browser shows does not depend on the backend."""
    app = Duetime(f"sqlite:///{file}")
    yield app
    await app.close()


@pytest.fixture
async def context(browser: Browser, service: Running) -> AsyncIterator[BrowserContext]:
    """A profile of its own, logged in. What goes wrong on a page fails the test."""
    context = await browser.new_context(
        viewport={"width": WIDE[0], "height": WIDE[1]}, base_url=service.url, locale="en-GB"
    )
    complaints: list[str] = []
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    # A refusal in words (4xx) is an answer that tests ask for.
    context.on(
        "console",
        lambda message: (
            complaints.append(message.text)
            if message.type == "error" and "with a status of 4" not in message.text
            else None
        ),
    )
    page = await context.new_page()
    await page.goto(f"/login/{service.link.secret}")
    await page.close()
    yield context
    await context.close()
    assert complaints == []


@pytest.fixture
async def page(context: BrowserContext) -> Page:
    return await context.new_page()


async def find_barriers(page: Page) -> list[str]:
    """What axe-core calls serious or critical on a page, one line each."""
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']}: {node['target']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


async def check_looks(page: Page, path: str) -> None:
    """A page has no serious barrier in either theme, and fits on a narrow screen."""
    await page.goto(path)
    for theme in ("light", "dark"):
        await page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        assert await find_barriers(page) == [], theme
    await page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    assert await find_barriers(page) == []
    await page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
