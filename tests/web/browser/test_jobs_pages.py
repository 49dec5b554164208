"""The screens of jobs and the search, in a real browser."""

from __future__ import annotations

import logging
import re

from playwright.async_api import Page, expect

from duetime import Discard, Duetime
from tests.waiting import until
from tests.web.browser.conftest import check_looks

HOSTILE = "<img src=x onerror=alert(1)>'\"</pre>"


async def test_a_failed_job_shows_everything_about_it(app: Duetime, page: Page) -> None:
    @app.task(name="charge")
    async def charge(order: dict[str, str]) -> None:
        logging.getLogger("shop").warning("charging %s", HOSTILE)
        raise Discard(HOSTILE)

    job = await charge.using(key=HOSTILE).enqueue(order={"id": HOSTILE})

    async def is_dead() -> bool:
        return (await app.jobs.get(job.id)).state == "dead"

    async with app.worker():
        await until(is_dead)

    await page.goto(f"/jobs/{job.id}")
    await expect(page.get_by_text(f"charging {HOSTILE}")).to_be_visible()
    await expect(page.get_by_text("Why is it dead?")).to_be_visible()
    for path in (f"/jobs/{job.id}", "/jobs?state=dead", "/jobs?args=order.id%3D7", "/search?q=cha"):
        await check_looks(page, path)


async def test_replay_with_other_arguments(app: Duetime, page: Page) -> None:
    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    async with app.worker():
        job = await double.enqueue(number=1)
        await job.result()
        await page.goto(f"/jobs/{job.id}")

        await page.get_by_role("button", name="Replay …").click()
        await page.get_by_label("Arguments").fill('{"number": 21}')
        await page.get_by_role("button", name="Replay", exact=True).click()

        await expect(page.get_by_role("status")).to_contain_text(f"a replay of job {job.id}")
        await expect(page.locator("pre").get_by_text("42")).to_be_visible()


async def test_requeue_all_that_match(app: Duetime, page: Page) -> None:
    broken = [True]

    @app.task(name="charge")
    async def charge(number: int) -> None:
        if broken:
            raise Discard("the provider refuses our key")

    async def count(state: str) -> int:
        found = await app.jobs.list(task="charge", limit=200)
        return sum(job.state == state for job in found)

    page.on("dialog", lambda dialog: dialog.accept())
    async with app.worker():
        await app.enqueue_many(charge.job(number=number) for number in range(120))

        async def all_dead() -> bool:
            return await count("dead") == 120

        await until(all_dead)
        broken.clear()
        await page.goto("/jobs?state=dead")
        await expect(page.get_by_text("120 jobs of charge")).to_be_visible()

        await page.get_by_label("all 120 that match").check()
        await page.get_by_role("button", name="Requeue", exact=True).last.click()
        await expect(page.get_by_text("120 of 120 done")).to_be_visible()

        async def all_completed() -> bool:
            return await count("completed") == 120

        await until(all_completed)


async def test_filters_are_the_url(app: Duetime, page: Page) -> None:
    @app.task(name="greet")
    async def greet(person: dict[str, int]) -> None: ...

    ids = [(await greet.enqueue(person={"id": number})).id for number in (7, 8)]
    await page.goto("/jobs")
    await page.get_by_text("Filter by task").click()

    await page.get_by_label("Argument").fill("person.id=7")
    await page.get_by_role("button", name="Filter").click()

    await expect(page).to_have_url(re.compile(r"/jobs\?args=person\.id%3D7$"))
    await expect(page.get_by_role("link", name=str(ids[0]), exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name=str(ids[1]), exact=True)).to_have_count(0)


async def test_search_leads_to_what_the_text_names(app: Duetime, page: Page) -> None:
    @app.task(name="greet")
    async def greet() -> None: ...

    job = await greet.using(key="order:7").enqueue()
    await app.queues.pause("green")
    await page.goto("/")

    await page.keyboard.press("/")
    await page.keyboard.type("order:7")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(rf"/jobs/{job.id}$"))

    await page.keyboard.press("/")
    await page.keyboard.type("gree")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("link", name="green")).to_be_visible()
