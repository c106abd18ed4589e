"""The pages in a real browser. Without one, a single reason is shown for all of these tests.

Browser and server outlive a test, since starting them takes longer than one. They have an event
loop of their own, and all tests here run one after the other in one process.
"""

import os
import shutil
from collections.abc import AsyncIterator
from itertools import takewhile

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from tests.dashboard.site import Site, open_site
from tests.kit.scheduling import BROWSER_TESTS

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
BROWSER_VARIABLE = "FLOWFABRIC_BROWSER"
KNOWN = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest in one process starts first."""
    items.sort(key=lambda item: not item.nodeid.startswith(BROWSER_TESTS))
    for item in takewhile(lambda item: item.nodeid.startswith(BROWSER_TESTS), items):
        if pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)


@pytest.fixture(autouse=True)
def no_task_outlives_its_test() -> None:
    """Here browser and server do."""


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    path = os.environ.get(BROWSER_VARIABLE) or next(filter(None, map(shutil.which, KNOWN)), None)
    if path is None:
        pytest.skip(
            f"left out: the dashboard in a browser; install chromium or set {BROWSER_VARIABLE}"
        )
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


class Visitor:
    """A page, and everything it did that it must not do."""

    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self.site = site
        self.complaints: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._requested)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console {message.type}: {message.text}")

    def _requested(self, request: object) -> None:
        url = str(getattr(request, "url", ""))
        if not url.startswith((self.site.url, "data:")):
            self.complaints.append(f"request to another host: {url}")

    async def go(self, path: str) -> Page:
        """Opens a page of the dashboard and waits until it has read what it shows."""
        await self.page.goto(f"{self.site.url}#/{path}")
        await self.page.wait_for_selector("#main h1")
        await self.page.get_by_text("Loading…").wait_for(state="detached")
        return self.page


@pytest_asyncio.fixture(loop_scope="package")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(30_000)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="package")
async def visitor(context: BrowserContext, site: Site) -> AsyncIterator[Visitor]:
    """Fails the test if the page had an error, or asked another host for anything."""
    visitor = Visitor(await context.new_page(), site)
    yield visitor
    assert visitor.complaints == []
