"""A job's own events say what a regroup did to its light."""

from __future__ import annotations

from controller.schema.plans import PlanRequest
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack


async def test_the_regroup_that_moved_a_job_is_among_its_events(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    done = await rack.desks.plans.apply(plan, wait_s=60)
    events = rack.desks.fabric.events(0, 1000)
    (said,) = [e for e in events if e.object == "job/red" and e.reason == "LightMoved"]
    mine = next(move for move in done.moves if move.endpoint in ("gpu0", "gpu1", "gpu2", "gpu3"))
    assert f"{mine.endpoint} from {mine.source} to {mine.target}" in said.message
    assert done.id in said.message and "dark" in said.message
