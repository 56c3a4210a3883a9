"""Efficiency: a job's bus bandwidth over what was measured on a ring like its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.schema.insight.comms import CommsView
from controller.state.kept.measurements import MEASUREMENTS, MeasurementRecord
from measure.kinds import MeasuredSite
from scheduler.steptime.identify import GOODPUT
from tests.parts.controller.comms import running, view
from tests.parts.controller.rack import Rack
from tests.parts.measure.recordings import training

MIB = 2**20
BUSBW = 4 * MIB / 0.1
"""Of two ranks that reduce 4 MiB in 0.1 s."""


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    one = Rack(tmp_path)
    await one.up()
    yield one
    await one.down()


def measured(
    rack: Rack,
    ident: str,
    rows: Sequence[dict[str, Any]],
    *,
    valid: bool = True,
    ours: bool = True,
    kind: str = "collectives",
) -> None:
    """Keep a measurement with these rows; one of links with these fits."""
    kept = rack.parts.state.measurements
    kept.put(
        MeasurementRecord(
            id=ident,
            type=kind,
            state="completed",
            submitted_at=1.0,
            valid=valid,
            fabric=MeasuredSite(()) if ours else None,
        )
    )
    kept.results[ident] = json.dumps({"rows": rows, "fits": rows})


def row(homes: Sequence[str] | None, size: int, busbw: float, op: str = "all_reduce") -> Any:
    half = {"bus_bw": busbw}
    return {
        "operation": op, "homes": homes, "size": size, "in_place": half, "out_of_place": None
    }  # fmt: skip


async def shown(rack: Rack, **fields: object) -> tuple[CommsView, list[str]]:
    """Start a job of two ranks that reduces 4 MiB; return its document and its homes."""
    if "red" not in rack.see.jobs:
        await running(rack)
    rack.engine.recorded = [
        replace(
            training(40, 1.0, [(4 * MIB, 1.0, 0.1)], rank=spec.key.rank),
            **{"epoch": spec.key.epoch, "server": spec.server, **fields},  # type: ignore[arg-type]
        )
        for spec in rack.engine.specs["red"]
    ]
    found = await view(rack)
    homes = rack.see.homes()
    return found, [str(homes[e]) for e in rack.see.jobs["red"].endpoints]


async def test_it_is_null_where_nothing_was_measured(rack: Rack) -> None:
    found, _ = await shown(rack)
    assert (found.efficiency, found.efficiency_of) == (None, "")


async def test_it_is_of_a_ring_like_the_jobs_and_a_size_near_its_own(rack: Rack) -> None:
    _, homes = await shown(rack)
    other = ["as0", "as1"] if homes[0] == homes[1] else ["as0", "as0"]
    rows = [
        row(homes, 2 * MIB, 2 * BUSBW),
        row(homes, 3 * MIB, 4 * BUSBW),
        row(homes, 1 * MIB, 9 * BUSBW),
        row(other, 4 * MIB, 9 * BUSBW),
        row([*homes, homes[0]], 4 * MIB, 9 * BUSBW),
        row(homes, 4 * MIB, 9 * BUSBW, "broadcast"),
        row(None, 4 * MIB, 9 * BUSBW),
    ]
    measured(rack, "m1", rows)
    found, _ = await shown(rack)
    assert found.efficiency == pytest.approx(0.25)
    assert found.efficiency_of == f"all_reduce of {4 * MIB} bytes, to {3 * MIB} bytes of m1"
    measured(rack, "m2", [row(homes, 4 * MIB, BUSBW)], valid=False)
    measured(rack, "m4", [row(homes, 4 * MIB, BUSBW)], ours=False)
    assert (await shown(rack))[0].efficiency == pytest.approx(0.25)
    measured(rack, "m3", [row(homes, 4 * MIB, BUSBW)])
    assert (await shown(rack))[0].efficiency == pytest.approx(1.0)
    rack.parts.state.measurements.remove("m3")
    rack.parts.state.measurements.remove("m1")
    assert (await shown(rack))[0].efficiency is None


async def test_it_is_kept_for_an_ended_job_where_it_was(rack: Rack) -> None:
    _, homes = await shown(rack)
    measured(rack, "m1", [row(homes, 4 * MIB, 2 * BUSBW)])
    for rank in range(2):
        rack.engine.exit("red", rank, 0)
    await rack.state("red", "completed")
    found, _ = await shown(rack)
    assert found.efficiency == pytest.approx(0.5)


async def test_measured_links_stand_in_for_collectives(rack: Rack) -> None:
    found, homes = await shown(rack)
    assert homes[0] == homes[1]
    fit = {"class": "same aggregator", "alpha_s": 1e-4, "beta": 2 * BUSBW}
    measured(rack, "m1", [fit], kind="links")
    found, _ = await shown(rack)
    assert found.efficiency == pytest.approx(0.5)
    assert found.efficiency_of.endswith("to its ring's rate over measured links")
    measured(rack, "m2", [row(homes, 4 * MIB, BUSBW)])
    assert (await shown(rack))[0].efficiency == pytest.approx(1.0)


async def test_measured_links_reach_the_step_model_and_survive_a_restart(rack: Rack) -> None:
    await shown(rack)
    latest, meter = rack.parts.latest, rack.parts.meter
    await latest.refresh()
    assert latest.links() is None
    fit = {"class": "same aggregator", "alpha_s": 1e-6, "beta": 2 * BUSBW}
    measured(rack, "m1", [fit], kind="links")
    state = rack.parts.state
    await state.record(MEASUREMENTS.row("m1"))
    await latest.refresh()
    known = latest.links()
    assert known is not None
    assert known.fits == {"same aggregator": (1e-6, 2 * BUSBW)}
    homes = state.light.homes()
    assert meter.measured_bytes_s(("gpu0", "gpu1"), homes) == pytest.approx(2 * BUSBW)
    await rack.down()
    await rack.up()
    await rack.parts.latest.refresh()
    assert rack.parts.latest.links() == known
    measured(rack, "m2", [fit | {"beta": 0.0}], kind="links")
    await rack.parts.latest.refresh()
    assert rack.parts.latest.links() == known, "what cannot be true replaces nothing"


async def test_what_rings_get_of_links_is_that_of_the_latest_collectives(rack: Rack) -> None:
    _, homes = await shown(rack)
    latest = rack.parts.latest
    measured(rack, "m1", [{**row(homes, 4 * MIB, BUSBW), "link_share": 0.8 * GOODPUT}])
    await latest.refresh()
    assert latest.links() is None, "a share of links that were not measured"
    fit = {"class": "same aggregator", "alpha_s": 1e-6, "beta": 2 * BUSBW}
    measured(rack, "m2", [fit], kind="links")
    await latest.refresh()
    model = latest.links()
    assert model is not None
    assert model.ring_share == pytest.approx(0.8)
    assert model.source == "measurement m2, rings by m1"
    meter, home = rack.parts.meter, rack.see.homes()
    assert meter.measured_bytes_s(("gpu0", "gpu1"), home) == pytest.approx(2 * BUSBW)
    measured(rack, "m3", [{**row(homes, 4 * MIB, BUSBW), "link_share": "much"}])
    await latest.refresh()
    model = latest.links()
    assert model is not None and model.ring_share == 1.0, "what cannot be read tells nothing"
