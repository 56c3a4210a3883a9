"""The page of usage: lines by project, user and job, over the time that is chosen."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.web.world import TalkingRack, scattered

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_usage_by_project_user_and_job(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(scattered("red", 4), "ann")
    await rack.desks.jobs.submit(scattered("blue", 2), "<b>bob</b>")
    await rack.state("red", "running")
    await rack.state("blue", "running")
    await rack.desks.jobs.cancel("blue")
    await page.goto(f"{url}/#/usage")
    rows = page.locator("table[aria-label=Usage] tbody tr")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Usage")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("default")
    await expect(rows).to_contain_text("100 %")
    await expect(page.locator(".stat", has_text="Jobs")).to_contain_text("2")

    by, over = (page.get_by_role("group", name=name) for name in ("By", "Over the last"))
    await by.get_by_role("button", name="Users").click()
    await expect(rows).to_have_count(2)
    await expect(rows.filter(has_text="ann")).to_be_visible()
    await expect(rows.filter(has_text="<b>bob</b>")).to_be_visible()

    await by.get_by_role("button", name="Jobs").click()
    await expect(rows.get_by_role("link", name="red")).to_be_visible()
    await expect(rows.filter(has_text="blue")).to_contain_text("default, <b>bob</b>")

    await over.get_by_role("button", name="30 d").click()
    await expect(over.get_by_role("button", name="30 d")).to_have_attribute("aria-pressed", "true")
    await expect(rows).to_have_count(2)
    await page.get_by_label("Filter usage").fill("ann")
    await expect(rows).to_have_count(1)


async def test_a_time_without_usage_says_so(page: Page, url: str, rack: TalkingRack) -> None:
    await page.goto(f"{url}/#/usage")
    await expect(page.locator("table[aria-label=Usage]")).to_contain_text("no endpoint was held")
