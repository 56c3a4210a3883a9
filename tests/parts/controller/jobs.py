"""Submits jobs to a rack in memory, and waits for them."""

from __future__ import annotations

from dataclasses import replace

from controller.plans.automatic import Regrouper
from controller.schema.jobs import JobView, read_job
from controller.schema.plans import (
    PlanRequest,
    PlanView,
)
from scheduler.model import Policy
from scheduler.policy.triggers import TriggerPolicy
from tests.parts.controller.rack import Rack


async def submit(rack: Rack, name: str, count: int, **fields: object) -> JobView:
    return await rack.desks.jobs.submit(
        read_job({"name": name, "count": count, "command": ["true"], **fields})
    )


async def scattered(rack: Rack, policy: Policy = Policy.PAUSE) -> JobView:
    """Start two jobs as in the paper's first case: red's four GPUs are under both aggregators."""
    ends = ["gpu0", "gpu2", "gpu1", "gpu3"]
    await submit(rack, "red", 4, endpoints=ends, policy=policy, rank_order="placed")
    await submit(rack, "blue", 2, policy=policy)
    await rack.state("red", "running")
    await rack.state("blue", "running")
    return rack.desks.jobs.job("red")


async def plan_and_begin(rack: Rack) -> PlanView:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    await rack.desks.plans.apply(plan, wait_s=0)
    return plan


async def waiting(rack: Rack, *names: str) -> list[JobView]:
    """Return the jobs once the queue has recorded why each of them waits."""

    async def told() -> bool:
        return all(rack.desks.jobs.job(name).wait for name in names)

    await rack.until(told)
    return [rack.desks.jobs.job(name) for name in names]


async def until(rack: Rack, name: str, **wanted: object) -> JobView:
    """Wait until the job's view has these values."""

    async def reached() -> bool:
        job = rack.desks.jobs.job(name)
        return all(getattr(job, key) == value for key, value in wanted.items())

    await rack.until(reached)
    return rack.desks.jobs.job(name)


async def events(rack: Rack, reason: str) -> list[str]:
    return [e.message for e in rack.desks.fabric.events(0, 500) if e.reason == reason]


def regrouper(rack: Rack, triggers: TriggerPolicy) -> Regrouper:
    """Return one with these triggers that acts when it is asked; the rack's own has others."""
    state, site = rack.parts.state, rack.site
    policy = replace(site.scheduling.regroup, triggers=triggers)
    state.site = replace(site, scheduling=replace(site.scheduling, regroup=policy))
    return Regrouper(state, rack.parts.plans, rack.parts.meter, rack.parts.rollouts)
