"""The screens of administrators, and everybody's own account, in a real browser."""

from __future__ import annotations

from playwright.async_api import Browser, Page, expect

from duetime import Duetime
from tests.web.browser.conftest import check_looks
from tests.web.conftest import Running

PASSWORD = "correct horse battery"
OTHER_PASSWORD = "staple battery horse"


async def log_in(page: Page, name: str, password: str) -> None:
    await page.goto("/login")
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Log in").click()


async def test_the_settings_are_accessible(app: Duetime, page: Page) -> None:
    await app.tokens.create("ci <img src=x onerror=alert(1)>", scope="read")
    await app.accounts.add("ann", role="admin", password=PASSWORD)
    await app.sessions.log_in("ann", PASSWORD, address="127.0.0.1")

    for path in (
        "/settings", "/settings/tokens", "/settings/accounts", "/settings/accounts/ann", "/account",
    ):  # fmt: skip
        await check_looks(page, path)


async def test_a_token_is_shown_once_and_revoked(app: Duetime, page: Page) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    await page.goto("/")
    await page.get_by_role("link", name="Settings").click()
    await page.get_by_role("link", name="API tokens").click()

    await page.get_by_label("Name").fill("ci")
    await page.get_by_label("Scope").select_option("operate")
    await page.get_by_role("button", name="Create token").click()
    text = await page.locator("code.secret").inner_text()
    token = await app.tokens.check(text)
    assert token is not None
    assert (token.name, token.scope, token.created_by) == ("ci", "operate", "local")
    assert token.expires_at is not None

    await page.get_by_role("link", name="Done").click()
    await expect(page.get_by_role("cell", name="operate")).to_be_visible()
    assert text not in await page.content()
    await page.get_by_role("button", name="Revoke").click()
    await expect(page.get_by_role("status")).to_contain_text("Token ci is revoked")
    assert await app.tokens.check(text) is None


async def test_add_an_account_change_its_role_and_delete_it(app: Duetime, page: Page) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    await page.goto("/settings/accounts")
    await page.get_by_label("Name").fill("Bob")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Add account").click()
    await expect(page.get_by_role("status")).to_have_text("bob is added, and can log in.")
    await app.sessions.log_in("bob", PASSWORD)

    await page.get_by_role("button", name="Role …").click()
    await page.get_by_role("combobox").select_option("operator")
    await page.get_by_role("button", name="Set role").click()
    await expect(page.get_by_role("status")).to_contain_text("The role is operator now")
    assert (await app.accounts.get("bob")).role == "operator"
    assert await app.sessions.list("bob") == []

    await page.get_by_role("button", name="Disable").click()
    await expect(page.get_by_role("button", name="Enable")).to_be_visible()
    assert (await app.accounts.get("bob")).disabled_by == "local"

    await page.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("status")).to_have_text("The account bob is deleted.")
    assert await app.accounts.list() == []


async def test_the_last_admin_cannot_be_disabled(app: Duetime, page: Page) -> None:
    await app.accounts.add("ann", role="admin", password=PASSWORD)
    page.on("dialog", lambda dialog: dialog.accept())
    await page.goto("/settings/accounts/ann")

    async with page.expect_response(lambda answer: answer.status == 409):
        await page.get_by_role("button", name="Disable").click()

    await expect(page.get_by_role("heading", name="Last admin")).to_be_visible()
    assert (await app.accounts.get("ann")).disabled_at is None


async def test_a_viewer_sees_no_settings_but_changes_their_password(
    app: Duetime, service: Running, browser: Browser
) -> None:
    await app.accounts.add("vic", role="viewer", password=PASSWORD)
    elsewhere = await app.sessions.log_in("vic", PASSWORD)
    context = await browser.new_context(base_url=service.url)
    page = await context.new_page()
    await log_in(page, "vic", PASSWORD)
    await expect(page.get_by_role("link", name="Settings")).to_have_count(0)
    for path in ("/settings", "/settings/tokens", "/settings/accounts", "/settings/accounts/vic"):
        answer = await page.goto(path)
        assert answer is not None
        assert answer.status == 403

    await page.goto("/account")
    await page.get_by_label("Old password").fill("a wrong password")
    await page.get_by_label("New password, at").fill(OTHER_PASSWORD)
    await page.get_by_label("New password again").fill(OTHER_PASSWORD)
    async with page.expect_response(lambda answer: answer.status == 401):
        await page.get_by_role("button", name="Change password").click()
    assert await app.accounts.check_password("vic", PASSWORD) is not None

    await page.goto("/account")
    await page.get_by_label("Old password").fill(PASSWORD)
    await page.get_by_label("New password, at").fill(OTHER_PASSWORD)
    await page.get_by_label("New password again").fill(OTHER_PASSWORD)
    await page.get_by_role("button", name="Change password").click()
    await expect(page.get_by_text("this one")).to_be_visible()
    assert await app.accounts.check_password("vic", OTHER_PASSWORD) is not None
    assert await app.sessions.check(elsewhere.text) is None

    page.on("dialog", lambda dialog: dialog.accept())
    await page.get_by_role("button", name="Log out everywhere").click()
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert await app.sessions.list("vic") == []
    await context.close()
