"""The screen of the doctor, in a real browser."""

from __future__ import annotations

from playwright.async_api import Page, expect

from duetime import Duetime
from tests.web.browser.conftest import check_looks

HOSTILE = "<img src=x onerror=alert(1)>'\"{{7*7}}"


async def test_it_says_what_is_wrong_and_what_to_do(app: Duetime, page: Page) -> None:
    @app.task(queue="mail")
    async def greet() -> None: ...

    await greet.enqueue()
    await app.schedules.put(HOSTILE, "greet", "0 2 * * *", end="2020-01-01T00:00Z")
    async with app.worker(queues=["reports"]):
        await check_looks(page, "/doctor")

    await expect(page.get_by_text("No live worker serves the queue 'mail'")).to_be_visible()
    await expect(page.get_by_text("duetime worker --app MODULE:APP --queues mail")).to_be_visible()
    await expect(page.get_by_text("onerror=alert(1)").first).to_be_visible()
    await expect(page.get_by_role("link", name="Doctor")).to_have_attribute("aria-current", "page")
    await expect(page.get_by_text("The schema has version")).to_be_visible()
