"""The page of the HTTP API, in a real browser."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.web.browser.conftest import check_looks


async def test_an_operation_unfolds(page: Page) -> None:
    await page.goto("/api/docs")
    operation = page.locator("#enqueue_job")
    await expect(operation.get_by_text("Authorization: Bearer $TOKEN")).not_to_be_visible()

    await operation.locator("summary").click()

    await expect(operation.get_by_text("Authorization: Bearer $TOKEN")).to_be_visible()
    await expect(operation.get_by_text("on_conflict")).to_be_visible()
    await check_looks(page, "/api/docs")
