"""Ten thousand runs, five hundred nodes, names of two hundred characters."""

import time

import pytest
from playwright.async_api import Browser, Page

from flowfabric import Fabric
from flowfabric.core.execution.submission import Submission
from flowfabric.store.sqlite import lists
from tests.dashboard.accessibility import faults
from tests.dashboard.conftest import Visitor
from tests.dashboard.site import IDLE, LONG, Site


async def test_ten_thousand_runs(site: Site, visitor: Visitor) -> None:
    await site.engine.executions.submit_many(
        Submission(kind="crowd", lane=IDLE, payload=b"{}") for _ in range(10_000)
    )
    page = await visitor.go("executions?kind=crowd")
    assert await page.locator("tbody tr").count() == 50
    first = await page.locator("td.name a").first.get_attribute("href")
    await page.get_by_role("link", name="Next page").click()
    await page.locator(f"td.name a[href='{first}']").wait_for(state="detached")
    await page.get_by_role("link", name="First page").wait_for()
    await page.get_by_label("Select crowd").first.check()
    await page.get_by_role("button", name="Select all that match").click()
    await page.get_by_text("1,000 runs selected").first.wait_for()
    await page.get_by_role("button", name="Clear").click()
    await visitor.go("")
    tile = page.locator("a.tile", has_text="waiting").locator("b")
    assert int((await tile.inner_text()).replace(",", "")) >= 10_000


async def test_a_match_behind_many_newer_runs_is_found(
    site: Site, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server looks at so many runs for a request; the page goes on where it stopped."""
    monkeypatch.setattr(lists, "MAX_EXAMINED", 100)
    await site.engine.executions.submit(Submission(kind="lonely", lane=IDLE, payload=b"{}"))
    await _submit(site, "newer", 950)
    page = await visitor.go("executions?kind=lonely")
    assert await page.locator("tbody tr").count() == 1
    await _submit(site, "newer", 100)
    await visitor.go("executions")
    await visitor.go("executions?kind=lonely")
    await page.get_by_text("No run matches so far").wait_for()
    await page.get_by_role("link", name="Search older runs").click()
    await page.locator("tbody tr", has_text="lonely").wait_for()


async def _submit(site: Site, kind: str, count: int) -> None:
    await site.engine.executions.submit_many(
        Submission(kind=kind, lane=IDLE, payload=b"{}") for _ in range(count)
    )


async def test_five_hundred_nodes(site: Site, visitor: Visitor) -> None:
    flow = await wide_flow(site.fabric, 498)
    began = time.monotonic()
    page = await visitor.go(f"flows/{flow}")
    await page.locator(".graph .node").nth(499).wait_for()
    assert time.monotonic() - began < 20, "it does not take longer with the square of the nodes"
    await page.locator(".graph svg").focus()
    before = await page.locator(".graph svg").get_attribute("viewBox")
    await page.keyboard.press("+")
    await page.keyboard.press("ArrowRight")
    assert await page.locator(".graph svg").get_attribute("viewBox") != before
    assert await _overlapping(page) == 0


async def _overlapping(page: Page) -> int:
    """How many nodes cover another one."""
    return int(
        await page.evaluate("""() => {
            const boxes = [...document.querySelectorAll('.graph .node rect.box')]
                .map((each) => each.getBoundingClientRect());
            const hits = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
                && a.top < b.bottom - 1 && b.top < a.bottom - 1;
            return boxes.filter((a, n) => boxes.some((b, m) => m > n && hits(a, b))).length;
        }""")
    )


async def wide_flow(fabric: Fabric, width: int) -> str:
    task = fabric.get_task("wait")
    async with fabric.flow("wide") as flow:
        first = flow.add(task, 0, name="begin")
        middle = [flow.add(task, n, name=f"part {n}", after=first) for n in range(width)]
        flow.add(task, 0, name="end", after=middle)
    return str(flow.id)


async def test_long_names_do_not_break_the_layout(
    site: Site, browser: Browser, visitor: Visitor
) -> None:
    lane = "lane-" + "x" * 59
    await site.engine.executions.submit(Submission(kind=LONG, lane=lane, payload=b"{}"))
    await site.engine.lanes.pause(lane, by="ada", reason=LONG)
    for path in ("", f"executions?kind={LONG}", "lanes"):
        page = await visitor.go(path)
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await faults(page) == []
    await visitor.go(f"executions?kind={LONG}")
    await page.locator("td.name a").first.click()
    await page.get_by_role("heading", name=LONG).wait_for()
    assert await faults(page) == []
