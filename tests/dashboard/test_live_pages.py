"""A page that changes while people use it: nothing is taken out of their hands."""

import asyncio

import pytest
from playwright.async_api import Browser, Page, Request, Route

from tests.dashboard.accessibility import faults
from tests.dashboard.conftest import Visitor
from tests.dashboard.site import Site


async def _news(site: Site, page: Page, path: str) -> None:
    """Something changes that is about no run, and the page reads again."""
    async with page.expect_response(lambda answer: path in answer.url):
        await site.engine.lanes.pause("closed", by="ada", reason="test")
    await page.wait_for_function("document.querySelector('#main h1') !== null")


async def test_an_open_traceback_stays_open(site: Site, visitor: Visitor) -> None:
    run = await site.fabric.get_task("break").submit(1)
    page = await visitor.go(f"executions/{run.id}")
    await page.get_by_text("Traceback", exact=True).click()
    trace = await page.locator("details[open] pre").element_handle()
    await _news(site, page, "/describe")
    await _news(site, page, "/describe")
    assert await trace.evaluate("each => each.isConnected && each.parentElement.open")


async def test_the_focus_stays_on_its_row_when_rows_come(site: Site, visitor: Visitor) -> None:
    task = site.fabric.get_task("wait").with_options(tags={"test.rows": "1"})
    first = await task.submit(1)
    page = await visitor.go("executions?tag=test.rows%3D1")
    link = page.locator("td.name a").first
    await link.focus()
    held = await link.element_handle()
    await task.submit(2)
    await page.locator("tbody tr").nth(1).wait_for()
    assert await held.evaluate("each => each === document.activeElement")
    assert await page.evaluate("document.activeElement.hash") == f"#/executions/{first.id}"


async def test_a_page_reads_once_more_after_the_last_news(site: Site, visitor: Visitor) -> None:
    """After news it allows an answer that others have got; that one may be older than the news."""
    page, told = visitor.page, asyncio.Event()
    asked: list[str] = []

    async def tell_once(route: Route) -> None:
        if told.is_set():
            return  # it stays without an answer
        told.set()
        news = 'event: changed\ndata: {"executions": [], "complete": false}\n\n'
        await route.fulfill(status=200, content_type="text/event-stream", body=news)

    def note(request: Request) -> None:
        if "/v1/lanes" in request.url:
            asked.append(request.headers.get("cache-control", "now"))

    await page.route("**/v1/changes/stream*", tell_once)
    page.on("request", note)
    await visitor.go("lanes")
    async with asyncio.timeout(60):
        while not any(each.startswith("max-age") for each in asked[:-1]):
            await page.wait_for_event("request", lambda request: "/v1/lanes" in request.url)
    assert asked[0] == asked[-1] == "now"


async def test_an_older_answer_is_not_shown_after_a_newer_one(site: Site, visitor: Visitor) -> None:
    """A read that was under way when a person acted ends before the page reads again."""
    run = await site.fabric.get_task("wait").submit(1)
    page, held, go_on = await visitor.go(f"executions/{run.id}"), asyncio.Event(), asyncio.Event()

    async def hold_up(route: Route) -> None:
        answer = await route.fetch()
        held.set()
        await go_on.wait()
        await route.fulfill(response=answer)

    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.route("**/describe*", hold_up, times=1)
    await site.engine.lanes.pause("closed", by="ada", reason="test")
    async with asyncio.timeout(30):
        await held.wait()
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("button", name="Cancel the run").click()
    await page.get_by_text("Cancelled", exact=True).first.wait_for()
    assert sum("/describe" in url for url in asked) == 1
    go_on.set()
    await page.locator(".head .badge", has_text="cancelled").wait_for()


async def test_a_page_comes_back_after_an_error(site: Site, visitor: Visitor) -> None:
    page = await visitor.go("lanes")

    async def fail(route: Route) -> None:
        await route.fulfill(status=503, json={"error": "store unavailable", "code": "unavailable"})

    await page.route("**/v1/lanes?*", fail)
    await _news(site, page, "/v1/lanes")
    await page.get_by_role("heading", name="This could not be read").wait_for()
    await page.get_by_text("store unavailable").wait_for()
    await page.unroute("**/v1/lanes?*")
    await site.engine.lanes.pause("closed", by="ada", reason="again")
    await page.get_by_role("heading", name="Lanes").wait_for()
    visitor.complaints = [each for each in visitor.complaints if "Failed to load" not in each]


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("executions/00000000-0000-7000-8000-000000000000", "There is no such run"),
        ("executions/mistyped", "There is no such run"),
        ("flows/00000000-0000-7000-8000-000000000000", "There is no such flow"),
        ("flows/mistyped", "There is no such flow"),
        ("nothing", "There is no such page"),
    ],
)
async def test_an_address_that_leads_nowhere_says_so(
    path: str, title: str, visitor: Visitor
) -> None:
    page = await visitor.go(path)
    await page.get_by_role("heading", name=title).wait_for()
    assert await faults(page) == []
    visitor.complaints = [each for each in visitor.complaints if "Failed to load" not in each]


async def test_cancel_a_flow(site: Site, visitor: Visitor) -> None:
    task = site.fabric.get_task("wait")
    async with site.fabric.flow("to cancel") as flow:
        flow.add(task, 2, after=flow.add(task, 1))
    page = await visitor.go(f"flows/{flow.id}")
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_label("Reason").fill("not tonight")
    await page.get_by_role("button", name="Cancel the flow").click()
    await page.locator(".head .badge", has_text="cancelled").wait_for()
    await page.locator("tbody .badge", has_text="cancelled").nth(1).wait_for()


async def test_times_name_their_zone(site: Site, browser: Browser) -> None:
    run = await site.fabric.get_task("wait").submit(1)
    context = await browser.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    page = await Visitor(await context.new_page(), site).go(f"executions/{run.id}")
    title = await page.locator("dd time").first.get_attribute("title")
    await context.close()
    assert title is not None
    assert title.endswith(("GMT+9", "JST"))


async def test_on_a_phone_the_current_page_is_seen_in_the_menu(
    browser: Browser, site: Site
) -> None:
    context = await browser.new_context(viewport={"width": 390, "height": 800})
    page = await Visitor(await context.new_page(), site).go("limits")
    box = await page.locator("nav a[aria-current]").bounding_box()
    await context.close()
    assert box is not None
    assert 0 <= box["x"] <= 390 - box["width"]


async def test_nothing_moves_for_those_who_want_no_motion(visitor: Visitor) -> None:
    page = await visitor.go("")
    await page.locator("#live[data-state=live]").wait_for()
    moving = "getComputedStyle(document.querySelector('#live'), '::before').animationName"
    assert await page.evaluate(moving) == "pulse"
    await page.emulate_media(reduced_motion="reduce")
    assert await page.evaluate(moving) == "none"
