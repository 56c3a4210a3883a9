"""One browser for all tests; each has a controller, a console and a page without script errors."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.web.world import TalkingRack, served

CHROMIUM = shutil.which("chromium") or f"{sys.prefix}/bin/chromium"
expect.set_options(timeout=30_000)
"""A busy machine is slow."""
LAUNCH_LIMIT_MS = 120_000
"""The first start reads some hundred megabytes from a disk that other processes use."""
NO_RECHECK = """{
  const every = window.setInterval;
  window.setInterval = (f, ms, ...more) => (ms === 15000 ? 0 : every(f, ms, ...more));
}"""
"""The page looks for missed changes every 15 s, which would hide that it missed one."""
NOTICES_STAY = """{
  const later = window.setTimeout;
  window.setTimeout = (f, ms, ...more) => (ms === 6000 ? 0 : later(f, ms, ...more));
}"""
"""A notice disappears after 6 s, which may be before the test looks."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu"],
            timeout=LAUNCH_LIMIT_MS,
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def rack(tmp_path: Path) -> AsyncIterator[TalkingRack]:
    rack = TalkingRack(tmp_path)
    await rack.up()
    yield rack
    await rack.down()


@pytest_asyncio.fixture(loop_scope="session")
async def url(rack: TalkingRack, context: BrowserContext) -> AsyncIterator[str]:
    """The console of a controller without authentication."""
    async with served(rack) as url:
        yield url
        for page in context.pages:  # a route that asks the controller would find none any more
            await page.unroute_all(behavior="ignoreErrors")


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(30_000)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    """A page on which script errors and violations of the content policy fail the test."""
    page = await context.new_page()
    await page.add_init_script(NO_RECHECK)
    await page.add_init_script(NOTICES_STAY)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            errors.append(message.text)
            if message.type == "error" and "Failed to load resource" not in message.text
            else None
        ),
    )
    yield page
    assert not errors
