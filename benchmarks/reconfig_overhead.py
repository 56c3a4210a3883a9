"""Measures the overhead of the control plane over physics in a regroup, against a script.

``python -m benchmarks.reconfig_overhead`` prints one JSON document. Devices are simulated in this
process (``benchmarks.reconfig_devices``): optical switches take their bulk time, aggregators and
containers none, so that physics is minimal and the control plane's share is visible. Every second
endpoint moves, by the same plan in all arms. ``plan_s`` is the planner; ``apply_s`` the whole
transaction with its three durable writes; ``physical_s`` the time in which a device was busy;
``overhead`` the rest of both divided by physics; ``apply_cpu_s`` the controller's CPU time, which
does not depend on the machine's load; ``fdatasync_s`` the time of one bare disk write.
``complaints`` has the controller's warnings: do not quote a run with any. The rival makes the same
moves like published scripts: one circuit, one rule (an os-ken message) and one barrier at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import structlog

from benchmarks.reconfig_devices import MIRROR_S
from benchmarks.reconfig_sim import World, jobs_of, make_site
from controller.base.errors import ServiceError
from controller.devices.openflow.rules import compiler
from controller.devices.openflow.rules.program import diff
from controller.devices.openflow.session import messages
from controller.schema.plans import PlanRequest
from controller.schema.submit.request import JobRequest
from controller.transaction.circuits import Link, rewire
from ocs_driver import CircuitRequest
from scheduler.model import Policy, RankOrder

SIZES = (6, 16, 256, 4096)
PLAN_LIMIT_S = 10.0
SYNCS = 20

Document = dict[str, Any]

COMPLAINTS: list[str] = []
"""Warnings and errors of the controller. Do not quote a run with any."""


async def scattered(world: World, policy: str) -> None:
    """Start every job on its endpoints' homes of the site file."""
    await world.up()
    for name, ends in jobs_of(world.site).items():
        await world.service.desks.jobs.submit(
            JobRequest(
                name=name,
                count=len(ends),
                endpoints=ends,
                policy=Policy(policy),
                rank_order=RankOrder.PLACED,
            )
        )
    while any(job.state != "running" for job in await world.service.desks.jobs.jobs()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def ours(endpoints: int, policy: str) -> Document:
    """Plan and apply one regroup of the whole site."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(make_site(endpoints), Path(folder))
        await scattered(world, policy)
        began = time.monotonic()
        solver_s, optimal = await planned_in(world)
        plan = await world.together()
        began += time.monotonic() - began - solver_s  # as if that plan had been available at once
        planned = time.monotonic()
        mods = world.aggregators.flow_mods
        writes = world.store.commits
        cpu = time.process_time()
        done = await world.service.desks.plans.apply(plan, wait_s=300)
        ended, cpu_s = time.monotonic(), time.process_time() - cpu
        if done.state != "committed":
            raise SystemExit(f"{endpoints}: {done.state}: {done.error}")
        physical_s = world.clock.busy_s(planned)
        spent = {p.name: round((p.finished_at or 0) - p.started_at, 4) for p in done.phases}
        result = {
            "policy": policy,
            "moves": len(plan.moves),
            "flow_mods": world.aggregators.flow_mods - mods,
            "plan_s": round(planned - began, 4),
            "plan_optimal": optimal,
            "apply_s": round(ended - planned, 4),
            "apply_cpu_s": round(cpu_s, 4),
            "durable_writes": world.store.commits - writes,
            "fdatasync_s": round(fdatasync_s(Path(folder)), 5),
            "physical_s": round(physical_s, 4),
            "overhead_apply": round((ended - planned - physical_s) / physical_s, 3),
            "overhead": round((ended - began - physical_s) / physical_s, 3),
            "phases_s": spent,
        }
        await world.down()
        return result


def fdatasync_s(folder: Path) -> float:
    """Return the median time in which the disk makes one page durable."""
    took = []
    with (folder / "page").open("wb") as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            file.flush()
            began = time.monotonic()
            os.fdatasync(file.fileno())
            took.append(time.monotonic() - began)
    return statistics.median(took)


async def planned_in(world: World) -> tuple[float, bool | None]:
    """Return the planner's time, and whether it proved its plan; None if it gave up."""
    began = time.monotonic()
    try:
        plan = await world.service.desks.plans.make_plan(PlanRequest(time_limit_s=PLAN_LIMIT_S))
    except ServiceError:
        return time.monotonic() - began, None
    return time.monotonic() - began, plan.optimal


async def sequential(endpoints: int) -> Document:
    """Make the same moves one command at a time."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(make_site(endpoints), Path(folder))
        await scattered(world, "live")
        plan = await world.together()
        state = world.service.features.core.state
        moves = {move.endpoint: move.target for move in plan.moves}
        rewiring = rewire(world.site, state.light.attachments, moves)
        jobs = {job.name: job.endpoints for job in state.jobs.values()}
        await world.down()  # else it would revert the script's changes
        began = time.monotonic()
        circuits = 0
        for change in rewiring.changes:
            driver = world.switches[change.switch]
            for link in change.delete:
                await driver.apply([request(link)], [])
            for link in change.make:
                await driver.apply([], [request(link)])
                circuits += 1
        wired = time.monotonic()
        rules = 0
        wanted = compiler.compile(world.site, state.epoch + 1, rewiring.attachments, jobs)
        for name, program in wanted.items():
            steps = diff(world.aggregators.programs[name], program)
            for rule in (*steps.remove, *steps.add):
                messages.MessageBatch(messages.by_os_ken(rule), (rule,)).stamped([1])
                await asyncio.sleep(0)  # the barrier's answer
                rules += 1
        ended = time.monotonic()
        return {
            "circuits": circuits,
            "rules": rules,
            "circuits_s": round(wired - began, 4),
            "rules_s": round(ended - wired, 4),
            "apply_s": round(ended - began, 4),
            "mirror_s": MIRROR_S,
        }


def complaint(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Record a warning or an error of the controller."""
    COMPLAINTS.append(" ".join(f"{key}={value}" for key, value in event.items()))
    raise structlog.DropEvent


def request(link: Link) -> CircuitRequest:
    """Return the driver's request for a link."""
    return CircuitRequest(link.a, link.b, name=link.endpoint)


async def run(sizes: list[int]) -> list[Document]:
    """Run both arms at every size."""
    rows = []
    for size in sizes:
        live, pause = await ours(size, "live"), await ours(size, "pause")
        script = await sequential(size)
        rows.append(
            {
                "endpoints": size,
                "live": live,
                "pause": pause,
                "sequential": script,
                "speedup": round(script["apply_s"] / live["apply_s"], 1),
            }
        )
    return rows


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=list(SIZES))
    options = parser.parse_args()
    structlog.configure(
        processors=[complaint], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
    )
    rows = asyncio.run(run(options.sizes))
    machine = {"cores": os.cpu_count()}
    found = {"machine": machine, "simulated": True, "results": rows, "complaints": COMPLAINTS}
    print(json.dumps(found))
    if COMPLAINTS:
        raise SystemExit("the controller reported warnings")


if __name__ == "__main__":
    main()
