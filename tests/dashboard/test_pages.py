"""Every page with real data, wide and light, narrow and dark: it can be read, and used by all."""

from uuid import UUID

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from flowfabric import Fabric
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.submission import Submission
from flowfabric.core.execution.webhook import KIND
from tests.dashboard.accessibility import faults
from tests.dashboard.conftest import Visitor
from tests.dashboard.site import IDLE, LONG, Site

WEBHOOKS_ONLY = Presence(worker="webhooks", instance="server-1", kinds=(KIND,))
PAGES = ["", "executions", "flows", "inbox", "schedules", "lanes", "workers", "limits", "run",
         "flow", "failed", "nothing"]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def addresses(site: Site) -> dict[str, str]:
    """The addresses of the pages; those of a run and a flow have an id in them."""
    fabric = site.fabric
    calls = {"greet": ("world",), "break": (7,), "deploy": ("1.2",), "pay": (), "wait": ()}
    runs = {name: await fabric.get_task(name).submit(*args) for name, args in calls.items()}
    await runs["greet"].result()
    await fabric.get_task("greet").submit(LONG)
    flow = await diamond(fabric)
    await site.engine.flow_views.wait(flow, 10)
    while len(await site.engine.suspensions.suspended()) < 2:
        await site.engine.events.read(limit=1)
    return {
        "run": f"executions/{runs['greet'].id}",
        "failed": f"executions/{runs['break'].id}",
        "flow": f"flows/{flow}",
        "nothing": "executions?kind=no-such-task",
    }


async def diamond(fabric: Fabric) -> UUID:
    add = fabric.get_task("add")
    async with fabric.flow("diamond") as flow:
        first = flow.add(add, [1], name="first")
        sides = [flow.add(add, [first.output], name=name) for name in ("left", LONG[:100])]
        flow.add(add, [side.output for side in sides], name="last")
    return flow.id


@pytest.mark.parametrize("name", PAGES)
async def test_every_page_can_be_read_and_used(
    name: str, addresses: dict[str, str], visitor: Visitor
) -> None:
    page = await visitor.go(addresses.get(name, name))
    assert await faults(page) == []
    await page.emulate_media(color_scheme="dark")
    await page.set_viewport_size({"width": 390, "height": 800})
    assert await faults(page) == []


async def test_an_empty_server_says_what_to_do_next(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.dashboard.site import open_site

    async with open_site(tmp_path_factory.mktemp("empty"), work=False) as site:
        await site.engine.workers.register(WEBHOOKS_ONLY)  # as every server does
        context = await browser.new_context(viewport={"width": 390, "height": 800})
        visitor = Visitor(await context.new_page(), site)
        expected = {
            "": "flowfabric demo --serve", "executions": "No runs yet", "flows": "No flows yet",
            "inbox": "Nothing to decide", "lanes": "No lanes yet",
            "workers": "flowfabric worker app.module:fabric",
        }  # fmt: skip
        for path, text in expected.items():
            page = await visitor.go(path)
            await page.get_by_text(text).first.wait_for()
            assert await faults(page) == []
        await context.close()
        assert visitor.complaints == []


async def test_filters_are_in_the_address(addresses: dict[str, str], visitor: Visitor) -> None:
    page = await visitor.go("executions")
    await page.get_by_label("failed", exact=True).check()
    await page.wait_for_url("**/#/executions?state=failed")
    await page.get_by_label("Lane").fill(IDLE)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/#/executions?state=failed&lane={IDLE}")
    await page.get_by_text("No run matches").wait_for()
    await page.go_back()
    await page.get_by_role("link", name="break").first.wait_for()


async def test_a_run_shows_its_steps_output_and_result(
    addresses: dict[str, str], visitor: Visitor
) -> None:
    page = await visitor.go(addresses["run"])
    await page.locator("pre[aria-label=Result]", has_text="Hello, world!").wait_for()
    await page.get_by_role("log").get_by_text("greeting world").wait_for()
    await page.locator(".waterfall").get_by_text("attempt 1").wait_for()
    await page.locator(".waterfall").get_by_text("hello").wait_for()
    await page.get_by_role("region", name="Events").get_by_text("completed").wait_for()


async def test_a_failed_run_says_why(addresses: dict[str, str], visitor: Visitor) -> None:
    page = await visitor.go(addresses["failed"])
    await page.get_by_text("part 7 is broken").first.wait_for()
    await page.get_by_text("Traceback", exact=True).click()
    await page.locator("details pre").get_by_text("Fail").first.wait_for()


async def test_a_run_that_does_not_run_says_why(site: Site, visitor: Visitor) -> None:
    run = await site.fabric.get_task("wait").submit(1)
    page = await visitor.go(f"executions/{run.id}")
    await page.get_by_text("Why is it not running?").wait_for()
    await page.locator(".reasons li").first.wait_for()


async def test_an_active_run_that_no_worker_has_says_why(site: Site, visitor: Visitor) -> None:
    submitted = await site.engine.executions.submit(Submission(kind="elsewhere", lane="lost"))
    await site.engine.claims.claim(WorkerIdentity("w", "w-1"), lanes=["lost"])
    await site.engine.claims.revoke(submitted.id, reason="gone")
    page = await visitor.go(f"executions/{submitted.id.uuid}")
    await page.get_by_text("Why is it not running?").wait_for()
    await page.locator(".reasons").get_by_text("w (w-1)").first.wait_for()


async def test_a_graph_is_drawn_with_states_and_zooms(
    addresses: dict[str, str], visitor: Visitor
) -> None:
    page = await visitor.go(addresses["flow"])
    assert await page.locator(".graph .node[data-tone=ok]").count() == 4
    assert await page.locator(".graph .edge[data-done='1']").count() == 4
    assert await page.locator(".graph button").count() == 0, "it would cover a node"
    before = await page.locator(".graph svg").get_attribute("viewBox")
    await page.get_by_role("button", name="Zoom in").click()
    assert await page.locator(".graph svg").get_attribute("viewBox") != before
    await page.get_by_role("button", name="Fit").click()
    assert await page.locator(".graph svg").get_attribute("viewBox") == before
    await page.get_by_role("link", name="first, completed").focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="add", level=1).wait_for()


async def test_on_a_phone_the_names_in_a_graph_can_be_read(
    addresses: dict[str, str], visitor: Visitor
) -> None:
    await visitor.page.set_viewport_size({"width": 390, "height": 800})
    page = await visitor.go(addresses["flow"])
    title = await page.locator(".graph .node text.title").first.bounding_box()
    assert title is not None
    assert title["height"] > 9
