"""A controller's life that may end at any failpoint, and what its successor must find."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from controller.devices.engine import RankState
from controller.devices.openflow.rules.compiler import compile as compile_flows
from controller.devices.openflow.rules.program import diff
from controller.schema.plans import PlanRequest
from controller.state.records import QUARANTINE, Quarantine
from controller.state.writes import PutRecords
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

Homes = Mapping[str, str | None]


class Reaper:
    """Lets a controller die at the ``at``-th point it passes: nothing it does has effect after."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.passed: list[str] = []
        self.died = asyncio.Event()

    async def __call__(self, point: str) -> None:
        if not self.died.is_set():
            self.passed.append(point)
            if self.at is None or len(self.passed) < self.at:
                return
            self.died.set()
        await asyncio.Event().wait()  # every other task of the dead hangs at its next point


async def story(rack: Rack, seen: list[Homes]) -> None:
    """Start, two jobs, a regroup that pauses one and restarts the other, a cancel, a release.

    ``seen`` gets every set of homes that is right at some moment.
    """
    seen.append(rack.site.homes)
    await rack.up()
    ends = ["gpu0", "gpu2", "gpu1", "gpu3"]
    await submit(rack, "red", 4, endpoints=ends, rank_order="placed")
    await asyncio.sleep(0.001)  # jobs of the same moment are in the order of their names
    await submit(rack, "blue", 2, policy="restart")
    await rack.state("red", "running")
    await rack.state("blue", "running")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    seen.append(plan.homes_after)
    assert (await rack.desks.plans.apply(plan, wait_s=60)).state == "committed"
    await rack.desks.jobs.cancel("blue")
    state = rack.parts.state
    state.light.quarantine.put(Quarantine("as0/4", "a test", 0.0))
    await state.store.commit(PutRecords(QUARANTINE, [state.light.quarantine["as0/4"]]))
    await rack.desks.quarantine.release("as0/4")


async def settle(rack: Rack) -> None:
    """Wait until a restarted controller has nothing left to put right."""

    async def settled() -> bool:
        jobs = await rack.desks.jobs.jobs()
        state = rack.see
        return (
            not state.transactions.running
            and not state.jobs.owed
            and all(view.finished_at is not None for view in state.transactions.finished.values())
            and all(job.state in ("running", "cancelled", "failed") for job in jobs)
            and {s.job for s in rack.engine.statuses.values()}
            == {job.name for job in jobs if job.state == "running"}
            and rack.desks.health.health().status == "ok"
            and _flows_as_intended(rack)
        )

    await rack.until(settled)


def _flows_as_intended(rack: Rack) -> bool:
    state = rack.see
    now = state.forwarding()
    wanted = compile_flows(rack.site, now.epoch, now.attachments, now.jobs, now.held)
    return not any(diff(rack.aggregators.programs[name], wanted[name]) for name in wanted)


async def check(rack: Rack, seen: list[Homes]) -> None:
    state = rack.see
    ports = [port for c in rack.switch.circuits for port in (c.a, c.b)]
    assert len(ports) == len(set(ports)), "the map is a matching"
    light = rack.aggregators.light()
    assert light == state.light.attachments, "the light is where the intent says"
    homes = {e: light[e].aggregator for e in light}
    assert homes in seen, "the old epoch or the new one, never a mix"
    assert not state.light.held, "nothing stays drained"
    assert _flows_as_intended(rack), "flows = intent"
    # A cancel that was never acknowledged may have stopped the job, which then counts as failed.
    assert "red" not in state.jobs or state.jobs["red"].state == "running"
    running = {job.name for job in state.jobs.values() if job.state == "running"}
    assert {s.job for s in rack.engine.statuses.values()} == running, "containers = intent"
    for job in running:
        assert rack.engine.states(job) == {RankState.RUNNING}, "every job thawed"
        ranks = {s.endpoint for s in rack.engine.statuses.values() if s.job == job}
        assert ranks == set(state.jobs[job].endpoints)
