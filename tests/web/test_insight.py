"""Every page of measurements, communication and advice over the real routes and real results."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from controller.advice import desk
from controller.devices.engine import OfferedVolume
from controller.measurements import runner
from controller.plans import automatic
from controller.schema.plans import PlanRequest
from controller.service import upkeep
from controller.state.kept.measurements import MeasurementRecord
from measure.kinds import Line, Run
from scheduler.steptime.profile import StepProfile
from tests.parts.controller.steps import Recorder, known
from tests.parts.measure import collectives, scaling
from tests.parts.measure.compare import JOB, Site
from tests.parts.measure.loading import STARVED, turns
from tests.parts.measure.recordings import training
from tests.parts.measure.storage import SMALL, grid
from tests.web.measuring import begun, finished, measured, pairs
from tests.web.world import TalkingRack, people, scattered, served

pytestmark = pytest.mark.asyncio(loop_scope="session")

MEASURE = Path(__file__).parents[1] / "unit" / "measure"
SIZES = [1, 16384, 65536, 262144, 1048576]
NEVER_ASKS_AGAIN = """{
  const later = window.setTimeout;
  const polls = [2000, 5000, 10000, 15000, 30000];
  window.setTimeout = (f, ms, ...more) => (polls.includes(ms) ? 0 : later(f, ms, ...more));
}"""
"""What the page shows after its first answer, the stream has told it."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.02)
    monkeypatch.setattr(runner, "SAMPLE_S", 0.05)
    monkeypatch.setattr(upkeep, "OBSERVE_EVERY_S", 0.05)
    monkeypatch.setattr(automatic, "REGROUP_EVERY_S", 0.05)
    monkeypatch.setattr(desk, "CHECK_EVERY_S", 0.05)


@pytest_asyncio.fixture(loop_scope="session")
async def offering(rack: TalkingRack) -> TalkingRack:
    """Every server offers the volume of results."""
    offered = OfferedVolume("results", read_only=False, filesystem="xfs", free_bytes=2**30)
    rack.engine.offered = {server.name: (offered,) for server in rack.site.servers}
    await rack.parts.volumes.read()
    return rack


@pytest_asyncio.fixture(loop_scope="session")
async def steady(tmp_path: Path) -> AsyncIterator[tuple[str, TalkingRack]]:
    """Job ``red`` runs under both aggregators, and its steps are known."""
    rack = TalkingRack(tmp_path)
    await rack.up(facts=Recorder(rack, steps=10))  # a prediction waits for half as many
    ends = ["gpu0", "gpu2", "gpu1", "gpu3"]
    job = replace(scattered("red", 4), endpoints=ends)
    await rack.desks.jobs.submit(job)
    await rack.state("red", "running")
    await known(rack)
    async with served(rack) as url:
        yield url, rack
    await rack.down()


def homes(rack: TalkingRack) -> dict[str, str]:
    return {name: at.aggregator for name, at in rack.aggregators.light().items()}


async def test_a_measurement_is_followed_live_and_its_pairs_are_shown(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await page.add_init_script(NEVER_ASKS_AGAIN)
    await page.goto(f"{url}/#/measurements")
    await expect(page.locator(".status")).to_contain_text("live")
    await expect(page.locator(".scroll")).to_contain_text("nothing was measured yet")
    ident = await begun(rack, "links", sizes=SIZES)
    row = page.get_by_role("table", name="Measurements").locator("tbody tr").first
    await expect(row).to_contain_text("running")
    await page.get_by_role("link", name=ident, exact=True).click()
    await expect(page.locator(".stat", has_text="Progress")).to_contain_text(" of ")
    away = homes(rack)
    view = await finished(rack, ident, lambda record, *_: pairs(away, record, slow="gpu5"))
    assert view.valid, view.invalid_because
    await expect(page.locator(".title")).to_contain_text("valid")
    heat = page.get_by_role("img", name=re.compile("6 senders by 6 receivers"))
    await heat.focus()
    said = page.locator(".heat [aria-live]")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        await page.keyboard.press(key)
    await expect(said).to_contain_text(re.compile(r"gpu\d to gpu\d, .*MB/s \(95 %: .*group \d"))
    groups = page.locator(".heat .marks")
    await expect(groups).to_contain_text("as0-as1")
    await expect(groups).to_contain_text("same aggregator")
    legend = page.get_by_role("group", name="Bandwidth by group").locator(".marks span")
    await expect(legend.filter(has_text="as0-as1")).to_have_count(1)
    await expect(page.locator(".anomaly")).to_contain_text("gpu5 (sends)")
    await expect(page.locator("table[aria-label=Pairs] tbody tr")).to_have_count(30)
    await expect(page.get_by_role("heading", name=re.compile("Fits"))).to_be_visible()


async def test_a_removed_measurement_disappears_without_asking(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await page.add_init_script(NEVER_ASKS_AGAIN)
    away = homes(rack)
    view = await measured(rack, lambda record, *_: pairs(away, record), "links", sizes=SIZES)
    await page.goto(f"{url}/#/measurements")
    rows = page.get_by_role("table", name="Measurements").locator("tbody tr")
    await expect(rows.first).to_contain_text(view.id)
    await expect(page.locator(".status")).to_contain_text("live")
    await rack.desks.measurements.remove(view.id)
    await expect(page.locator(".scroll")).to_contain_text("nothing was measured yet")


async def test_collectives(page: Page, url: str, rack: TalkingRack) -> None:
    def says(record: MeasurementRecord, *_: object) -> list[Line]:
        assert record.fabric is not None
        return collectives.lines_of(record.fabric, record.settings)

    settings = {"sizes": "64k,1m", "repetitions": 5, "placements": "local,remote", "ranks": "2"}
    view = await measured(rack, says, "collectives", **settings)
    assert view.valid, view.invalid_because
    await page.goto(f"{url}/#/measurements/{view.id}")
    table = page.get_by_role("table", name="nccl-tests")
    await expect(table.locator("tbody tr")).to_have_count(2)
    pick = page.get_by_role("combobox", name="Placement and operation").locator("option")
    await expect(pick).to_have_text(
        ["local · all_reduce · 2 ranks", "remote · all_reduce · 2 ranks"]
    )
    marks = page.get_by_role("group", name="Bus bandwidth").locator(".marks span")
    await expect(marks).to_have_count(2)


async def test_scaling(page: Page, url: str, rack: TalkingRack) -> None:
    def says(record: MeasurementRecord, *_: object) -> list[Line]:
        assert record.fabric is not None
        return scaling.lines_of(record.fabric, record.settings)

    view = await measured(rack, says, "scaling", x="1,4,16", ranks="1,2")
    assert view.valid, view.invalid_because
    await page.goto(f"{url}/#/measurements/{view.id}")
    steps = page.get_by_role("group", name="Step against intensity")
    await expect(steps.locator(".marks")).to_contain_text("2 ranks, predicted")
    efficiency = page.get_by_role("group", name="Efficiency")
    await expect(efficiency).to_contain_text("ResNet/16, batch 48")
    await expect(page.get_by_role("table", name="Every run").locator("tbody tr")).to_have_count(6)


async def test_storage(page: Page, url: str, offering: TalkingRack) -> None:
    settings = SMALL | {"repetitions": 5, "io_limits": "5M"}
    view = await measured(offering, lambda _, run, __: grid(run), "storage", "gpu0", **settings)
    assert view.result is not None
    await page.goto(f"{url}/#/measurements/{view.id}")
    for name in ("Throughput against workers", "CPU against workers", "99th percentile"):
        await expect(page.get_by_role("group", name=name).locator("canvas")).to_be_visible()
    marks = page.get_by_role("group", name="Throughput against workers").locator(".marks")
    await expect(marks).to_contain_text("4 KiB, read, at most 5.00 MB/s")


async def test_input(page: Page, url: str, offering: TalkingRack) -> None:
    def says(_: MeasurementRecord, run: int, asked: Run) -> list[Line]:
        ranks = range(len(asked.endpoints))
        return [li for rank in ranks for li in turns(STARVED, run=run, rank=rank, blocks=5)]

    view = await measured(offering, says, "input", "gpu0", volume="results", blocks=5)
    assert view.result is not None
    await page.goto(f"{url}/#/measurements/{view.id}")
    bars = page.get_by_role("list", name=re.compile("Samples per second"))
    await expect(bars.get_by_role("listitem")).to_have_count(3)
    await expect(bars).to_contain_text("40 samples/s")
    verdict = page.locator(".panel", has=bars)
    await expect(verdict.locator(".badge")).to_have_text("input")
    await expect(verdict).to_contain_text("a step waits")


async def test_a_comparison(page: Page, url: str, rack: TalkingRack) -> None:
    sites: list[Site] = []

    def says(record: MeasurementRecord, number: int, run: Run) -> list[Line]:
        assert record.fabric is not None
        sites[:] = sites or [Site(record.fabric, StepProfile(0.2, 0.4, 0.0))]
        sites[0].carry_out([run])
        return sites[0].lines

    settings = {"job": JOB | {"env": {}}, "placements": ["local", "hybrid", "remote"]}
    view = await measured(rack, says, "compare", **settings)
    assert view.result is not None
    recommended = view.result.summary["recommended"]
    await page.goto(f"{url}/#/measurements/{view.id}")
    change = page.get_by_role("list", name="Change of training time").get_by_role("listitem")
    await expect(change).to_have_count(3)
    await expect(change.filter(has_text="(recommended)")).to_contain_text(recommended)
    text = page.locator(".page")
    await expect(change.filter(has_text="hybrid")).to_contain_text("not measured predicted +")
    await expect(change.filter(has_text="hybrid").locator(".predicted")).to_be_attached()
    await expect(text).to_contain_text(str(view.result.summary["because"]))


async def test_imports_of_other_tools(page: Page, url: str) -> None:
    files = {
        ("collectives", "nccl-tests"): MEASURE / "collectives" / "all_reduce.json",
        ("storage", "fio"): MEASURE / "storage" / "fio-3.33.json",
    }
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        for (type_, tool), file in files.items():
            body = {"type": type_, "tool": tool, "text": file.read_text()}
            reply = await client.post(f"{url}/api/v1/imports", json=body)
            assert reply.status_code == 201, reply.text
    await page.goto(f"{url}/#/measurements/m1")
    await expect(page.get_by_role("alert")).to_contain_text("data were wrong")
    table = page.get_by_role("table", name="nccl-tests")
    await expect(table.locator("tbody tr b").first).to_have_text("7")
    await page.goto(f"{url}/#/measurements/m2")
    await expect(page.get_by_role("heading", level=1)).to_have_text("m2 storage")
    await expect(
        page.get_by_role("table", name="Every run").locator("tbody tr").first
    ).to_be_visible()
    await expect(page.locator(".stat", has_text="Tool")).to_contain_text("fio")


async def test_what_a_job_communicates(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(scattered("red", 2))
    await rack.state("red", "running")
    rack.engine.recorded = [
        replace(
            training(60, 0.2, [(1 << 20, 0.05, 0.1), (1 << 16, 0.1, 0.12)], rank=spec.key.rank),
            job="red",
            epoch=spec.key.epoch,
            server=spec.server,
        )
        for spec in rack.engine.specs["red"]
    ]
    await rack.parts.comms.read()
    await page.goto(f"{url}/#/jobs/red")
    panel = page.get_by_role("region", name="Communication")
    strip = panel.get_by_role("group", name="The slowest rank's step").locator(".marks span")
    await expect(strip).to_have_text(
        [
            re.compile("^compute 50.0 ms"),
            re.compile("^hidden communication 50.0 ms"),
            re.compile("^exposed communication 0.17 s"),
        ]
    )
    sizes = panel.get_by_role("table", name="Operations and sizes").locator("tbody tr")
    await expect(sizes).to_have_count(2)
    await expect(sizes.filter(has_text="1 MiB")).to_contain_text("all_reduce")
    heat = panel.get_by_role("img", name=re.compile("2 ranks by 2 sizes"))
    await heat.press("ArrowDown")
    await expect(panel.locator(".heat [aria-live]")).to_contain_text("rank 0, 64 KiB")
    for rank in range(2):
        rack.engine.exit("red", rank, 0)
    await rack.state("red", "completed")
    await page.reload()
    await expect(sizes).to_have_count(2)  # of a job that has ended, too


async def test_homes_are_supposed_on_the_topology_and_nothing_moves(
    page: Page, steady: tuple[str, TalkingRack]
) -> None:
    url, rack = steady
    circuits = list(rack.switch.circuits)
    await page.goto(f"{url}/#/topology")
    await expect(page.locator(".status")).to_contain_text("live")

    async def select(name: str) -> None:
        await page.locator("#search").fill(name)
        await page.locator("#search").press("Enter")
        await expect(page.locator(".drawer h2")).to_have_text(name)

    away = [name for name, home in homes(rack).items() if home == "as1" and name != "gpu5"]
    panel = page.get_by_role("region", name="What if")
    for name in away:
        await select(name)
        field = panel.get_by_label(f"Suppose {name} under")
        await field.select_option("as0")
    await expect(panel).to_contain_text(f"also supposed: {away[0]} under as0")
    await panel.get_by_role("button", name="Predict the step").click()
    await expect(panel).to_contain_text("faster")
    await expect(panel).to_contain_text("2 → 1")
    await expect(panel).to_contain_text("nothing has moved")
    assert rack.switch.circuits == circuits
    await select("gpu5")  # it is idle
    await expect(panel).to_be_hidden()
    await select(away[0])
    await expect(panel).to_contain_text("step then")
    await page.set_viewport_size({"width": 390, "height": 844})
    await expect(panel.get_by_label(f"Suppose {away[0]} under")).to_be_visible()
    cut = "(box) => box.scrollWidth > box.clientWidth"
    assert not await page.locator(".drawer").evaluate(cut)
    await panel.get_by_role("button", name="Forget").click()
    await expect(panel).not_to_contain_text("step then")


async def test_a_prediction_is_met_and_advice_follows_the_light(
    page: Page, steady: tuple[str, TalkingRack]
) -> None:
    url, rack = steady
    await page.goto(f"{url}/#/measurements/advice")
    await expect(page.locator(".finding").first).to_contain_text("lightloom plan --job red")
    await page.goto(f"{url}/#/jobs/red")
    panel = page.get_by_role("region", name="What if")
    for name in [name for name, home in homes(rack).items() if home == "as1" and name != "gpu5"]:
        await panel.get_by_label(re.compile(f"· {name}")).select_option("as0")
    await panel.get_by_role("button", name="Predict the step").click()
    await expect(panel.locator(".stat", has_text="Step then")).to_contain_text("s")
    rows = panel.get_by_role("table", name="Predictions").locator("tbody tr")
    await expect(rows).to_have_count(1)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert (await rack.desks.plans.apply(plan, 60)).state == "committed"

    async def met() -> bool:
        return any(p.state == "met" for p in rack.desks.advice.predictions())

    await rack.until(met)
    await page.goto(f"{url}/#/measurements/predictions")
    row = page.get_by_role("table", name="Predictions").locator("tbody tr", has_text="met").first
    await expect(row).to_contain_text("red")
    await expect(row).to_contain_text(" %")
    await expect(page.locator(".page")).to_contain_text("met what was measured: error")
    await page.goto(f"{url}/#/jobs/red")
    advice = page.get_by_role("region", name="Advice")
    await expect(advice).not_to_contain_text("lightloom plan --job red")


async def test_a_user_is_refused_clearly_and_sees_nothing_of_other_projects(
    page: Page, rack: TalkingRack, tmp_path: Path
) -> None:
    away = homes(rack)
    await measured(rack, lambda record, *_: pairs(away, record), "links", sizes=SIZES)
    await rack.desks.jobs.submit(scattered("red", 2))
    await rack.state("red", "running")
    access, tokens = await people(tmp_path)
    header = {"Authorization": f"Bearer {tokens['user']}"}
    async with (
        served(rack, access) as url,
        httpx.AsyncClient(timeout=60, trust_env=False, base_url=f"{url}/api/v1") as client,
    ):
        client.headers.update(header)
        started = {"type": "links", "project": "vision"}
        for change in (
            client.post("/measurements", json=started),
            client.post("/imports", json={"type": "storage", "tool": "fio", "text": "{}"}),
            client.post("/measurements/m1/cancel"),
            client.delete("/measurements/m1"),
        ):
            reply = await change
            problem = reply.json()
            assert (reply.status_code, problem["code"]) == (403, "forbidden")
            assert "the role user may not do this (measurements:make)" in problem["detail"]
            assert "/whoami" in problem["hint"]
        homes_ = {"homes": {"gpu0": "as1"}}
        for asked in (
            client.get("/measurements/m1"),
            client.get("/jobs/red/comms"),
            client.post("/jobs/red/whatif", json=homes_),
            client.get("/advice", params={"job": "red"}),
        ):
            reply = await asked
            assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
        assert (await client.get("/measurements")).json()["items"] == []
        assert (await client.get("/predictions")).json()["items"] == []
        assert "red" not in (await client.get("/advice")).text
        assert 'job="red"' not in (await client.get("/metrics")).text
        await page.goto(url)
        await page.get_by_label("Token").fill(tokens["user"])
        await page.get_by_role("button", name="Sign in").click()
        await page.goto(f"{url}/#/measurements")
        await expect(page.locator(".scroll")).to_contain_text("nothing was measured yet")
        await page.goto(f"{url}/#/measurements/m1")
        await expect(page.get_by_role("alert")).to_contain_text("measurement m1 does not exist")
    assert access.accounts is not None
    await access.accounts.close()
