"""Why something is as it is: the chain of checks, in a real browser."""

from __future__ import annotations

from datetime import timedelta

from playwright.async_api import Page, expect

from duetime import Context, Duetime, Reminder
from tests.waiting import until
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
    await expect(page.locator(".because")).to_contain_text(f"by ann: {HOSTILE}")
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


async def test_the_button_beside_a_failed_check_mends_it(app: Duetime, page: Page) -> None:
    @app.task(queue="mail")
    async def greet() -> None: ...

    job = await greet.enqueue()
    await app.queues.pause("mail", reason="the disk is full", by="ann")
    await app.schedules.put("nightly", greet, "0 2 * * *")
    await app.schedules.pause("nightly", by="ann")
    page.on("dialog", lambda dialog: dialog.accept())

    await page.goto(f"/jobs/{job.id}")
    failed = page.locator("ol.why li.failed")
    await failed.get_by_role("button", name="Resume the queue").click()
    await expect(page.get_by_role("status")).to_have_text("Queue mail is resumed.")
    await page.goto(f"/jobs/{job.id}")
    await expect(failed).to_contain_text("Does a live worker serve the queue?")
    await expect(failed.get_by_role("button", name="Copy the command")).to_be_visible()

    await page.goto("/schedules/nightly")
    await failed.get_by_role("button", name="Resume it").click()
    await expect(page.get_by_role("status")).to_have_text("Schedule nightly is resumed.")
    assert (await app.schedules.get("nightly")).paused_at is None


async def test_what_waits_for_quiet_hours_is_sent_anyway(app: Duetime, page: Page) -> None:
    @app.on_reminder
    async def send(reminder: Reminder, ctx: Context) -> None: ...

    async def waits() -> bool:
        return (await only()).reason is not None

    async def sent() -> bool:
        return (await only()).status == "sent"

    async def only() -> Reminder:
        return (await app.reminders.list(subject="game:42"))[0]

    now = await app.now()
    quiet = f"{now - timedelta(hours=2):%H:%M}-{now + timedelta(hours=3):%H:%M}"
    await app.recipients.put("ann", tz="UTC", quiet=quiet)
    await app.subjects.put(
        "game:42", due=now + timedelta(milliseconds=500), remind=["0m"], recipients=["ann"]
    )
    page.on("dialog", lambda dialog: dialog.accept())
    async with app.worker():
        await until(waits)
        await page.goto(f"/reminders/{(await only()).id}")
        failed = page.locator("ol.why li.failed")
        await expect(failed).to_contain_text("Does its recipient take messages now?")
        await failed.get_by_role("button", name="Send anyway").click()
        await expect(page.get_by_role("status")).to_have_text("It is sent now.")
        await until(sent)


async def test_queues_and_subjects_have_a_chain_of_checks(app: Duetime, page: Page) -> None:
    due = await app.now() + timedelta(days=1)
    await app.subjects.put("game:42", due=due, recipients=["ann"])
    await app.queues.pause("mail", by="ann")

    await page.goto("/queues/mail")
    await expect(page.locator("ol.why li.failed")).to_contain_text("Is it open?")
    await expect(page.locator("ol.why li.unreached")).to_have_count(4)
    await page.goto("/subjects/game:42")
    await expect(page.locator("ol.why li.passed")).to_have_count(3)
    await expect(page.locator("ol.why li.failed")).to_contain_text("Do rules apply to it?")
