"""Cool-down, pause budgets, worth and automatic regroups of the controller, over fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from controller.base.errors import ServiceError
from controller.jobs.admission import spec_of
from controller.plans.automatic import Regrouper
from controller.schema.plans import PlanRequest, PlanView, TransactionView
from controller.schema.submit.request import JobRequest
from controller.state.records import JobRecord
from controller.telemetry.steps import StepMeter, roads_of
from controller.views.jobs import steps_view
from scheduler.model import Job
from scheduler.policy.budgets import PauseBudget
from scheduler.policy.triggers import TriggerPolicy
from sitefile import CabledSite, RegroupPolicy, Scheduling, SiteLinkRates, load_site
from testbed.simulated.work import WorkEvent
from tests.parts.controller.jobs import regrouper, scattered, submit
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

AT_ONCE = TriggerPolicy(excess_span=1, excess_for_s=0.0, min_interval_s=0.05)


def paper(**regroup: object) -> CabledSite:
    policy = RegroupPolicy(**regroup)  # type: ignore[arg-type]
    return replace(load_site(PAPER), scheduling=Scheduling(regroup=policy))


async def reasons(rack: Rack, *wanted: str) -> list[str]:
    """Return the controller's events about its own regroups."""
    return [
        f"{e.reason}: {e.message}" for e in rack.desks.fabric.events(0, 1000) if e.reason in wanted
    ]


async def test_automatic_regroups_are_off_by_default(rack: Rack) -> None:
    await scattered(rack)
    assert await rack.parts.regrouper.check_triggers() is None
    assert rack.desks.jobs.job("red").excess_span == 1


async def test_threshold_regroups_and_says_why(tmp_path: Path) -> None:
    rack = Rack(tmp_path, paper(triggers=AT_ONCE))
    await rack.up()
    try:
        await scattered(rack)

        async def together() -> bool:
            return rack.desks.jobs.job("red").excess_span == 0

        await rack.until(together)
        told = await reasons(rack, "RegroupTriggered", "RegroupChosen")
        assert "threshold: excess span has been 1 or more" in told[0]
        chosen = [text for text in told if text.startswith("RegroupChosen")]
        assert "carries out plan" in chosen[0]
        assert "GPU seconds for" in chosen[0]
    finally:
        await rack.down()


async def test_pending_job_triggers_room(tmp_path: Path) -> None:
    triggers = TriggerPolicy(pending=True, min_interval_s=0.05)
    rack = Rack(tmp_path, paper(triggers=triggers))
    await rack.up()
    try:
        await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"], rank_order="placed")
        await rack.state("red", "running")
        await submit(rack, "blue", 4, locality="strict")
        await rack.state("blue", "running")
        assert rack.desks.jobs.job("blue").span == 1
        told = await reasons(rack, "RegroupTriggered")
        assert "pending: job blue waits for 1 moves of running endpoints" in told[0]
    finally:
        await rack.down()


async def test_a_skipped_regroup_is_reported(tmp_path: Path) -> None:
    rack = Rack(tmp_path, paper(triggers=AT_ONCE, accept_open=False))
    await rack.up()
    try:
        await scattered(rack)

        async def skipped() -> bool:
            told = await reasons(rack, "RegroupSkipped")
            return any("open until a second placement was measured" in text for text in told)

        await rack.until(skipped)
        assert rack.desks.jobs.job("red").excess_span == 1
    finally:
        await rack.down()


async def stale(rack: Rack, times: int) -> list[str]:
    """Make the first ``times`` plans stale; return the ids of the plans that were tried."""
    apply, tried = rack.parts.plans.apply, list[str]()

    async def moved_first(plan: PlanView, wait_s: float) -> TransactionView:
        tried.append(plan.id)
        if len(tried) <= times:
            raise ServiceError("conflict", "the fabric moved since this plan was made")
        return await apply(plan, wait_s)

    rack.parts.plans.apply = moved_first  # type: ignore[method-assign, assignment]
    return tried


@pytest_asyncio.fixture
async def by_hand(rack: Rack) -> Rack:
    """A scattered job."""
    await scattered(rack)
    await rack.until(lambda: not rack.see.searches)  # the solver has warmed up
    return rack


def once_an_hour(rack: Rack) -> Regrouper:
    return regrouper(rack, replace(AT_ONCE, min_interval_s=3600.0))


@pytest.mark.parametrize(("times", "plans"), [(0, 1), (2, 3), (9, 3)])
async def test_a_stale_plan_is_replaced_at_once_a_few_times(
    by_hand: Rack, times: int, plans: int
) -> None:
    tried = await stale(by_hand, times)
    assert await once_an_hour(by_hand).check_triggers() is not None
    assert len(set(tried)) == len(tried) == plans
    (text,) = await reasons(by_hand, "RegroupChosen", "RegroupSkipped")
    assert text.startswith("RegroupChosen" if times < plans else "RegroupSkipped")


async def test_a_trigger_waits_while_a_plan_is_computed(by_hand: Rack) -> None:
    plans, regroups = by_hand.parts.plans, once_an_hour(by_hand)
    go = WorkEvent()

    def waits(_: Callable[[], float]) -> bool:
        go.wait()
        return True

    asked = asyncio.create_task(plans._line.compute(waits, 600))
    await by_hand.until(lambda: plans.busy)
    assert await regroups.check_triggers() is None
    go.set()
    assert await asked
    assert await regroups.check_triggers() is not None


async def test_cooldown_and_budget_leave_jobs_alone(tmp_path: Path) -> None:
    rack = Rack(tmp_path, paper(budget=PauseBudget(cooldown_s=3600.0)))
    await rack.up()
    try:
        red = await scattered(rack)
        plan = await rack.desks.plans.make_plan(PlanRequest())
        assert plan.left_alone == []
        await rack.desks.plans.apply(plan, wait_s=60)
        after = rack.desks.jobs.job("red")
        assert after.pauses == 1
        # Scattered again by hand: red is in its cool-down now.
        other = {"as0": "as1", "as1": "as0"}[str(after.homes[0])]
        request = other
        moved = await rack.desks.plans.attach(after.endpoints[0], request, 10)
        assert moved.state == "committed"
        again = await rack.desks.plans.make_plan(PlanRequest())
        assert again.empty
        (alone,) = again.left_alone
        assert alone.job == "red"
        assert "cool-down is 3600 s" in alone.reason
        assert alone.until
        await rack.down()
        await rack.up()  # the history outlives a restart
        assert (await rack.desks.plans.make_plan(PlanRequest())).empty
        forced = await rack.desks.plans.make_plan(PlanRequest(force=True))
        assert not forced.empty
        assert red.name in forced.jobs_paused
    finally:
        await rack.down()


async def test_plan_shows_gain_worth_and_dark_time(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert plan.worth
    assert plan.worth.verdict == "open"
    assert plan.worth.gain_low_gpu_s == 0.0 < plan.worth.gain_high_gpu_s
    assert plan.worth.cost_gpu_s > 0
    red = next(gain for gain in plan.predicted_gain if gain.job == "red")
    assert red.step_speedup_low == 1.0
    assert red.step_speedup_high == pytest.approx(3 * 250 / 114)  # blue's ring shares the link
    assert red.placements_measured == 0
    assert all(budget.dark_s > 0 for budget in plan.budgets)


def record(site: CabledSite, endpoints: tuple[str, ...]) -> JobRecord:
    request = JobRequest(name="red", count=len(endpoints))
    del site
    return JobRecord(
        "red",
        spec_of(request),
        "image",
        0.0,
        state="running",
        endpoints=endpoints,
        epoch=3,
        started_at=0.0,
    )


def test_meter_learns_a_point_from_two_placements() -> None:
    """The job's step takes 1 s of compute and 1.5 s on the wire at the full rate."""
    site = load_site(PAPER)
    roads = roads_of(site)
    assert roads
    names = ("gpu0", "gpu1", "gpu2", "gpu3")
    job, members = Job("red", names), record(site, names)
    apart = {"gpu0": "as0", "gpu1": "as0", "gpu2": "as1", "gpu3": "as1"}
    together = dict.fromkeys(names, "as0")
    wire, compute, sent = 1.5, 1.0, 0.0

    def tx(endpoint: str) -> float:
        del endpoint
        return sent

    meter = StepMeter(site, tx)
    rates = {"apart": roads.rates({"red": names}, apart)["red"], "together": 1.0}
    truth = {key: compute + wire / rate for key, rate in rates.items()}
    for key, homes in (("apart", apart), ("together", together)):
        sent = wire * roads.access_bps / truth[key]
        for _ in range(3):
            meter.observe([members], homes, frozenset())
        found = meter.speedups([job], apart, together)
        assert found
        ratio, placements = found["red"]
        real = truth["apart"] / truth["together"]
        assert placements == (1 if key == "apart" else 2)
        assert ratio.low <= real * (1 + 1e-9)
        assert ratio.high >= real * (1 - 1e-9)
        assert ratio.exact == (placements == 2)
    view = steps_view(members, meter, meter.rates([members], together))
    assert view
    assert view.busy_fraction == pytest.approx(wire / truth["together"])
    assert view.unidentified == ["compute_s", "hide"]


def test_meter_takes_no_mean_over_a_move_or_silence() -> None:
    site = load_site(PAPER)
    names = ("gpu0", "gpu1")
    members = record(site, names)
    sent: list[float | None] = [100e6]
    meter = StepMeter(site, lambda endpoint: sent[0])
    one, other = dict.fromkeys(names, "as0"), {"gpu0": "as0", "gpu1": "as1"}
    for homes in (one, other, one, other):
        meter.observe([members], homes, frozenset())
    meter.observe([members], other, frozenset({"red"}))
    sent[0] = 0.0
    meter.observe([members], other, frozenset())
    sent[0] = None
    meter.observe([members], other, frozenset())
    view = steps_view(members, meter, meter.rates([members], one))
    assert view
    assert view.placements == 0


def test_a_site_without_rates_predicts_nothing() -> None:
    site = replace(load_site(PAPER), emulation=None)
    assert roads_of(site) is None
    meter = StepMeter(site, lambda endpoint: 1e6)
    assert meter.speedups([Job("red", ("gpu0",))], {}, {}) is None
    given = replace(
        site, scheduling=Scheduling(regroup=RegroupPolicy(rates=SiteLinkRates(1e9, 4e9)))
    )
    roads = roads_of(given)
    assert roads
    assert roads.access_bps == 1e9
