"""What axe finds on a page, and what only a layout shows: a page wider than its screen."""

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def faults(page: Page) -> list[str]:
    """One line for each element that a person could not use, or only with trouble."""
    found = await Axe().run(page)
    lines = [
        f"{violation['impact']} {violation['id']}: {node['target']}: {node['failureSummary']}"
        for violation in found.response["violations"]
        for node in violation["nodes"]
    ]
    if excess := await page.evaluate(TOO_WIDE):
        lines.append(f"{excess} px wider than the screen")
    return lines
