"""The page of ``lightloom report`` in a browser: sections of real results, no scripts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from console.cli.main import main
from controller.measurements import runner
from controller.schema.insight.advice import WhatIfRequest
from controller.state.kept.measurements import MeasurementRecord
from measure.kinds import Line
from tests.parts.measure import collectives
from tests.parts.measure.recordings import training
from tests.web.measuring import measured, pairs
from tests.web.world import TalkingRack, scattered

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
    assert await page.locator("svg").count() >= 4
    assert await page.locator("script").count() == 0
    assert (asked, failed) == ([file.as_uri()], [])
    assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")
