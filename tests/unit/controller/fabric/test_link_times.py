"""Links that need seconds from light to carrier: patience, blame, prediction, learning."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.devices.aggregators import AttachPoint
from controller.devices.engine import RankState
from controller.fabric.link_times import LinkTimes
from controller.schema.plans import PlanRequest, PlanView
from controller.transaction.circuits import EndpointEnd
from scheduler.model import Policy
from sitefile import CabledSite, load_site
from sitefile.links import LinkPolicy
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

USUAL_S, SLOW_S = 6.0, 12.0


def slow_site(slow: str = "gpu1") -> CabledSite:
    site = load_site(PAPER)
    endpoints = tuple(replace(e, optic="slow") if e.name == slow else e for e in site.endpoints)
    links = LinkPolicy({"default": USUAL_S, "slow": SLOW_S})
    return replace(site, endpoints=endpoints, links=links)


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Rack]:
    """The paper's rack; gpu1's link needs 12 s, every other one 6 s."""
    rack = Rack(tmp_path, slow_site())
    await rack.up()
    fiber = rack.site.endpoint("gpu1").fiber.port
    rack.switch.up_s = lambda a, b: 11.9 if a == fiber else 5.9
    yield rack
    await rack.down()


async def planned(rack: Rack, policy: Policy = Policy.PAUSE) -> PlanView:
    await scattered(rack, policy)
    return await rack.desks.plans.make_plan(PlanRequest())


async def test_slow_links_are_waited_for_and_their_ports_stay_in_use(slow: Rack) -> None:
    plan = await planned(slow)
    moved = {move.endpoint for move in plan.moves}
    longest = SLOW_S if "gpu1" in moved else USUAL_S
    assert plan.predicted_link_up_s == longest
    assert plan.link_up_source == "configured"
    assert plan.predicted_dark_time_s > longest
    done = await slow.desks.plans.apply(plan, wait_s=60)
    assert (done.state, done.quarantined_ports) == ("committed", [])
    assert longest - 0.5 < max(done.dark_time_s.values()) <= plan.predicted_dark_time_s


async def test_a_live_job_is_paused_for_links_that_it_does_not_tolerate(slow: Rack) -> None:
    plan = await planned(slow, Policy.LIVE)
    verdicts = {budget.job: (budget.verdict, budget.policy) for budget in plan.budgets}
    assert verdicts["red"] == ("downgraded", Policy.PAUSE)


async def test_a_carrier_that_goes_again_is_waited_for_again(slow: Rack) -> None:
    slow.switch.flap_at_s = 0.5
    done = await slow.desks.plans.apply(await planned(slow), wait_s=60)
    assert (done.state, done.quarantined_ports) == ("committed", [])


async def test_a_link_that_never_comes_is_blamed_when_light_enters(slow: Rack) -> None:
    plan = await planned(slow)
    first = plan.circuits.make[0]
    slow.switch.dull = {(first.a, first.b)}
    done = await slow.desks.plans.apply(plan, wait_s=90)
    bad = f"{first.aggregator}/{first.aggregator_port}"
    assert (done.state, done.quarantined_ports) == ("rolled_back", [bad])
    assert slow.engine.states("red") == {RankState.RUNNING}


@pytest.mark.parametrize("in_dbm", [-55.0, None])
async def test_an_endpoint_without_light_is_never_the_ports_fault(
    slow: Rack, in_dbm: float | None
) -> None:
    plan = await planned(slow)
    first = plan.circuits.make[0]
    slow.switch.dull = {(first.a, first.b)}
    slow.switch.in_dbm = {first.a: in_dbm}
    done = await slow.desks.plans.apply(plan, wait_s=90)
    assert (done.state, done.quarantined_ports) == ("rolled_back", [])
    assert "NIC silent" in done.error


async def test_longer_links_than_the_site_file_says_are_learnt(rack: Rack) -> None:
    rack.switch.up_s = lambda a, b: 2.0
    done = await rack.desks.plans.apply(await planned(rack), wait_s=60)
    assert done.state == "committed"
    known = rack.parts.mover.links.of(EndpointEnd("gpu0"), AttachPoint("as0", 1))
    assert known.up_s == pytest.approx(3.0, abs=0.2)
    assert known.source.startswith("learnt from ")


def test_what_is_learnt_is_the_99th_percentile_plus_half_of_the_last_two_hundred() -> None:
    times = LinkTimes(slow_site())
    end, point = EndpointEnd("gpu0"), AttachPoint("as0", 1)
    times.add(end, point, 50.0)
    for _ in range(200):
        times.add(end, point, 8.0)
    assert times.of(end, point).up_s == 12.0
    assert times.of(EndpointEnd("gpu1"), point).source == "configured"


def test_links_that_come_up_at_once_need_no_allowance() -> None:
    times = LinkTimes(load_site(PAPER))
    end, point = EndpointEnd("gpu0"), AttachPoint("as0", 1)
    times.add(end, point, 0.05)
    assert times.of(end, point).up_s == 0.0
