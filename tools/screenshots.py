"""Takes the pictures of the documentation: the sample application in a real browser.

    python tools/screenshots.py --seconds 75

Needs Chromium; the files are docs/images/*.png.
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PORT = 9791
ADDRESS = f"http://127.0.0.1:{PORT}/"
PICTURES = {
    "overview": ("", "", "light", 1200),
    "overview-dark": ("", "", "dark", 1200),
    "runs": ("executions", "", "light", 1200),
    "run": ("executions?kind=fulfil_order&state=completed", "td.name a", "light", 1200),
    "flow": ("flows", "td.name a", "light", 1200),
    "inbox": ("inbox", "", "light", 1200),
    "lanes": ("lanes", "", "light", 1200),
    "limits": ("limits", "", "light", 1200),
    "phone": ("executions", "", "dark", 390),
}
"""Of each picture: the page, what is clicked there, the colours, and the width."""


async def take(browser: Browser, name: str) -> None:
    path, click, scheme, width = PICTURES[name]
    context = await browser.new_context(
        viewport={"width": width, "height": 820},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page: Page = await context.new_page()
    await page.goto(f"{ADDRESS}#/{path}")
    await page.get_by_text("Loading…").wait_for(state="detached")
    if click:
        await page.locator(click).first.click()
        await page.locator(".card").first.wait_for()
    await page.wait_for_timeout(1_200)
    await page.screenshot(path=IMAGES / f"{name}.png")
    await context.close()


async def main(seconds: float) -> None:
    found = os.environ.get("FLOWFABRIC_BROWSER") or shutil.which("chromium")
    if found is None:
        sys.exit("no chromium: install it, or set FLOWFABRIC_BROWSER")
    IMAGES.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "flowfabric.cli", "demo", "--serve", "--port", str(PORT)]
    sample = subprocess.Popen(command)  # noqa: ASYNC220 - it runs beside
    try:
        await asyncio.sleep(seconds)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
            for name in PICTURES:
                await take(browser, name)
            await browser.close()
    finally:
        sample.send_signal(signal.SIGTERM)
        sample.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=75.0, help="how long it runs first")
    asyncio.run(main(parser.parse_args().seconds))
