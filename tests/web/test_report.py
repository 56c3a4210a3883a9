"""The page of ``lightloom report`` in a browser, from disk: what it shows, and what cannot run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page, expect

from console.cli.main import main
from console.cli.show.page import page as report_page
from controller.measurements import runner
from controller.schema.insight.advice import WhatIfRequest
from controller.state.kept.measurements import MeasurementRecord
from measure.kinds import Line
from tests.parts.measure import collectives
from tests.parts.measure.recordings import training
from tests.web.measuring import measured, pairs
from tests.web.recorded import STUDIED, record
from tests.web.world import TalkingRack, scattered, until

EVIL = "</script><img src=x onerror=window.ran=1><b>red</b>"

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def drawn(rack: TalkingRack, job: str) -> None:
    """Wait until the history has two samples of a job: a line needs two points."""
    async with asyncio.timeout(60):
        while True:
            lines = (await rack.desks.live.series(900, {job})).containers
            if lines and all(sum(v is not None for v in one.rx_bps) > 1 for one in lines):
                return
            await asyncio.sleep(0.1)


async def test_a_report_of_a_job_opens_without_errors(
    page: Page, url: str, rack: TalkingRack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.02)
    monkeypatch.setattr(runner, "SAMPLE_S", 0.05)
    homes = {name: at.aggregator for name, at in rack.aggregators.light().items()}

    def said(record: MeasurementRecord, *_: object) -> list[Line]:
        assert record.fabric is not None
        return collectives.lines_of(record.fabric, record.settings)

    await measured(
        rack,
        lambda record, *_: pairs(homes, record, slow="gpu1"),
        "links",
        sizes=[1, 65536, 1048576],
    )
    await measured(rack, said, "collectives", sizes="64k,1m", repetitions=5)
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    rack.engine.recorded = [
        replace(
            training(60, 0.2, [(1 << 20, 0.05, 0.1)], rank=spec.key.rank),
            job="red",
            epoch=spec.key.epoch,
            server=spec.server,
        )
        for spec in rack.engine.specs["red"]
    ]
    await rack.parts.comms.read()
    await drawn(rack, "red")
    moved = next(r for r in rack.desks.jobs.job("red").ranks if r.home == "as1")
    await rack.desks.advice.whatif("red", WhatIfRequest(homes={moved.endpoint: "as0"}))
    file = tmp_path / "red.html"
    await asyncio.to_thread(main, ["--url", url, "report", "red", "-o", str(file)])
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(file.as_uri())
    for heading in ("Communication", "Advice", "Predictions", "links", "collectives"):
        await expect(page.get_by_role("heading", name=heading).first).to_be_visible()
    await expect(page.locator("body")).to_contain_text("gpu1 (sends)")
    await expect(page.locator("body")).to_contain_text("all_reduce")
    await expect(page.locator("body")).not_to_contain_text("Not read")
    for chart in ("Received by each container", "Sent by each container", "Bandwidth by group"):
        await expect(page.get_by_label(chart, exact=True).locator("canvas").first).to_be_visible()
    assert (asked, failed) == ([file.as_uri()], [])
    assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")


async def test_a_report_shows_every_fact_as_text(
    page: Page, rack: TalkingRack, tmp_path: Path
) -> None:
    file = tmp_path / "red.html"
    file.write_text(report_page(EVIL, await record(rack, EVIL)), encoding="utf-8")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(file.as_uri())
    body = page.locator("body")
    for heading in (
        *("Why it failed", "Ranks", "Recoveries", "Checkpoints", "Advice", "Communication"),
        *("Predictions", "About", "Events", "Output", "Moves of light", "Not read"),
        *(f"m{n} {type_}" for n, type_ in enumerate(STUDIED)),
    ):
        await expect(page.get_by_role("heading", name=heading).first).to_be_visible()
    text = await body.inner_text()
    facts = (
        *("running", "sha256:abc", "python train.py", f"reason {EVIL}", "137", "first cause"),
        *(f"cause {EVIL}", f"others {EVIL}", f"words {EVIL}", f"unread {EVIL}"),
        *("t3", "gpu0: as0 to as1", "250 ms", "committed: done", f"message 19 {EVIL}"),
        *("gpu5 for gpu3", "detect", "first step", "went on from 300: 10 steps lost"),
        *("12.0 s, 2.50 s of it lightloom's", "ETTR 93 %", "A restart loads step 400"),
        *("saves 30 % … 34 % of the step", "lightloom plan --job red", "rank's time line"),
        *("rank 1 · gpu1 damaged", "0.58 s … 0.61 s", f"line {EVIL}", f"advice: {EVIL}"),
        *("gpu1 (sends)", "remote · all_reduce · 2 ranks", "49 samples/s", "local (recommended)"),
        *("Written by lightloom at 2026-11-30 12:00:00", "Samples of 2 s each"),
    )
    assert [fact for fact in facts if fact not in text] == []
    for chart in (
        *("Received by each container", "Sent by each container", "Busy share of each GPU"),
        *("Temperature of each GPU", "Power of each GPU"),
    ):
        await expect(page.get_by_role("img", name=chart).locator("canvas").first).to_be_visible()
    assert asked == [file.as_uri()]
    assert await page.locator("script").count() == 2
    assert await page.locator("img[src]").count() == 0
    assert await page.evaluate("window.ran") is None


async def test_a_script_in_a_report_does_not_run(
    context: BrowserContext, rack: TalkingRack, tmp_path: Path
) -> None:
    """The policy stops what the escaping would let through."""
    text = report_page("red", await record(rack, "red"))
    file = tmp_path / "red.html"
    file.write_text(text.replace("</body>", "<script>window.ran = 1</script></body>"))
    page = await context.new_page()
    await page.add_init_script(
        "addEventListener('securitypolicyviolation', () => (window.refused = true))"
    )
    await page.goto(file.as_uri())
    await until(page, "window.refused")
    assert await page.evaluate("window.ran") is None
