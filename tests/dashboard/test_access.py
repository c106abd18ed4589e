"""Tokens: the page asks for one, keeps it out of the address, and offers what it allows."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser

from flowfabric.core.access.token import AccessScope
from tests.dashboard.accessibility import faults
from tests.dashboard.conftest import Visitor
from tests.dashboard.site import Site, open_site


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def guarded(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    async with open_site(tmp_path_factory.mktemp("guarded"), is_open=False) as site:
        await site.fabric.get_task("wait").submit(1)
        await site.fabric.get_task("deploy").submit("1.0")
        yield site


async def test_without_a_token_the_page_asks_for_one(guarded: Site, browser: Browser) -> None:
    context = await browser.new_context()
    visitor = Visitor(await context.new_page(), guarded)
    page = await visitor.go("lanes")
    await page.get_by_role("heading", name="Access token").wait_for()
    assert await faults(page) == []
    await page.get_by_label("Token").fill("ff_wrong_" + "x" * 43)
    await page.keyboard.press("Enter")
    await page.get_by_text("This token is not valid").wait_for()
    secret = await guarded.token("operator", AccessScope.OPERATE, AccessScope.SIGNAL)
    await page.get_by_label("Token").fill(secret)
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Pause idle").wait_for()
    assert secret not in page.url
    assert await page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
    await page.locator("#who", has_text="operator").wait_for()
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_role("heading", name="Access token").wait_for()
    await context.close()


async def test_a_read_token_sees_no_buttons_and_the_server_refuses_anyway(
    guarded: Site, browser: Browser
) -> None:
    secret = await guarded.token("reader", AccessScope.READ)
    context = await browser.new_context()
    await context.add_init_script(f"sessionStorage.setItem('flowfabric.token', {secret!r})")
    visitor = Visitor(await context.new_page(), guarded)
    runs = await guarded.engine.flow_views.page()
    assert runs == []
    for path in ("executions", "lanes", "schedules", "inbox"):
        page = await visitor.go(path)
        buttons = [text.strip() for text in await page.locator("main button").all_inner_texts()]
        assert set(buttons) <= {"Filter"}
        assert await page.locator("main input[type=checkbox][aria-label]").count() == 0
    page = await visitor.go("executions?state=suspended")
    await page.locator("td.name a").first.click()
    await page.get_by_role("heading", name="deploy").wait_for()
    assert await page.get_by_role("button", name="Approve").count() == 0
    await context.close()
    assert visitor.complaints == []
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {secret}"}) as client:
        answer = await client.post(f"{guarded.url}v1/lanes/idle/pause", json={})
    assert answer.status_code == 403
