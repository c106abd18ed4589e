"""What operators do in the dashboard, and that it is seen at once."""

from playwright.async_api import Page

from flowfabric.core.limit.lane import LaneState
from tests.dashboard.conftest import Visitor
from tests.dashboard.site import IDLE, Site


async def test_cancel_and_replay_a_run(site: Site, visitor: Visitor) -> None:
    run = await site.fabric.get_task("wait").submit(1)
    page = await visitor.go(f"executions/{run.id}")
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_label("Reason").fill("not needed")
    await page.get_by_role("button", name="Cancel the run").click()
    await page.locator(".head .badge", has_text="cancelled").wait_for()
    await page.get_by_text("not needed").first.wait_for()
    assert await site.engine.views.state(run.id) == "cancelled"
    await page.get_by_role("button", name="Replay…").click()
    await page.get_by_role("button", name="Replay", exact=True).click()
    await page.locator(".head .badge", has_text="waiting").wait_for()


async def test_cancel_and_replay_many_runs(site: Site, visitor: Visitor) -> None:
    task = site.fabric.get_task("wait").with_options(tags={"test.bulk": "1"})
    runs = await task.submit_many([(number,) for number in range(3)])
    page = await visitor.go("executions?tag=test.bulk%3D1")
    await page.get_by_label("Select all on this page").check()
    await page.get_by_text("3 runs selected").first.wait_for()
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("button", name="Cancel 3 runs").click()
    await page.get_by_text("3 runs cancelled").wait_for()
    states = [await site.engine.views.state(run.id) for run in runs]
    assert states == ["cancelled"] * 3
    await page.locator("tbody .badge", has_text="cancelled").nth(2).wait_for()
    await page.get_by_label("Select wait").first.check()
    await page.get_by_role("button", name="Replay…").click()
    await page.get_by_role("button", name="Replay 1 run").click()
    await page.locator("tbody .badge", has_text="waiting").wait_for()


async def test_change_the_priority_of_a_run_that_waits(site: Site, visitor: Visitor) -> None:
    run = await site.fabric.get_task("wait").submit(1)
    page = await visitor.go(f"executions/{run.id}")
    await page.get_by_role("button", name="Priority…").click()
    await page.get_by_label("Priority", exact=True).fill("7")
    await page.get_by_role("button", name="Change", exact=True).click()
    await page.get_by_text("Priority changed").wait_for()
    found = await site.engine.views.info(run.id)
    assert found is not None
    assert found.priority == 7


async def test_nothing_happens_to_many_runs_without_a_confirmation(
    site: Site, visitor: Visitor
) -> None:
    run = await site.fabric.get_task("wait").with_options(tags={"test.no": "1"}).submit(1)
    page = await visitor.go("executions?tag=test.no%3D1")
    await page.get_by_label("Select wait").check()
    await page.get_by_role("button", name="Cancel…").click()
    await page.keyboard.press("Escape")
    assert await page.get_by_role("dialog").count() == 0
    assert await site.engine.views.state(run.id) == "waiting"


async def test_approve_in_the_inbox(site: Site, visitor: Visitor) -> None:
    run = await site.fabric.get_task("deploy").submit("test-approve")
    page = await visitor.go("inbox")
    item = page.locator(".item", has_text="test-approve")
    await item.get_by_role("button", name="Approve").click()
    await page.get_by_label("Comment").fill("go on")
    await page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    assert await run.result(timeout=60) == "released"
    await item.wait_for(state="detached")


async def test_reject_at_the_run(site: Site, visitor: Visitor) -> None:
    run = await site.fabric.get_task("deploy").submit("test-reject")
    page = await visitor.go(f"executions/{run.id}")
    await page.get_by_role("button", name="Reject").click()
    await page.get_by_role("dialog").get_by_role("button", name="Reject").click()
    await page.locator("pre[aria-label=Result]", has_text="held back").wait_for()


async def test_send_a_signal(site: Site, visitor: Visitor) -> None:
    run = await site.fabric.get_task("pay").submit()
    page = await visitor.go(f"executions/{run.id}")
    await page.get_by_role("button", name="Signal…", exact=True).click()
    await page.get_by_label("Name").fill("paid")
    await page.get_by_label("Payload").fill("1999")
    await page.get_by_role("button", name="Send", exact=True).click()
    await page.locator("pre[aria-label=Result]", has_text="1999").wait_for()


async def test_a_payload_that_is_no_json_is_explained(site: Site, visitor: Visitor) -> None:
    run = await site.fabric.get_task("pay").submit()
    page = await visitor.go(f"executions/{run.id}")
    await page.get_by_role("button", name="Signal…", exact=True).click()
    await page.get_by_label("Name").fill("paid")
    await page.get_by_label("Payload").fill("{oops")
    await page.get_by_role("button", name="Send", exact=True).click()
    await page.get_by_text("The payload is not JSON").wait_for()


async def test_pause_drain_and_resume_a_lane(site: Site, visitor: Visitor) -> None:
    await site.fabric.get_task("wait").submit(1)
    page = await visitor.go("lanes")
    row = page.locator("tr", has_text=IDLE)
    await _in_lane(page, f"Pause {IDLE}", "Pause", "the bank is down")
    await row.get_by_text("paused").wait_for()
    await row.get_by_text("the bank is down").wait_for()
    assert (await site.engine.lanes.get(IDLE)).state is LaneState.PAUSED
    await page.get_by_role("button", name=f"Resume {IDLE}").click()
    await row.get_by_text("open").wait_for()
    await _in_lane(page, f"Drain {IDLE}", "Drain", "")
    await row.get_by_text("draining").wait_for()
    await page.get_by_role("button", name=f"Resume {IDLE}").click()
    await row.get_by_text("open").wait_for()


async def _in_lane(page: Page, button: str, confirm: str, reason: str) -> None:
    await page.get_by_role("button", name=button).click()
    await page.get_by_label("Reason").fill(reason)
    await page.get_by_role("dialog").get_by_role("button", name=confirm).click()


async def test_pause_a_schedule_and_run_it_now(site: Site, visitor: Visitor) -> None:
    page = await visitor.go("schedules")
    await page.get_by_role("button", name="Pause tidy").click()
    await page.get_by_role("button", name="Resume tidy").click()
    await page.get_by_role("button", name="Pause tidy").wait_for()
    await page.get_by_role("button", name="Run tidy now").click()
    await page.get_by_role("dialog").get_by_role("button", name="Run now").click()
    await page.get_by_text("A run was submitted").wait_for()


async def test_what_happens_elsewhere_is_seen_without_a_reload(
    site: Site, visitor: Visitor
) -> None:
    page = await visitor.go("executions?tag=test.live%3D1")
    await page.get_by_text("No run matches").wait_for()
    task = site.fabric.get_task("deploy").with_options(tags={"test.live": "1"})
    run = await task.submit("live")
    await page.locator("tbody .badge", has_text="suspended").wait_for()
    await site.fabric.approve(run, approver="ada")
    await page.locator("tbody .badge", has_text="completed").wait_for()


async def test_the_overview_keeps_counting(site: Site, visitor: Visitor) -> None:
    page = await visitor.go("")
    tile = page.locator("a.tile", has_text="waiting").locator("b")
    before = int((await tile.inner_text()).replace(",", ""))
    await site.fabric.get_task("wait").submit(1)
    await page.locator("a.tile b", has_text=f"{before + 1:,}").first.wait_for()


async def test_keyboard_alone_is_enough(site: Site, visitor: Visitor) -> None:
    run = await site.fabric.get_task("wait").with_options(tags={"test.keys": "1"}).submit(1)
    page = await visitor.go("executions?tag=test.keys%3D1")
    await page.keyboard.press("Tab")
    assert await _focused(page) == "Skip to content"
    await page.keyboard.press("Enter")
    await _tab_to(page, "wait")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/executions/{run.id}")
    await page.get_by_role("button", name="Cancel…").wait_for()
    await _tab_to(page, "Cancel…")
    await page.keyboard.press("Enter")
    assert await page.get_by_label("Reason").evaluate("each => each === document.activeElement")
    await page.keyboard.press("Enter")
    await page.locator(".head .badge", has_text="cancelled").wait_for()


async def _focused(page: Page) -> str:
    return str(await page.evaluate("document.activeElement.innerText.trim()"))


async def _tab_to(page: Page, text: str) -> None:
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await _focused(page) == text:
            return
    raise AssertionError(f"{text} is not reached by the Tab key")


async def test_a_lost_connection_is_said_and_found_again(site: Site, visitor: Visitor) -> None:
    page = await visitor.go("executions")
    await site.stop()
    try:
        await page.get_by_text("The connection to the server is lost").wait_for()
        await page.get_by_role("button", name="Try now").click()
        await page.locator("#live", has_text="not connected").wait_for()
    finally:
        await site.start()
    await page.locator("#banner").wait_for(state="hidden")
    await page.locator("#live", has_text="live").wait_for()
    visitor.complaints = [each for each in visitor.complaints if "Failed to load" not in each]
