"""The first screen says what is wrong and mends it; timing is drawn, in a real browser."""

from __future__ import annotations

from datetime import timedelta

from playwright.async_api import Page, expect

from duetime import Discard, Duetime
from tests.waiting import until
from tests.web.browser.conftest import check_looks

HOSTILE = "<img src=x onerror=alert(1)>'\""


async def test_all_is_well(app: Duetime, page: Page) -> None:
    await page.goto("/")

    await expect(page.get_by_text("All is well.")).to_be_visible()
    await check_looks(page, "/")


async def test_what_comes_next_is_one_list_with_links(app: Duetime, page: Page) -> None:
    @app.task(name="greet")
    async def greet() -> None: ...

    now = await app.now()
    job = await greet.using(delay="10m").enqueue()
    await app.schedules.put("digest", "greet", "0 * * * *")
    due = now + timedelta(hours=1)
    await app.subjects.put("game/1", due=due, remind=["-30m"], recipients=[HOSTILE])

    await page.goto("/")

    following = page.get_by_role("heading", name="Next").locator("xpath=following::table[1]")
    for name, link in (
        ("greet", f"/jobs/{job.id}"),
        ("digest", "/schedules/digest"),
        ("game/1", "/subjects/game%2F1"),
    ):
        found = following.get_by_role("link", name=name, exact=True).first
        await expect(found).to_have_attribute("href", link)
    schedules = page.get_by_role("region", name="Schedules over time")
    await expect(schedules.get_by_text("digest", exact=True)).to_be_visible()
    await check_looks(page, "/")


async def test_a_problem_is_told_in_words_and_mended_by_its_button(
    app: Duetime, page: Page
) -> None:
    broken = [True]

    @app.task(name="charge")
    async def charge() -> None:
        if broken:
            raise Discard(HOSTILE)

    async def is_in(state: str) -> bool:
        return (await app.jobs.get(job.id)).state == state

    page.on("dialog", lambda dialog: dialog.accept())
    async with app.worker():
        job = await charge.enqueue()
        await until(lambda: is_in("dead"))
        await page.goto("/")
        await expect(page.get_by_text("The task 'charge' has 1 dead job")).to_be_visible()
        await check_looks(page, "/")
        broken.clear()

        await page.get_by_role("button", name="Requeue").click()

        await until(lambda: is_in("completed"))
    await expect(page.get_by_text("All is well.")).to_be_visible()
    assert (await app.jobs.audit(job.id))[0].actor == "local"


async def test_a_button_does_nothing_once_the_problem_is_gone(app: Duetime, page: Page) -> None:
    await app.queues.pause("mail", reason="x")

    @app.task(queue="mail")
    async def greet() -> None: ...

    await greet.using(at=(await app.now()).replace(year=2020)).enqueue()
    page.on("dialog", lambda dialog: dialog.accept())
    await page.goto("/")
    button = page.get_by_role("button", name="Resume")
    await expect(button).to_be_visible()
    await page.get_by_role("button", name="live").click()  # Paused, so that the button stays.
    await app.queues.resume("mail")

    await button.click()

    await expect(page.get_by_text("nothing was done")).to_be_visible()


async def test_timing_is_drawn(app: Duetime, page: Page) -> None:
    @app.task
    async def greet() -> None: ...

    async with app.worker():
        await (await greet.enqueue()).result()
    for window in ("1h", "24h", "7d"):
        await page.goto(f"/timing?window={window}")
        await expect(page.locator(".plot canvas")).to_have_count(2)
    await check_looks(page, "/timing")
