"""A job loses a GPU and a spare takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from controller.swaps import first
from controller.telemetry.throughput import EndpointRates
from controller.views.recoveries import view_of
from tests.parts.controller.losses import rack_with
from tests.parts.controller.rack import Rack
from tests.parts.controller.recoveries import (
    again,
    check,
    job_of,
    kill,
    reasons,
    rows,
    running,
    state_of,
)


@pytest_asyncio.fixture
async def spared(tmp_path: Path) -> AsyncIterator[Rack]:
    rack = rack_with(tmp_path, "gpu5")
    await rack.up()
    yield rack
    await rack.down()


@pytest.mark.parametrize("code", [137, None], ids=["its rank ends", "its rank hangs"])
async def test_a_spare_takes_the_place_of_a_dead_gpu(spared: Rack, code: int | None) -> None:
    before = await running(spared)
    light = dict(spared.aggregators.light())
    kill(spared, "gpu1", code)
    after = await again(spared, before)
    assert after.endpoints == ("gpu0", "gpu5", "gpu2", "gpu3"), "in the order of the ranks"
    assert after.failures == 0
    moved = spared.aggregators.light()
    assert "gpu1" not in moved, "the dead one is dark"
    assert moved["gpu5"].aggregator == light["gpu1"].aggregator
    assert "gpu1" in state_of(spared).light.quarantine
    row = rows(spared)[-1]
    assert (row.cause, row.how, row.swaps) == ("endpoint", "swap", {"gpu1": "gpu5"})
    assert {"detected", "decided", "stopped", "lit", "fetched", "started"} <= row.marks.keys()
    assert spared.engine.graces["red"] == 0.0
    assert {"HardwareLost", "SpareChosen", "JobRecovered"} <= set(reasons(spared))
    check(spared)


async def test_a_dead_gpu_that_is_repaired_and_released_gets_light(spared: Rack) -> None:
    before = await running(spared)
    kill(spared, "gpu1")
    await again(spared, before)
    await spared.until(lambda: "gpu1" in state_of(spared).light.quarantine)
    spared.engine.sick = {}
    await spared.until(lambda: not state_of(spared).light.unfit)
    await spared.service.desks.quarantine.release("gpu1")
    await spared.until(lambda: "gpu1" in state_of(spared).light.attachments)
    assert spared.aggregators.light()["gpu1"].aggregator == "as0"
    check(spared)


async def test_a_job_that_asks_for_no_survival_ends_although_the_site_has_a_spare(
    spared: Rack,
) -> None:
    await running(spared, restart="never")
    kill(spared, "gpu1")
    await spared.state("red", "failed")
    assert not rows(spared)
    assert state_of(spared).spares() == {"gpu5": ""}


async def test_a_spare_of_its_own_lets_a_job_go_on_without_any_restart(spared: Rack) -> None:
    before = await running(spared, count=2, spares=1, restart="never")
    kill(spared, "gpu1")
    after = await again(spared, before)
    assert (after.endpoints[0], rows(spared)[-1].how) == ("gpu0", "swap")


async def test_a_jobs_own_spare_is_used_first_and_replaced(spared: Rack) -> None:
    before = await running(spared, count=2, spares=1)
    await spared.until(lambda: job_of(spared).spares)
    (mine,) = job_of(spared).spares
    assert mine != "gpu5"
    assert state_of(spared).unavailable()[mine] == "spare of job red"
    kill(spared, "gpu1")
    after = await again(spared, before)
    assert after.endpoints == ("gpu0", mine)
    await spared.until(lambda: len(job_of(spared).spares) == 1)
    assert job_of(spared).spares[0] not in (mine, "gpu1", "gpu5")
    assert "SpareReplaced" in reasons(spared)
    check(spared)


async def test_a_dead_spare_is_replaced(spared: Rack) -> None:
    await running(spared, count=2, spares=1)
    await spared.until(lambda: job_of(spared).spares)
    (mine,) = job_of(spared).spares
    kill(spared, mine)
    await spared.until(lambda: job_of(spared).spares not in ((), (mine,)))
    assert "SpareMissing" in reasons(spared)
    check(spared)


async def test_nothing_is_placed_on_a_spare_of_the_site(spared: Rack) -> None:
    assert state_of(spared).unavailable()["gpu5"] == "kept as a spare of the site"
    await running(spared, count=5)
    assert "gpu5" not in job_of(spared).endpoints


def sending(rack: Rack, sent: Mapping[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the telemetry say what endpoints send."""
    monkeypatch.setattr(rack.parts.telemetry, "rates", lambda e: EndpointRates(tx_bps=sent.get(e)))


async def test_most_ranks_talk_once_they_have_imported_and_send_as_before_once_they_step(
    spared: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, float] = {}
    sending(spared, sent, monkeypatch)
    before = await running(spared)
    sent |= dict.fromkeys(before.endpoints, 1e9)
    await observed(spared)
    kill(spared, "gpu1")
    after = await again(spared, before)
    await observed(spared)
    assert rows(spared)[-1].stage == "started", "what the lost run sent proves nothing"
    sent.clear()
    await asyncio.sleep(first.COUNTED_S)
    source, target, *_ = after.endpoints
    sent |= {source: 1e8, target: 5e5}
    await observed(spared)
    assert "imported" not in rows(spared)[-1].marks, "a server copies a checkpoint to another"
    sent |= dict.fromkeys(after.endpoints, 5_000.0)
    await spared.until(lambda: "imported" in rows(spared)[-1].marks)
    sent |= dict.fromkeys(after.endpoints, 3e8)
    await observed(spared)
    sent |= dict.fromkeys(after.endpoints, 0.0)
    await observed(spared)
    assert rows(spared)[-1].stage == "started", "the first weights are spread"
    sent |= dict.fromkeys(after.endpoints, 6e8)
    await spared.until(lambda: rows(spared)[-1].stage == "over")
    view = view_of(rows(spared)[-1])
    assert view.import_s is not None and view.first_step_s is not None
    assert view.total_s is not None and view.own_s is not None
    assert view.total_s == pytest.approx(view.own_s + view.import_s + view.first_step_s)


async def test_a_job_that_sends_less_where_it_is_now_steps_too(
    spared: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, float] = {}
    sending(spared, sent, monkeypatch)
    before = await running(spared)
    sent |= dict.fromkeys(before.endpoints, 1e9)
    await observed(spared)
    sent.clear()
    kill(spared, "gpu1")
    after = await again(spared, before)
    sent |= dict.fromkeys(after.endpoints, 2.5e8)
    await spared.until(lambda: rows(spared)[-1].stage == "over")


async def test_a_first_step_that_comes_at_once_leaves_the_import_unknown(
    spared: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await running(spared)
    sending(spared, {e.name: 1e6 for e in spared.site.endpoints}, monkeypatch)
    await observed(spared)
    kill(spared, "gpu1")
    await again(spared, before)
    await spared.until(lambda: rows(spared)[-1].stage == "over")
    view = view_of(rows(spared)[-1])
    assert view.import_s is None and view.total_s is not None


async def observed(rack: Rack) -> None:
    """Wait until the controller has looked at its jobs twice."""
    looks = 0
    check = rack.parts.first.check

    async def counted() -> None:
        nonlocal looks
        await check()
        looks += 1

    rack.parts.first.check = counted  # type: ignore[method-assign]
    await rack.until(lambda: looks >= 2)
    rack.parts.first.check = check  # type: ignore[method-assign]
