"""Whatever can never start is refused at once, and says what the site can do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.base.errors import ServiceError
from scheduler.queue.model import ProjectShare
from sitefile import CabledSite, Scheduling, load_site
from sitefile.recovery import RecoveryPolicy
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER


def paper() -> CabledSite:
    return load_site(PAPER)


def models() -> CabledSite:
    site = paper()
    cables = tuple(
        replace(c, model="V100" if c.name < "gpu4" else "A100", memory_bytes=2**34)
        for c in site.endpoints
    )
    return replace(site, endpoints=cables)


def with_spare() -> CabledSite:
    return replace(paper(), recovery=RecoveryPolicy(spares=("gpu5",)))


def with_quota() -> CabledSite:
    return replace(paper(), scheduling=Scheduling(projects=(ProjectShare("default", 1.0, 3),)))


def one_port_each() -> CabledSite:
    """Each aggregator has one fiber: two endpoints can have light."""
    site = paper()
    less = tuple(replace(a, fibers=dict(list(a.fibers.items())[:1])) for a in site.aggregators)
    return replace(site, aggregators=less)


NEVER: list[tuple[Any, int, dict[str, Any], str]] = [
    (paper, 2, {"spares": 9}, "2 endpoints and 9 spares beside them requested, site paper has 6"),
    (paper, 6, {"spares": 1}, "6 endpoints and 1 spare beside them requested, site paper has 6"),
    (paper, 1, {"endpoints": ["gpu0"], "spares": 6}, "1 endpoints and 6 spares"),
    (models, 3, {"model": "V100", "spares": 2}, "3 V100 endpoints and 2 spares beside them"),
    (models, 1, {"model": "V100", "endpoints": ["gpu5"]}, "gpu5 does not match"),
    (with_spare, 6, {}, "site paper has 5 beside 1 that it keeps as spares"),
    (with_spare, 1, {"endpoints": ["gpu5"]}, "gpu5 is kept as a spare of the site"),
    (with_quota, 2, {"spares": 2}, "2 endpoints and 2 spares beside them requested, the quota"),
    (one_port_each, 3, {}, "aggregators have ports for 2"),
]


@pytest.mark.parametrize(
    ("site", "count", "asked", "why"), NEVER, ids=[f"{why[:40]}" for *_, why in NEVER]
)
async def test_what_can_never_start_is_refused_at_once(
    tmp_path: Path, site: Any, count: int, asked: dict[str, Any], why: str
) -> None:
    rack = Rack(tmp_path, site())
    await rack.up()
    with pytest.raises(ServiceError) as refused:
        await submit(rack, "red", count, **asked)
    assert refused.value.code == "invalid"
    assert why in refused.value.message
    assert refused.value.hint
    assert not rack.see.jobs.values()
    await rack.down()


@pytest.mark.parametrize("asked", [{"spares": 9, "spares_needed": False}, {"spares": 4}])
async def test_what_may_start_once_others_have_ended_waits(
    rack: Rack, asked: dict[str, Any]
) -> None:
    await submit(rack, "first", 6)
    await rack.state("first", "running")
    job = await submit(rack, "red", 2, **asked)
    assert job.state == "pending"


async def test_each_job_that_asks_the_same_is_refused_by_its_own_name(tmp_path: Path) -> None:
    rack = Rack(tmp_path, one_port_each())
    await rack.up()
    for name in ("red", "blue"):
        with pytest.raises(ServiceError, match="ports for 2") as refused:
            await submit(rack, name, 3)
        assert refused.value.object == f"job/{name}"
    await rack.down()
