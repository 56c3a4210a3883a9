"""Allocations over the whole controller: an import restores any exported allocation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.base.errors import ServiceError
from controller.schema.jobs import read_job
from controller.schema.plans import AllocatedJob, Allocation
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

PLACES = st.permutations(["as0", "as0", "as0", "as1", "as1", "as1"])


@settings(max_examples=6)
@given(PLACES)
def test_an_import_restores_any_exported_allocation(places: list[str]) -> None:
    async def walk(directory: Path) -> None:
        rack = Rack(directory)
        service = await rack.up()
        try:
            first = service.desks.allocation.export()
            wanted = Allocation(
                site="paper", homes={f"gpu{i}": home for i, home in enumerate(places)}
            )
            there = await service.desks.allocation.bring_back(wanted, dry_run=False, wait_s=60)
            assert there.transaction is None or there.transaction.state == "committed"
            assert service.desks.allocation.export().homes == wanted.homes
            read = Allocation.model_validate_json(first.model_dump_json())
            await service.desks.allocation.bring_back(read, dry_run=False, wait_s=60)
            assert service.desks.allocation.export().homes == first.homes
        finally:
            await rack.down()

    with TemporaryDirectory() as directory:
        asyncio.run(walk(Path(directory)))


@pytest.mark.parametrize(
    ("site", "homes", "word"),
    [
        ("other", {}, "for site other"),
        ("paper", {"gpu0": "as1", "gpu9": "as0"}, "no endpoint gpu9"),
        ("paper", {"gpu0": "as1", "gpu1": "as9"}, "no aggregator as9"),
        ("paper", {f"gpu{i}": "as0" for i in range(6)}, "port"),
        ("paper", {"gpu1": "as1", "gpu0": None}, "carries job red"),
    ],
)
async def test_an_impossible_import_touches_nothing(
    rack: Rack, site: str, homes: dict[str, str | None], word: str
) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    before = rack.desks.allocation.export().homes
    applied = len(rack.switch.applied)
    with pytest.raises(ServiceError, match=word):
        wanted = Allocation(site=site, homes=homes)
        await rack.desks.allocation.bring_back(wanted, dry_run=False, wait_s=60)
    assert rack.desks.allocation.export().homes == before
    assert len(rack.switch.applied) == applied


async def test_a_dry_run_lists_moves_and_jobs(rack: Rack) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    kept = rack.desks.allocation.export()
    assert [(j.name, j.endpoints) for j in kept.jobs] == [("red", ["gpu0"])]
    other = AllocatedJob(name="blue", endpoints=["gpu5"])
    wanted = kept.model_copy(update={"homes": {"gpu0": "as1"}, "jobs": [other]})
    view = await rack.desks.allocation.bring_back(wanted, dry_run=True, wait_s=0)
    assert [(m.endpoint, m.source, m.target) for m in view.moves] == [("gpu0", "as0", "as1")]
    assert view.jobs == ["red"]
    assert view.notes == ["job blue is no longer running", "job red is not in the file"]
    assert view.transaction is None


async def test_a_trace_shows_the_path_and_its_loss(rack: Rack) -> None:
    await rack.parts.power.measure()
    view = rack.desks.live.trace("gpu0")
    assert view.complete
    assert [hop.kind for hop in view.hops] == ["endpoint", "switch", "switch", "aggregator"]
    assert (view.loss_up_db, view.loss_down_db) == (1.0, 1.0)
    await rack.desks.allocation.bring_back(
        Allocation(site="paper", homes={"gpu0": None}), dry_run=False, wait_s=60
    )
    dark = rack.desks.live.trace("gpu0")
    assert (dark.complete, dark.reason) == (False, "no circuit: it is dark")
    rack.switch.away = True
    await rack.parts.power.measure()
    assert rack.desks.live.trace("gpu1").loss_up_db is None
    assert len(rack.desks.live.power()) > 6


async def test_the_feed_publishes_changes(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = rack.switch.apply

    async def with_mirrors_that_take_time(*given: Any, **named: Any) -> Any:
        await asyncio.sleep(0.3)
        return await apply(*given, **named)

    monkeypatch.setattr(rack.switch, "apply", with_mirrors_that_take_time)
    frames = aiter(rack.desks.feed.read(None))
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    await rack.desks.allocation.bring_back(
        Allocation(site="paper", homes={"gpu0": "as1"}), dry_run=False, wait_s=60
    )
    seen = []
    async with asyncio.timeout(60):
        async for item in frames:
            seen.append(item)
            hand = item.type == "transaction" and getattr(item.data, "cause", "") == "attach"
            ended = hand and getattr(item.data, "finished_at", None)
            if ended:
                break
    kinds = {item.type for item in seen}
    assert {"event", "changed", "transaction"} <= kinds
    changed = {(f.data.kind, f.data.name) for f in seen if f.type == "changed"}  # type: ignore[union-attr]
    assert ("job", "red") in changed
    moving = [f.data for f in seen if getattr(f.data, "cause", "") == "attach"]
    assert moving[0].circuits.make[0].endpoint == "gpu0"  # type: ignore[union-attr]
    assert moving[-1].state == "committed"  # type: ignore[union-attr]
    await frames.aclose()  # type: ignore[attr-defined]


async def test_a_move_that_brings_copies_together_is_made_with_a_warning(rack: Rack) -> None:
    kept = {"local": {"size_bytes": 2**30}, "copies": {"apart": "aggregator"}}
    asked = {"count": 2, "command": ["x"], "endpoints": ["gpu0", "gpu4"], "checkpoint": kept}
    await rack.desks.jobs.submit(read_job({"name": "red", **asked}))
    await rack.state("red", "running")
    await submit(rack, "blue", 1, endpoints=["gpu1"])  # keeps no copies
    await rack.state("blue", "running")
    homes = rack.desks.allocation.export().homes
    there = homes["gpu4"]
    assert there is not None and homes["gpu0"] != there
    said = f"2 endpoints of job red will be under {there}: with more than 1, not all of its"
    wanted = Allocation(site="paper", homes={"gpu0": there})
    found = await rack.desks.allocation.bring_back(wanted, dry_run=True, wait_s=0)
    assert [warning[: len(said)] for warning in found.warnings] == [said]
    other = Allocation(site="paper", homes={"gpu1": there})
    assert not (await rack.desks.allocation.bring_back(other, dry_run=True, wait_s=0)).warnings
    await rack.desks.plans.attach("gpu5", None, 60)  # a port
    moved = await rack.desks.plans.attach("gpu0", there, 60)
    assert (moved.state, moved.warnings) == ("committed", found.warnings)
