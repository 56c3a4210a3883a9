"""What a measurement knows of the fabric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from controller.measurements.places import pick
from sitefile import load_site
from sitefile.scheduling import SiteLinkRates
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER


async def test_rates_that_a_real_site_states_are_known(tmp_path: Path) -> None:
    site = load_site(PAPER)
    regroup = replace(site.scheduling.regroup, rates=SiteLinkRates(100e9, 400e9))
    stated = replace(site, scheduling=replace(site.scheduling, regroup=regroup))
    rack = Rack(tmp_path, stated)
    await rack.up()
    fabric = pick(rack.parts.state, [], {}, {})
    assert (fabric.access_bps, fabric.inter_aggregator_bps) == (100e9, 400e9)
    await rack.down()
