"""Each role sees what it may see, and why it may not do the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.web.world import TalkingRack, drag, enter, people, scattered, served

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSED = "your role (%s) does not allow this"


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(rack: TalkingRack, tmp_path: Path) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """A controller with authentication, one job of project vision and one of another project."""
    access, tokens = await people(tmp_path)
    await rack.desks.jobs.submit(scattered("vision-red", 4, "vision"))
    await rack.state("vision-red", "running")
    await rack.desks.jobs.submit(scattered("secret", 2))
    await rack.state("secret", "running")
    async with served(rack, access) as url:
        yield url, tokens
    assert access.accounts is not None
    await access.accounts.close()


async def test_a_wrong_token_opens_nothing(page: Page, guarded: tuple[str, dict[str, str]]) -> None:
    await page.goto(guarded[0])
    await page.get_by_label("Token").fill("ll_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("this token is not valid")
    await expect(page.get_by_role("navigation", name="Views")).to_have_count(0)


@pytest.mark.parametrize("role", ["admin", "operator", "user", "viewer"])
async def test_what_a_role_may(page: Page, guarded: tuple[str, dict[str, str]], role: str) -> None:
    url, tokens = guarded
    keeper = role in ("admin", "operator")
    await enter(page, url, tokens[role])
    await expect(page.locator(".who")).to_have_text(f"some-{role} · {role}")
    assert tokens[role] not in await page.evaluate(
        "document.cookie + JSON.stringify({...localStorage, ...sessionStorage})"
    )

    await page.goto(f"{url}/#/jobs")
    await expect(page.get_by_role("link", name="vision-red")).to_be_visible()
    await expect(page.get_by_role("link", name="secret")).to_have_count(int(keeper))
    submit = page.get_by_role("button", name="Submit a job")
    if role == "viewer":
        await expect(submit).to_be_disabled()
        await expect(submit).to_have_attribute("title", REFUSED % role)
    else:
        await expect(submit).to_be_enabled()

    await page.goto(f"{url}/#/jobs/vision-red")
    cancel = page.get_by_role("button", name="Cancel")
    await (expect(cancel).to_be_disabled() if role == "viewer" else expect(cancel).to_be_enabled())

    await page.goto(f"{url}/#/plan")
    plan = page.get_by_role("button", name="Make a plan")
    await (expect(plan).to_be_enabled() if keeper else expect(plan).to_be_disabled())
    await page.goto(f"{url}/#/events")
    export = page.get_by_role("button", name="CSV")
    await (expect(export).to_be_enabled() if role == "admin" else expect(export).to_be_disabled())

    await page.goto(f"{url}/#/topology")
    await drag(page, "gpu5", "aggregator/as0")
    await expect(page.get_by_role("dialog")).to_have_count(int(keeper))
    await page.keyboard.press("Escape")

    await page.goto(f"{url}/#/switches")
    repair = page.get_by_role("button", name="Repair")
    await (expect(repair).to_be_enabled() if keeper else expect(repair).to_be_disabled())


async def test_a_user_works_by_cookie_and_leaves(
    page: Page, guarded: tuple[str, dict[str, str]], rack: TalkingRack
) -> None:
    url, tokens = guarded
    await enter(page, url, tokens["user"])
    await page.goto(f"{url}/#/jobs/vision-red")
    await page.get_by_role("button", name="Pause").click()
    await rack.state("vision-red", "paused")
    await page.get_by_role("button", name="Resume").click()
    await rack.state("vision-red", "running")
    refused = await page.evaluate(
        "fetch('/api/v1/jobs/vision-red/pause', {method: 'POST'}).then((r) => r.status)"
    )
    assert refused == 403  # by cookie alone, as another site's form would
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Token")).to_be_visible()
    await page.reload()
    await expect(page.get_by_label("Token")).to_be_visible()
