"""Checkpoints, recoveries and drains in the console, of a job that lost gpu3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from controller.schema.checkpoints import CheckpointsView, DrainKind, DrainView
from controller.schema.jobs import read_job
from controller.schema.submit.request import JobRequest
from tests.parts.api.desks import answer
from tests.parts.api.survival import (
    INTERVAL,
    OF_SITE,
    RECOVERIES,
    checkpoints_view,
    verified,
)
from tests.web.world import TalkingRack, enter, people, served

pytestmark = pytest.mark.asyncio(loop_scope="session")

WIDER = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"
KEPT: dict[str, Any] = {"local": {"size_bytes": 3 * 2**30}, "complete": "dcp"}


class Known:
    """What is known of red's checkpoints and of what it has lost, and the drains that are begun."""

    def __init__(self, rack: TalkingRack) -> None:
        self.dropped: set[int] = set()
        self.drained: dict[str, DrainView] = {}
        self._endpoints = rack.desks.jobs.job("red").endpoints
        answer(
            rack.desks.checkpoints,
            checkpoints=self.checkpoints,
            checkpoint_advice=INTERVAL,
            verify_checkpoints=verified(None),
            drop_checkpoint=self.drop,
        )
        answer(rack.desks.recoveries, of_job=RECOVERIES, of_site=OF_SITE)
        drained = self.drained
        answer(
            rack.desks.drains,
            views=lambda: list(drained.values()),
            drain=self.drain,
            undrain=self.undrain,
        )

    async def checkpoints(self, _: str) -> CheckpointsView:
        return checkpoints_view(self._endpoints, without=self.dropped)

    async def drop(self, name: str, step: int, *, force: bool) -> CheckpointsView:
        self.dropped.add(step)
        return await self.checkpoints(name)

    async def drain(self, kind: DrainKind, name: str, *, now: bool = False) -> DrainView:
        jobs = {} if now else {"red": "a protected checkpoint"}
        about, state = f"{kind}/{name}", "draining" if jobs else "drained"
        view = {"object": about, "state": state, "since": 1.0, "jobs": jobs}
        self.drained[about] = DrainView.model_validate(view)
        return self.drained[about]

    async def undrain(self, kind: DrainKind, name: str) -> DrainView:
        return self.drained.pop(f"{kind}/{name}")


async def with_desk(rack: TalkingRack) -> Known:
    """Let a job run that keeps checkpoints; what is known of them is ordered."""
    request = {"name": "red", "count": 4, "command": ["train"], "checkpoint": KEPT}
    await rack.desks.jobs.submit(read_job(request))
    await rack.state("red", "running")
    return Known(rack)


@pytest.mark.parametrize("width", [1280, 1920])
async def test_a_jobs_page_shows_steps_and_phases(
    page: Page, url: str, rack: TalkingRack, width: int
) -> None:
    await with_desk(rack)
    await page.set_viewport_size({"width": width, "height": 900})
    await page.goto(f"{url}/#/jobs/red")
    kept = page.get_by_role("region", name="Checkpoints")
    await expect(kept).to_contain_text("A restart loads step 400")
    await expect(kept.get_by_role("row")).to_have_count(4)
    await expect(kept.get_by_role("img", name="local, partner, shared")).to_have_count(1)
    await expect(kept.get_by_role("img", name="local, partner", exact=True)).to_have_count(1)
    lost = page.get_by_role("region", name="Recoveries")
    await expect(lost.get_by_role("listitem")).to_have_count(8)
    await expect(lost).to_contain_text("gpu5 for gpu3")
    await expect(lost).to_contain_text("12.0 s, 2.50 s of it lightloom's")
    await expect(page.get_by_text("dcp, 3.00 GiB of memory a rank, 2 steps kept")).to_be_visible()
    assert not await page.evaluate(WIDER)


async def test_a_job_that_keeps_none_shows_none(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(JobRequest(name="blue", count=2, command=["train"]))
    await rack.state("blue", "running")
    await page.goto(f"{url}/#/jobs/blue")
    await expect(page.get_by_role("region", name="Advice")).to_be_visible()
    await expect(page.get_by_role("region", name="Checkpoints")).to_be_hidden()
    await expect(page.get_by_role("region", name="Recoveries")).to_be_hidden()


async def test_a_step_is_dropped_after_a_question_with_the_keyboard(
    page: Page, url: str, rack: TalkingRack
) -> None:
    desk = await with_desk(rack)
    await page.goto(f"{url}/#/jobs/red")
    kept = page.get_by_role("region", name="Checkpoints")
    await kept.get_by_role("row", name="300").get_by_role("button", name="Drop").press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("It is the newest complete one")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    assert not desk.dropped
    await kept.get_by_role("row", name="200").get_by_role("button", name="Drop").press("Enter")
    await expect(dialog).not_to_contain_text("newest complete")
    await page.keyboard.press("Enter")  # the verb has the focus
    await expect(kept.get_by_role("row")).to_have_count(3)
    assert desk.dropped == {200}
    await kept.get_by_role("button", name="Verify all parts").press("Enter")
    await expect(page.get_by_text("1 of 24 parts are damaged")).to_be_visible()


async def test_an_operator_drains_and_puts_back(page: Page, url: str, rack: TalkingRack) -> None:
    desk = await with_desk(rack)
    await page.goto(f"{url}/#/objects/aggregators/as0")
    group = page.get_by_role("group", name="Maintenance")
    await group.get_by_role("button", name="Drain …").press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Nothing new is placed on this aggregator")
    await dialog.get_by_role("button", name="Drain").click()
    await expect(group).to_contain_text("red waits for a protected checkpoint")
    await group.get_by_role("button", name="Do not wait").click()
    await page.get_by_role("dialog").get_by_role("button", name="Drain now").click()
    await expect(group).to_contain_text("drained")
    assert desk.drained["aggregator/as0"].jobs == {}
    await group.get_by_role("button", name="Put back into use").click()
    await page.get_by_role("dialog").get_by_role("button", name="Put it back").click()
    await expect(group.get_by_role("button", name="Drain …")).to_be_visible()
    assert not desk.drained
    await page.goto(f"{url}/#/objects/endpoints/gpu0")
    await expect(page.locator(".drawer h2")).to_have_text("endpoint/gpu0")
    await expect(group).to_be_hidden()


async def test_a_viewer_may_neither_drain_nor_drop(
    page: Page, rack: TalkingRack, tmp_path: Path
) -> None:
    await with_desk(rack)
    access, tokens = await people(tmp_path)
    async with served(rack, access) as url:
        await enter(page, url, tokens["viewer"])
        await page.goto(f"{url}/#/objects/switches/ocs0")
        drain = page.get_by_role("group", name="Maintenance").get_by_role("button")
        await expect(drain).to_be_disabled()
        await expect(drain).to_have_attribute("title", "your role (viewer) does not allow this")
    assert access.accounts is not None
    await access.accounts.close()


async def test_the_form_asks_for_checkpoints_and_spares(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Name").fill("red")
    await form.get_by_label("Checkpoints of a rank, GiB").fill("1.5")
    await form.get_by_label("Checkpoints are whole by").select_option("dcp")
    await form.get_by_label("Spares").fill("1?")
    await form.get_by_label("Without a spare").select_option("shrink")
    scheme = form.locator("select[name=scheme]")
    await expect(scheme).to_be_hidden()
    await form.get_by_text("More about checkpoints").press("Enter")
    await scheme.select_option("single")
    await form.get_by_label("They are in").select_option("disk")
    await form.get_by_label("Parts of ranks").select_option("identical")
    await form.get_by_label("Ranks with which it goes on at least").fill("2")
    await form.get_by_role("button", name="Submit").click()
    await expect(page.get_by_role("row", name="red")).to_be_visible()
    asked = rack.desks.jobs.job("red")
    kept = asked.checkpoint
    assert kept is not None
    assert (kept.local.size_bytes, kept.complete) == (1610612736, "dcp")
    assert (asked.spares_asked, asked.spares_needed, asked.on_loss) == (1, False, "shrink")
    assert (kept.local.where, kept.copies.scheme) == ("disk", "single")
    assert (kept.replicas, asked.at_least) == ("identical", 2)


async def test_a_move_that_brings_copies_together_is_warned_of(
    page: Page, url: str, rack: TalkingRack
) -> None:
    kept = KEPT | {"copies": {"apart": "aggregator"}}
    request = {"name": "red", "count": 2, "endpoints": ["gpu0", "gpu4"], "checkpoint": kept}
    await rack.desks.jobs.submit(read_job({**request, "command": ["train"]}))
    await rack.state("red", "running")
    home = rack.aggregators.light()["gpu4"].aggregator
    await rack.desks.plans.attach("gpu5", None, 60)  # a port
    await page.goto(url)
    await expect(page.locator(".status")).to_contain_text("live")
    await page.locator("#search").fill("gpu0")
    await page.locator("#search").press("Enter")
    drawer = page.locator(".drawer")
    await drawer.get_by_label("Move gpu0 to").select_option(home)
    await drawer.get_by_role("button", name="Move …").click()
    asked = page.get_by_role("dialog")
    await expect(asked.get_by_role("status")).to_contain_text(
        "2 endpoints of job red will be under"
    )
    assert rack.aggregators.light()["gpu0"].aggregator != home
