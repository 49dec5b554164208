"""The frame of every page, in a real browser: both themes, narrow, keys, live updates."""

from __future__ import annotations

import asyncio

from playwright.async_api import BrowserContext, Page, expect

from duetime import Duetime
from tests.web.browser.conftest import check_looks

HIDE = """hidden => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_pages_are_accessible_in_both_themes_and_narrow(app: Duetime, page: Page) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    job = await greet.enqueue(name="ann")

    for path in ("/", "/jobs", f"/jobs/{job.id}"):
        await check_looks(page, path)


async def test_the_theme_stays(page: Page) -> None:
    await page.goto("/")
    before = await page.evaluate("document.documentElement.dataset.theme")

    await page.keyboard.press("t")
    await page.reload()

    assert await page.evaluate("document.documentElement.dataset.theme") != before


async def test_an_open_page_shows_a_new_job(app: Duetime, page: Page) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    await page.goto("/jobs")
    await expect(page.get_by_text("No jobs yet.")).to_be_visible()

    job = await greet.enqueue(name="ann")

    await expect(page.get_by_role("link", name=str(job.id), exact=True)).to_be_visible()


async def test_two_tabs_follow_a_worker_and_keep_focus_and_scroll(
    app: Duetime, context: BrowserContext
) -> None:
    go = asyncio.Event()

    @app.task
    async def brew(number: int) -> None:
        await go.wait()

    for number in range(60):
        await brew.using(delay="1h").enqueue(number=number)
    job = await brew.enqueue(number=60)
    one, other = await context.new_page(), await context.new_page()
    for tab, path in ((one, "/jobs"), (other, f"/jobs/{job.id}")):
        await tab.goto(path)
        await tab.evaluate("window.stays = true")
    row = one.get_by_role("row").filter(has=one.get_by_role("link", name=str(job.id), exact=True))
    fact = other.locator(".facts")
    await expect(row).to_contain_text("pending")
    await expect(fact).to_contain_text("pending")
    link = one.get_by_role("link", name=str(job.id - 20), exact=True)
    await link.focus()
    await one.evaluate("scrollTo(0, 400)")
    assert await one.evaluate("scrollY") > 0
    place = await link.bounding_box()

    async with app.worker(concurrency=2):
        for shown in (row, fact):
            await expect(shown).to_contain_text("running", timeout=30_000)
        go.set()
        for shown in (fact, row):
            await expect(shown).to_contain_text("completed", timeout=30_000)

    # A line above may grow: what is read stays where it is.
    assert await link.bounding_box() == place
    await expect(link).to_be_focused()
    for tab in (one, other):
        assert await tab.evaluate("document.visibilityState") == "visible"
        assert await tab.evaluate("window.stays"), "It was merged in, not loaded again."


async def test_a_page_in_the_background_listens_no_more(page: Page) -> None:
    async with page.expect_request("**/live"):
        await page.goto("/jobs")
    async with page.expect_event("requestfailed", lambda request: request.url.endswith("/live")):
        await page.evaluate(HIDE, True)
    async with page.expect_request("**/live"):
        await page.evaluate(HIDE, False)


async def test_cancel_by_the_button_of_a_job(app: Duetime, page: Page) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    job = await greet.using(delay="1h").enqueue(name="<img src=x onerror=alert(1)>")
    page.on("dialog", lambda dialog: dialog.accept())

    await page.goto(f"/jobs/{job.id}")
    await page.get_by_role("button", name="Cancel").click()

    await expect(page.get_by_role("status")).to_have_text(f"Job {job.id} was cancelled.")
    event = (await app.jobs.audit(job.id))[0]
    assert event.actor == "local"


async def test_what_an_action_did_stays_said_while_the_page_is_live(
    app: Duetime, page: Page
) -> None:
    @app.task
    async def greet() -> None: ...

    await app.queues.pause("mail")
    await page.goto("/queues/mail")
    await page.get_by_role("button", name="Resume", exact=True).click()
    await expect(page.get_by_role("status")).to_have_text("Queue mail is resumed.")

    job = await greet.using(queue="mail", delay="1h").enqueue()

    await expect(page.get_by_role("link", name=str(job.id), exact=True)).to_be_visible()
    await expect(page.get_by_role("status")).to_have_text("Queue mail is resumed.")


async def test_a_browser_is_told_on_a_page_what_is_wrong(page: Page) -> None:
    answer = await page.goto("/nowhere")

    assert answer is not None
    assert answer.status == 404
    await expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    await check_looks(page, "/nowhere")
    await page.goto("/jobs/abc")
    await expect(page.get_by_role("heading", name="Invalid input")).to_be_visible()
