"""The screens of flows, in a real browser."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from duetime import Duetime, Exponential, Flow
from tests.waiting import until
from tests.web.browser.conftest import check_looks


async def double(number: int) -> int:
    return 2 * number


async def test_a_graph_is_drawn_and_its_steps_are_listed(app: Duetime, page: Page) -> None:
    graph = app.graph("onboard")

    @graph.step
    async def fetch(number: int) -> int:
        return number

    @graph.step
    async def store(fetch: int) -> int:
        return fetch + 1

    async with app.worker():
        run = await graph.start(number=1)
        await run.result()

    await page.goto(f"/flows/{run.id}")
    drawn = page.locator("#graph svg")
    await expect(drawn.get_by_text("fetch", exact=True)).to_be_visible()
    assert await drawn.locator("path.edge").count() == 1
    await expect(page.get_by_role("cell", name="store step")).to_be_visible()
    for path in ("/flows", f"/flows/{run.id}"):
        await check_looks(page, path)


async def test_send_the_signal_that_a_run_waits_for(app: Duetime, page: Page) -> None:
    @app.flow
    async def order(flow: Flow, number: int) -> bool:
        await flow.step(double, number)
        return bool(await flow.wait_for("approved"))

    async with app.worker():
        run = await order.start(number=7)
        await until(lambda: is_in(app, run.id, "waiting"))
        await page.goto(f"/flows/{run.id}")

        await page.get_by_role("button", name="Send a signal").click()
        await expect(page.get_by_label("Name")).to_have_value("approved")
        await page.get_by_label("Data").fill("true")
        await page.get_by_role("button", name="Send", exact=True).click()

        assert await run.result() is True
        await expect(page.get_by_text("completed").first).to_be_visible()


async def test_retry_a_run_from_the_step_that_failed(app: Duetime, page: Page) -> None:
    broken = [True]

    async def ship(number: int) -> int:
        if broken:
            raise RuntimeError("printer is <b>on fire</b>")
        return number

    @app.flow(retry=Exponential("1s", max_attempts=1))
    async def order(flow: Flow, number: int) -> int:
        await flow.step(double, number)
        return await flow.step(ship, number)

    async with app.worker():
        run = await order.start(number=7)
        with pytest.raises(Exception, match="on fire"):
            await run.result()
        await page.goto(f"/flows/{run.id}")
        await expect(page.get_by_text("printer is <b>on fire</b>").first).to_be_visible()

        broken.clear()
        await page.get_by_role("button", name="Retry from the failed step").click()

        assert await run.result() == 7
    event = (await app.flows.audit(run.id))[0]
    assert event.actor == "local"


async def is_in(app: Duetime, run_id: int, state: str) -> bool:
    return await app.flows.status(run_id) == state
