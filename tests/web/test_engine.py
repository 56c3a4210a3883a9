"""The page of another engine: what it says of itself, and of its jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from controller.devices.observed import EngineJob, JobNeeds, Turn
from sitefile import load_site
from sitefile.engine import EnginePolicy
from tests.parts.controller.observed import FakeEngine
from tests.parts.sites import PAPER
from tests.web.world import TalkingRack, enter, people, served

pytestmark = pytest.mark.asyncio(loop_scope="session")

THEIRS = ("gpu0", "gpu1", "gpu2", "gpu3")
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest_asyncio.fixture(loop_scope="session")
async def theirs(tmp_path: Path) -> AsyncIterator[TalkingRack]:
    """A rack four of whose endpoints are Slurm's, which has given two of them to a job."""
    policy = EnginePolicy(
        kind="slurm",
        transport="cli",
        nodes={f"n{e}": (e,) for e in THEIRS},
        topology=Path("/etc/slurm/topology.conf"),
        publish=True,
    )
    made = TalkingRack(tmp_path, replace(load_site(PAPER), engine=policy))
    made.observed = fake = FakeEngine(THEIRS)
    await made.up()
    await fake.set(
        EngineJob(
            key="slurm:7",
            attempt=0,
            revision="",
            turn=Turn.WAITS,
            wants=JobNeeds(count=2, servers=2),
            name=HOSTILE,
            user="ada",
        )
    )
    await fake.allocate("slurm:7", ("gpu0", "gpu2"))
    await made.service.desks.engine.allocated("7")
    yield made
    await made.down()


async def test_the_engine_and_its_jobs_are_shown(page: Page, theirs: TalkingRack) -> None:
    async with served(theirs) as url:
        await page.goto(f"{url}/#/engine")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Engine")
        await expect(page.locator(".facts").first).to_contain_text("slurm")
        rows = page.locator("table[aria-label=Allocations] tbody tr")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("2 endpoints under 1 aggregator")
        await page.get_by_role("button", name="Examine its set-up").click()
        await expect(page.locator("table[aria-label='Set-up'] tbody tr")).to_contain_text("1.0")

        await rows.get_by_role("link", name="slurm-7").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("slurm-7")
        await expect(page.locator(".facts", has_text="job 7")).to_contain_text(HOSTILE)
        await expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
        await expect(page.get_by_role("button", name="Cancel")).to_have_attribute(
            "title", "it belongs to slurm"
        )


async def test_users_and_sites_without_an_engine_have_no_such_page(
    page: Page, theirs: TalkingRack, tmp_path: Path
) -> None:
    views = page.get_by_role("navigation", name="Views")
    access, tokens = await people(tmp_path)
    async with served(theirs, access) as url:
        await enter(page, url, tokens["user"])
        await expect(views.get_by_role("link", name="Usage")).to_be_visible()
        await expect(views.get_by_role("link", name="Engine")).to_have_count(0)


async def test_a_site_without_an_engine(page: Page, url: str) -> None:
    await page.goto(f"{url}/#/engine")
    views = page.get_by_role("navigation", name="Views")
    await expect(views.get_by_role("link", name="Usage")).to_be_visible()
    await expect(views.get_by_role("link", name="Engine")).to_have_count(0)
