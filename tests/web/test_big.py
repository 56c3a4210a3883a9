"""A big site: collapsed at first, opened by tile, and lists that do not fill the document."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from benchmarks.console_service import synthetic_console
from tests.web.world import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

SIZE = 1024


async def test_collapsed_opened_and_listed(page: Page) -> None:
    async with synthetic_console(SIZE) as url:
        await page.goto(url)
        drawn = "lightloom.view.scene.cy.nodes('%s').length"
        await expect(page.locator(".status")).to_contain_text("live")
        assert await page.evaluate(drawn % ".tile") == SIZE // 32 + 4
        assert await page.evaluate(drawn % ".endpoint") == 0

        await page.locator("#search").fill("as7")
        await page.locator("#search").press("Enter")
        await expect(page.locator(".drawer")).to_contain_text("32 of 34 in use")
        assert await page.evaluate("lightloom.view.scene.cy.edges('.light').length") == 16
        await page.locator(".canvas").press("Enter")
        await expect(page.locator(".banner")).to_contain_text("aggregator/as7")
        await until(page, f"{drawn % '.endpoint'} === 32")

        await page.goto(f"{url}/#/objects/endpoints")
        await expect(page.locator(".toolbar")).to_contain_text(str(SIZE))
        rows = page.locator(".rows tbody tr:not(.gap)")
        assert await rows.count() < 100
        await page.locator(".scroll").evaluate("(box) => box.scrollTo(0, box.scrollHeight)")
        await expect(rows.last.locator("td").first).to_have_text(f"gpu{SIZE - 1}")
        await page.get_by_label("Filter endpoints").fill("as31 idle")
        await expect(page.locator(".toolbar")).to_contain_text(f"of {SIZE}")
