"""Tasks of an operator: submit, watch, plan, apply, see the throughput rise."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from controller.schema.plans import PlanRequest
from tests.parts.controller.jobs import submit
from tests.web.world import HeldSwitch, TalkingRack, carry, drag, scattered, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_form_follows_the_published_schema(page: Page, url: str) -> None:
    async def newer(route: Route) -> None:
        document = await (await route.fetch()).json()
        fields = document["components"]["schemas"]["JobRequest"]["properties"]
        fields["nice"] = {
            "type": "integer",
            "minimum": -20,
            "maximum": 19,
            "title": "Nice",
            "default": 3,
        }
        fields["tidy"] = {"type": "boolean", "title": "Tidy", "default": True}
        await route.fulfill(json=document)

    sent: list[dict[str, Any]] = []

    async def taken(route: Route) -> None:
        if route.request.method == "POST":
            sent.append(route.request.post_data_json)
            await route.fulfill(status=409, json={"code": "conflict", "detail": "no", "hint": ""})
        else:
            await route.fallback()

    await page.route("**/openapi.json", newer)
    await page.route("**/api/v1/jobs", taken)
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    nice = form.get_by_label("Nice")
    await expect(nice).to_have_value("3")
    assert await nice.get_attribute("max") == "19"
    await nice.fill("-5")
    await form.get_by_label("Tidy").select_option("false")
    await form.get_by_role("button", name="Submit").click()
    await expect(form).to_contain_text("no")
    assert (sent[0]["nice"], sent[0]["tidy"], sent[0]["priority"]) == (-5, False, 0)


async def test_submit_watch_plan_apply(page: Page, url: str, rack: TalkingRack) -> None:
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Name").fill("red")
    await form.get_by_label("GPUs").fill("4")
    await form.get_by_label("Placement").select_option("any")
    await form.get_by_label("Command").fill("train\n--epochs\n3")
    await form.get_by_role("button", name="Submit").click()
    row = page.get_by_role("row", name=re.compile("red"))
    await expect(row).to_contain_text("running")
    await expect(row).to_contain_text("as0:2")
    await expect(row).to_contain_text("+1")
    assert rack.engine.specs["red"][0].command == ("train", "--epochs", "3")

    await row.click()
    await expect(page.locator(".stat", has_text="Receives").locator(".value")).to_have_text(
        re.compile(r"^228 Mbit/s$")
    )
    # Throughput, utilisation, communication.
    await expect(page.locator(".chart canvas")).to_have_count(3)

    await page.get_by_role("link", name="Plan a regroup").click()
    await expect(page.locator(".stat", has_text="Excess span")).to_contain_text("1 → 0")
    await expect(page.get_by_text("proven: no plan does better")).to_be_visible()
    before = rack.switch.lit()

    await page.get_by_role("link", name="Show on the topology").click()
    await expect(page.locator(".banner")).to_contain_text("nothing has changed yet")
    drawn = "lightloom.view.scene.cy.edges('.make').length"
    assert await page.evaluate(drawn) == await page.evaluate("lightloom.plan.circuits.make.length")
    assert rack.switch.lit() == before

    await page.get_by_role("link", name="Review").click()
    await page.get_by_role("button", name="Apply …").click()
    asked = page.get_by_role("dialog")
    await expect(asked).to_contain_text("Predicted dark time")
    await asked.get_by_role("button", name="Apply", exact=True).click()
    await expect(page.locator(".progress")).to_contain_text("committed")
    await expect(page.locator(".phases .done")).to_have_count(8)
    assert rack.switch.lit() != before

    await page.goto(f"{url}/#/jobs/red")
    await expect(page.locator(".stat", has_text="Receives").locator(".value")).to_have_text(
        re.compile(r"^912 Mbit/s$")
    )
    await expect(page.locator(".stat", has_text="Spread")).to_contain_text("least possible")


async def test_a_job_with_limits(page: Page, url: str, rack: TalkingRack) -> None:
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Name").fill("red")
    await form.get_by_label("Cores per container").fill("0")
    await form.get_by_label("Memory per container").fill("32")
    await form.get_by_label("Disk per container").fill("500")
    await form.get_by_role("button", name="Submit").click()
    await expect(form.get_by_role("alert")).to_contain_text("cpu: must be more than 0")
    assert not await rack.desks.jobs.jobs()
    await form.get_by_label("Cores per container").fill("0.5")
    await form.get_by_role("button", name="Submit").click()
    row = page.get_by_role("row", name=re.compile("red"))
    await expect(row).to_contain_text("running")
    limits = rack.engine.specs["red"][0].limits
    assert (limits.cores, limits.memory_bytes) == (0.5, 32 * 2**30)
    assert (limits.read_bps, limits.write_bps) == (500_000_000, 500_000_000)
    await row.click()
    await expect(page.get_by_text("0.5 cores, 32.0 GiB, 477 MiB/s per disk")).to_be_visible()


async def test_a_job_without_limits(page: Page, url: str, rack: TalkingRack) -> None:
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Name").fill("red")
    await form.get_by_role("button", name="Submit").click()
    await expect(page.get_by_role("row", name=re.compile("red"))).to_contain_text("running")
    limits = rack.engine.specs["red"][0].limits
    assert (limits.cores, limits.memory_bytes, limits.read_bps) == (None, None, None)


async def test_what_moves_marches(
    page: Page, url: str, rack: TalkingRack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    held = HeldSwitch(rack, monkeypatch)
    await page.goto(url)
    await expect(page.locator(".chip")).to_have_text("red")
    await rack.desks.plans.apply(plan, 0.0)
    await expect(page.locator(".banner")).to_contain_text(f"moving {len(plan.moves)} endpoint")
    marching = "lightloom.view.scene.cy.edges('.make.marching').length"
    await until(page, f"{marching} === {len(plan.circuits.make)}")
    offset = "parseFloat(lightloom.view.scene.cy.edges('.marching').style('line-dash-offset'))"
    before = await page.evaluate(offset)
    await until(page, f"{offset} !== {before}")
    held.let_go()
    await expect(page.locator(".banner")).to_be_hidden()
    await until(page, "lightloom.view.scene.cy.edges('.marching').length === 0")


async def test_a_refused_submission_says_why(page: Page, url: str) -> None:
    await page.goto(f"{url}/#/jobs")
    await expect(page.get_by_text("no jobs yet")).to_be_visible()
    await page.keyboard.press("n")
    form = page.get_by_role("dialog")
    await form.get_by_label("GPUs").fill("400")
    await form.get_by_role("button", name="Submit").click()
    await expect(form.get_by_role("alert")).to_contain_text("Hint:")
    await form.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_text("no jobs yet")).to_be_visible()


async def test_the_queue_says_why(page: Page, url: str, rack: TalkingRack) -> None:
    for name, count in (("red", 4), ("blue", 2)):
        await rack.desks.jobs.submit(scattered(name, count))
        await rack.state(name, "running")
    await rack.desks.jobs.submit(scattered("green", 3))
    await page.goto(f"{url}/#/jobs")
    row = page.get_by_role("row", name=re.compile("green"))
    await expect(row).to_contain_text("1 of 1 waiting: needs 3 endpoints, 0 of 6 are idle")
    await row.click()
    await expect(page.locator(".panel").first).to_contain_text("what helps")
    await page.goto(f"{url}/#/plan")
    await expect(page.get_by_label("For").locator("option")).to_have_text(
        ["all jobs", "red", "blue", "room for green"]
    )


async def test_an_endpoint_is_moved_by_hand(page: Page, url: str, rack: TalkingRack) -> None:
    await page.goto(url)
    await expect(page.locator(".status")).to_contain_text("live")
    await page.locator("#search").fill("gpu0")
    await page.locator("#search").press("Enter")
    drawer = page.locator(".drawer")
    await drawer.get_by_label("Move gpu0 to").select_option("as1")
    await drawer.get_by_role("button", name="Move …").click()
    asked = page.get_by_role("dialog")
    await expect(asked).to_contain_text("no job is affected")
    await asked.get_by_role("button", name="Move", exact=True).click()
    await expect(drawer.locator(".facts")).to_contain_text("as1/4")
    assert rack.aggregators.light()["gpu0"].aggregator == "as1"


async def test_an_endpoint_is_dragged_onto_an_aggregator(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await page.goto(url)
    await expect(page.locator(".status")).to_contain_text("live")
    view = "JSON.stringify([lightloom.view.scene.cy.pan(), lightloom.view.scene.cy.zoom()])"
    before = await page.evaluate(view)
    ghost = page.locator(".ghost")

    await carry(page, "gpu0", "aggregator/as0")
    await expect(ghost).to_have_text("gpu0 is under as0 already")
    await page.mouse.up()
    await expect(page.locator(".notice")).to_have_text("gpu0 is under as0 already")
    await drag(page, "gpu0", "switch/ocs0")
    await expect(ghost).to_be_hidden()
    await carry(page, "gpu0", "aggregator/as1")
    await expect(ghost).to_have_text("gpu0 → as1")
    await page.keyboard.press("Escape")
    await expect(ghost).to_be_hidden()
    await page.mouse.up()
    await expect(page.get_by_role("dialog")).to_have_count(0)

    await drag(page, "gpu0", "aggregator/as1")
    asked = page.get_by_role("dialog")
    await expect(asked).to_contain_text("Move gpu0 to as1?")
    await expect(asked).to_contain_text("no job is affected")
    assert await page.evaluate(view) == before
    await asked.get_by_role("button", name="Move", exact=True).click()
    await expect(page.locator(".notice", has_text="committed")).to_be_visible()
    assert rack.aggregators.light()["gpu0"].aggregator == "as1"


async def test_events_are_saved_as_they_are_shown(
    page: Page, url: str, rack: TalkingRack, tmp_path: Path
) -> None:
    await rack.desks.jobs.submit(scattered("red", 2))
    await rack.desks.jobs.submit(scattered("blue", 2))
    await rack.state("blue", "running")
    await page.goto(f"{url}/#/events")
    await page.get_by_label("Filter events").fill("RED job")
    rows = page.locator(".rows tbody tr")
    await expect(rows).to_have_count(2)
    shown = await rows.locator("td:first-child").all_text_contents()
    for name in "JSON lines", "CSV":
        async with page.expect_download() as started:
            await page.get_by_role("button", name=name).click()
        saved = tmp_path / (await started.value).suggested_filename
        await (await started.value).save_as(saved)
        text = saved.read_text(encoding="utf-8")
        found = (
            list(csv.DictReader(text.splitlines()))
            if saved.suffix == ".csv"
            else [json.loads(line) for line in text.splitlines()]
        )
        assert [str(event["id"]) for event in found] == shown[::-1]
        assert {event["object"] for event in found} == {"job/red"}
    await page.get_by_role("button", name="Error").click()
    async with page.expect_download() as started:
        await page.get_by_role("button", name="JSON lines").click()
    await (await started.value).save_as(tmp_path / "none")
    assert (tmp_path / "none").read_text(encoding="utf-8") == ""


async def test_a_job_with_a_time_limit_and_a_secret(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Name").fill("red")
    await form.get_by_label("Secrets").fill("APP_TOKEN=wandb\n")
    await form.get_by_role("button", name="Submit").click()
    await expect(form.get_by_role("alert")).to_contain_text("the site has no secrets")
    await form.get_by_label("Secrets").fill("")
    await form.get_by_label("At the end of that time").select_option("end")
    await form.get_by_role("button", name="Submit").click()
    await expect(form.get_by_role("alert")).to_contain_text("it is to end at its time limit")
    await form.get_by_label("Expected run time").fill("60")
    await form.get_by_role("button", name="Submit").click()
    row = page.get_by_role("row", name=re.compile("red"))
    await expect(row).to_contain_text("running")
    job = rack.desks.jobs.job("red")
    assert (job.time_limit_s, job.time_limit_action) == (3600.0, "end")
    await row.click()
    await expect(page.get_by_text("then it is ended")).to_be_visible()


async def test_a_plan_in_batches(page: Page, url: str, rack: TalkingRack) -> None:
    """The limit of dark endpoints is asked for, shown with the pauses, and followed to the end."""
    for name, ends in (("red", ["gpu0", "gpu1", "gpu2"]), ("blue", ["gpu3", "gpu5", "gpu4"])):
        await submit(rack, name, 3, endpoints=ends, rank_order="placed")
        await rack.state(name, "running")
    await page.goto(f"{url}/#/plan")
    await page.get_by_label("Dark at once ≤").fill("1")
    await page.get_by_role("button", name="Make a plan").click()
    await expect(page.locator(".stat", has_text="Batches")).to_contain_text("2")
    await page.get_by_role("button", name="Apply …").click()
    asked = page.get_by_role("dialog")
    await expect(asked).to_contain_text("in 2 batches")
    await asked.get_by_role("button", name="Apply", exact=True).click()
    told = page.locator(".progress", has_text="Rollout o1")
    await expect(told).to_contain_text("2 of 2 batches done")
    await expect(told).to_contain_text("every batch has committed")
    for name in ("red", "blue"):
        assert rack.desks.jobs.job(name).span == 1
