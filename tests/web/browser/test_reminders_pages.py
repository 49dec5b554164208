"""The screens of reminders, subjects and recipients, in a real browser."""

from __future__ import annotations

from datetime import timedelta

from playwright.async_api import Page, expect

from duetime import Context, Duetime, Reminder
from tests.waiting import until
from tests.web.browser.conftest import check_looks

HOSTILE = "<img src=x onerror=alert(1)>'\""


async def test_a_subject_shows_all_that_happens_about_it(app: Duetime, page: Page) -> None:
    @app.on_reminder
    async def send(reminder: Reminder, ctx: Context) -> None: ...

    now = await app.now()
    await app.scopes.put("guild:1", remind=["-2d", "-1h"])
    await app.recipients.put("ann", tz="America/New_York", quiet="22:00-07:00")
    put = app.subjects.put
    game = {"scope": "guild:1", "recipients": ["ann", HOSTILE], "data": {"title": HOSTILE}}
    await put("game/42", due=now + timedelta(days=3), **game)  # type: ignore[arg-type]
    await put("game/42", due=now + timedelta(days=4), **game)  # type: ignore[arg-type]

    await page.goto("/reminders")
    await page.get_by_role("link", name="game/42").first.click()

    await expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    await expect(page.get_by_text("from guild:1")).to_be_visible()
    await expect(page.locator("main svg text.label", has_text="was ")).to_be_visible()
    await expect(page.get_by_role("cell", name="superseded").first).to_be_visible()
    for path in ("/reminders", "/subjects", "/subjects/game%2F42", "/recipients/ann"):
        await check_looks(page, path)


async def test_complete_a_subject(app: Duetime, page: Page) -> None:
    due = await app.now() + timedelta(days=1)
    await app.subjects.put("game:1", due=due, remind=["-1h"], recipients=["ann"])
    page.on("dialog", lambda dialog: dialog.accept())

    await page.goto("/subjects/game:1")
    await page.get_by_role("button", name="Complete").click()

    await expect(page.get_by_role("status")).to_contain_text("nobody is reminded")
    assert (await app.subjects.get("game:1")).status == "done"
    assert (await app.reminders.list(subject="game:1"))[0].status == "cancelled"


async def test_acknowledge_a_reminder_that_was_sent(app: Duetime, page: Page) -> None:
    @app.on_reminder
    async def send(reminder: Reminder, ctx: Context) -> None: ...

    async def sent() -> bool:
        return (await app.reminders.list(subject="game:1"))[0].status == "sent"

    async with app.worker():
        due = await app.now() + timedelta(milliseconds=200)
        await app.subjects.put("game:1", due=due, remind=["0m"], recipients=["ann"])
        await until(sent)
    reminder = (await app.reminders.list(subject="game:1"))[0]

    await page.goto(f"/reminders/{reminder.id}")
    await check_looks(page, f"/reminders/{reminder.id}")
    await page.get_by_role("button", name="Acknowledge").click()

    await expect(page.get_by_text("by local").first).to_be_visible()
    assert (await app.reminders.get(reminder.id)).acknowledged_by == "local"


async def test_mute_and_unmute_a_recipient(app: Duetime, page: Page) -> None:
    await app.recipients.put("ann", quiet="22:00-07:00")
    page.on("dialog", lambda dialog: dialog.accept())
    await page.goto("/recipients")
    await page.get_by_role("link", name="ann").click()

    await page.get_by_role("button", name="Mute everything").click()
    await expect(page.get_by_role("status")).to_have_text("ann gets nothing until unmuted.")
    assert (await app.recipients.get("ann")).muted == ("all",)

    await page.get_by_role("button", name="Unmute").click()
    await expect(page.get_by_role("status")).to_have_text("ann is unmuted.")
    assert (await app.recipients.get("ann")).muted == ()


async def test_preview_what_a_move_would_supersede(app: Duetime, page: Page) -> None:
    due = await app.now() + timedelta(days=3)
    await app.subjects.put("game:1", due=due, remind=["-1h"], recipients=["ann"])
    await page.goto("/subjects/game:1")

    await page.get_by_role("button", name="Preview a move").click()
    await page.get_by_label("To (").fill(f"{due + timedelta(days=1):%Y-%m-%dT%H:%M}")
    await page.get_by_role("button", name="Preview", exact=True).click()

    preview = page.locator("#move-preview")
    await expect(preview.get_by_text("Would be superseded")).to_be_visible()
    await expect(preview.get_by_text("Would be armed")).to_be_visible()
    assert (await app.subjects.get("game:1")).due_at == due


async def test_a_recipient_and_a_subject_show_what_was_sent(app: Duetime, page: Page) -> None:
    @app.on_reminder
    async def send(reminder: Reminder, ctx: Context) -> None: ...

    async def sent() -> bool:
        return (await app.reminders.list(subject="game:1"))[0].status == "sent"

    await app.recipients.put("ann", tz="Europe/Berlin", quiet="22:00-07:00")
    async with app.worker():
        now = await app.now()
        due = now + timedelta(milliseconds=200)
        urgent = [{"rule": "0m", "urgent": True}]
        await app.subjects.put("game:1", due=due, remind=urgent, recipients=["ann"])
        await app.subjects.put(
            "game:2", due=now + timedelta(days=2), remind=["-1h"], recipients=["ann"]
        )
        await until(sent)

    await page.goto("/recipients/ann")
    await expect(page.get_by_text("1 sent in the last 3 days; 1 to come")).to_be_visible()
    await expect(page.get_by_role("link", name="game:1")).to_be_visible()
    await expect(page.get_by_role("cell", name="handler")).to_be_visible()
    await page.goto("/subjects/game:1")
    timeline = page.locator("main svg")
    await expect(timeline.get_by_text("Deliveries", exact=True)).to_be_visible()
    await expect(timeline.get_by_text("handler", exact=True)).to_be_visible()
