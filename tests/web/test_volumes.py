"""Volumes in the console: asked for in the form, shown with a job, listed, and cleaned."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.async_api import Page, expect

from agentlink.values import Scope
from controller.devices.engine import OfferedVolume, VolumeData
from controller.state.offers import Offers
from sitefile.volumes import Volume
from tests.web.world import TalkingRack

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def stock(rack: TalkingRack, *data: VolumeData) -> None:
    """Give the site a volume per job, and two servers that offer it."""
    state = rack.parts.state
    volumes = {"scratch": Volume("scratch", read_only=False, per="job", keep_s=86400.0)}
    state.site = replace(state.site, volumes=volumes)
    state.offers = Offers(state.site)
    offered = OfferedVolume("scratch", read_only=False, filesystem="xfs", free_bytes=2**30)
    rack.engine.offered = {
        "srv0": (replace(offered, data=data),),
        "srv1": (replace(offered, problem="it is not a mount point"),),
    }
    await rack.parts.volumes.read()


async def test_a_job_asks_for_volumes_by_name(page: Page, url: str, rack: TalkingRack) -> None:
    await stock(rack)
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Name").fill("red")
    await form.get_by_label("Volumes").fill("scratch:/etc")
    await form.get_by_role("button", name="Submit").click()
    await expect(form.get_by_role("alert")).to_contain_text("/etc is reserved")
    await form.get_by_label("Volumes").fill("scratch:/s\nscratch:/old:ro")
    await form.get_by_role("button", name="Submit").click()
    row = page.get_by_role("row", name=re.compile("red"))
    await expect(row).to_contain_text("running")
    mounts = rack.engine.specs["red"][0].volumes
    assert [(m.path, m.read_only) for m in mounts] == [("/s", False), ("/old", True)]
    await row.click()
    await expect(page.get_by_text("scratch:/s scratch:/old:ro")).to_be_visible()


async def test_what_a_job_left_is_listed_and_removed(
    page: Page, url: str, rack: TalkingRack
) -> None:
    now = rack.see.now()
    left = [
        VolumeData(Scope.JOB, f"default.{job}", bytes=2**30, files=7, used_at=now, jobs=jobs)
        for job, jobs in (("old", ()), ("busy", ("busy",)))
    ]
    await stock(rack, *left)
    await page.goto(f"{url}/#/objects/volumes")
    row = page.get_by_role("row", name=re.compile("srv1"))
    await expect(row).to_contain_text("it is not a mount point")
    await page.get_by_role("row", name=re.compile("srv0")).click()
    drawer = page.locator(".drawer")
    await expect(drawer.locator("h2")).to_have_text("volume/srv0/scratch")
    await expect(drawer).to_contain_text("used by busy")
    buttons = drawer.get_by_role("button", name="Remove")
    await expect(buttons).to_have_count(2)
    await expect(buttons.nth(1)).to_be_disabled()
    await buttons.nth(0).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Remove what job old of project default left")
    await dialog.get_by_role("button", name="Remove the data").click()
    await expect(buttons).to_have_count(1)
    (kept,) = rack.engine.offered["srv0"][0].data
    assert kept.owner == "default.busy"
