"""Why something is as it is: the chain of checks, in a real browser."""

from __future__ import annotations

from datetime import timedelta

from playwright.async_api import Page, expect

from duetime import Duetime
from tests.web.browser.conftest import check_looks

HOSTILE = "<img src=x onerror=alert(1)>'\"{{7*7}}"


async def test_the_chain_of_a_job_in_a_paused_queue(app: Duetime, page: Page) -> None:
    @app.task(queue="mail")
    async def greet() -> None: ...

    job = await greet.enqueue()
    await app.queues.pause("mail", reason=HOSTILE, by="ann")
    path = f"/jobs/{job.id}"
    await page.goto(path)

    chain = page.locator("ol.why")
    await expect(chain.locator("li.passed")).to_have_count(1)
    await expect(chain.locator("li.passed")).to_contain_text("passed: Is it due?")
    await expect(chain.locator("li.failed")).to_have_count(1)
    await expect(chain.locator("li.failed")).to_contain_text("failed: Is its queue open?")
    await expect(chain.locator("li.failed")).to_contain_text(f"by ann: {HOSTILE}")
    await expect(chain.locator("li.unreached")).to_have_count(4)
    await expect(chain.locator("li.unreached").first).to_contain_text("not reached: ")
    await check_looks(page, path)


async def test_the_chain_of_an_armed_reminder_names_the_level_of_its_rule(
    app: Duetime, page: Page
) -> None:
    await app.scopes.put("guild:1", remind=["-1h"])
    due = await app.now() + timedelta(days=1)
    await app.subjects.put("game:42", scope="guild:1", due=due, recipients=["ann"])
    [reminder] = await app.reminders.list(subject="game:42")
    path = f"/reminders/{reminder.id}"
    await page.goto(path)

    chain = page.locator("ol.why")
    await expect(chain.locator("li.passed")).to_have_count(2)
    await expect(chain.locator("li.passed").last).to_contain_text("'guild:1' sets it")
    await expect(chain.locator("li.failed")).to_contain_text("failed: Is it time to send it?")
    await expect(chain.locator("li.unreached")).to_have_count(3)
    await check_looks(page, path)
