"""The pages that operators use every day, in a real browser."""

from __future__ import annotations

from playwright.async_api import Page, expect

from duetime import Duetime
from tests.web.browser.conftest import check_looks

HOSTILE = "<img src=x onerror=alert(1)>'\"{{7*7}}"


async def test_the_pages_of_operators_are_accessible(app: Duetime, page: Page) -> None:
    @app.task(queue="mail")
    async def greet() -> None: ...

    await greet.enqueue()
    await app.queues.pause("mail", reason=HOSTILE, by=HOSTILE)
    async with app.worker(queues=["reports"]):
        for path in ("/queues", "/queues/mail", "/workers", "/audit", "/tables"):
            await check_looks(page, path)
            await expect(page.get_by_text("49", exact=True)).to_have_count(0)


async def test_pause_a_queue_with_a_reason_and_resume_it(app: Duetime, page: Page) -> None:
    @app.task(queue="mail")
    async def greet() -> None: ...

    await greet.enqueue()
    await page.goto("/queues/mail")

    await page.get_by_role("button", name="Pause …").click()
    await page.get_by_label("Why?").fill("provider is down")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.get_by_text("Paused by local: provider is down").first).to_be_visible()
    assert (await app.queues.get("mail")).pause_reason == "provider is down"

    await page.get_by_role("button", name="Resume", exact=True).click()
    await expect(page.get_by_role("status")).to_have_text("Queue mail is resumed.")
    assert (await app.queues.get("mail")).paused_at is None


async def test_limits_that_make_no_sense_are_refused_in_words(app: Duetime, page: Page) -> None:
    await app.queues.limit("mail", running=5)
    await page.goto("/queues/mail")

    await page.get_by_role("button", name="Limits …").click()
    await page.get_by_label("Starts").fill("100")
    async with page.expect_response(lambda answer: answer.status == 422):
        await page.get_by_role("button", name="Set limits").click()

    await expect(page.get_by_text("requires both rate= and period=")).to_be_visible()
    assert (await app.queues.get("mail")).limits.running == 5
