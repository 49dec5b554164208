"""The screens of schedules, in a real browser."""

from __future__ import annotations

from datetime import timedelta

from playwright.async_api import Page, expect

from duetime import Duetime
from tests.waiting import until
from tests.web.browser.conftest import check_looks

HOSTILE = "<img src=x onerror=alert(1)>'\""


async def declare(app: Duetime) -> None:
    @app.task(name="report")
    async def report() -> None: ...

    await app.schedules.put("nightly", report, "0 2 * * *", tz="Europe/Berlin")
    await app.schedules.put("a/b", report, "@every 1h")


async def test_the_pages_of_schedules_are_accessible(app: Duetime, page: Page) -> None:
    await declare(app)
    await app.schedules.pause("a/b", reason=HOSTILE, by=HOSTILE)
    await app.schedules.trigger("nightly")

    for zoom in ("hour", "week", "month"):
        await page.goto(f"/schedules?zoom={zoom}")
        await expect(page.locator("main svg").get_by_text("nightly", exact=True)).to_be_visible()
    for path in ("/schedules", "/schedules/nightly", "/schedules/a%2Fb", "/schedules/new"):
        await check_looks(page, path)


async def test_pause_resume_run_now_and_move(app: Duetime, page: Page) -> None:
    await declare(app)
    page.on("dialog", lambda dialog: dialog.accept())
    await page.goto("/schedules/nightly")

    await page.get_by_role("button", name="Pause …").click()
    await page.get_by_role("textbox", name="Why?").fill("holiday")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.get_by_text("Paused by local: holiday").first).to_be_visible()
    await page.get_by_role("button", name="Resume", exact=True).click()
    await expect(page.get_by_role("status")).to_have_text("Schedule nightly is resumed.")
    await page.get_by_role("button", name="Run now").click()
    await expect(page.get_by_role("status")).to_contain_text("Its next run is unchanged.")
    await page.get_by_role("button", name="Move next run").click()
    await page.get_by_label("To a time").fill("45m")
    await page.get_by_role("button", name="Move", exact=True).click()
    await expect(page.get_by_role("status")).to_contain_text("later runs are unchanged")

    moved = (await app.schedules.get("nightly")).next_run_at
    assert moved is not None
    assert moved - await app.now() < timedelta(minutes=46)
    actors = {event.actor for event in await app.schedules.audit("nightly")}
    assert "local" in actors


async def test_pause_several_at_once(app: Duetime, page: Page) -> None:
    await declare(app)
    await page.goto("/schedules")

    await page.get_by_label("Select all").check()
    await page.get_by_label("Reason of the pause").fill("migration")
    await page.get_by_role("button", name="Pause selected").click()

    await expect(page.get_by_role("status")).to_have_text("2 schedules are paused.")
    paused = [one async for one in app.schedules.iterate()]
    assert [one.pause_reason for one in paused] == ["migration", "migration"]


async def test_the_editor_shows_the_next_ticks_while_a_spec_is_written(
    app: Duetime, page: Page
) -> None:
    await declare(app)
    await page.goto("/schedules/new")
    preview = page.locator("#preview")

    await page.get_by_label("When:").fill("0 99 * * *")
    await expect(preview.locator(".problem")).to_be_visible()
    await page.get_by_label("In the time zone").fill("Europe/Berlin")
    await page.get_by_label("When:").fill("0 2 * * *")
    await expect(preview.locator("tbody tr")).to_have_count(20)
    await expect(preview.get_by_text("nightly").first).to_be_visible()
    await check_looks(page, "/schedules/new")
    await page.get_by_label("Name").fill("another")
    await page.get_by_label("Starts the task").fill("report")
    await page.get_by_label("When:").fill("30 3 * * *")
    await page.get_by_role("button", name="Save").click()

    await expect(page.get_by_role("status")).to_have_text("Schedule another is stored.")

    async def stored() -> bool:
        return (await app.schedules.get("another")).target == "report"

    await until(stored)
