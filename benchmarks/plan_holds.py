"""Measures how late the event loop is while a plan is computed: in a process, and in a thread.

    .venv/bin/python -m benchmarks.plan_holds --endpoints 4096 --repeat 5

prints one JSON document. A controller with simulated devices, on whose site every job is under two
aggregators, makes a plan of the whole site; then its planner alone is given a harder fabric of as
many endpoints (``plan_states.scattered``). Beside both a beat of the loop asks to be woken every
2 ms. ``late_ms`` is the latest of its wakes, by the wall clock; ``held_ms`` the most processor time
of the loop's thread between two of them; ``blocked_ms`` the most time in which it neither ran nor
waited for a processor although it was late: it waited for the interpreter's lock. Other load of
the machine touches the last two little. ``idle`` is
the same beat without a plan, so what the machine itself adds; ``queue`` a decision on 1,000 waiting
jobs in the queue's thread. Run it with ``nice -n -15`` on a machine with other load.
The goal is 50 ms, because the loop also controls
the fabric.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

sys.path.insert(0, str(Path(__file__).parent))

from plan_states import scattered as hard
from queue_look import full

from base.pools import Pool
from base.processes import Worker
from benchmarks.reconfig_overhead import scattered
from benchmarks.reconfig_sim import World, make_site
from controller.jobs.decisions import decide_and_explain
from controller.plans.line import PlanLine
from controller.schema.plans import PlanRequest
from controller.state.records import JobRecord, JobSpec
from scheduler.model import Limits, Locality
from scheduler.queue.model import ProjectShare, QueuePolicy
from scheduler.regroup.tasks import RegroupTask

GOAL_MS = 50.0
BEAT_S = 0.002
PORTS = 32
LIMIT_S = 2.0
WAITING = 1000


def scheduled_s() -> tuple[float, float]:
    """Return how long this thread ran, and how long it was ready and waited for a processor."""
    ran, queued, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    return int(ran) / 1e9, int(queued) / 1e9


@dataclass
class Beat:
    """The wakes of the loop beside one piece of work, in milliseconds."""

    late: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    took_s: float = 0.0

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Beat while the body runs."""
        task = asyncio.create_task(self._beat())
        await asyncio.sleep(10 * BEAT_S)
        self.late.clear()
        self.held.clear()
        self.blocked.clear()
        began = time.perf_counter()
        yield
        self.took_s = time.perf_counter() - began
        await asyncio.sleep(10 * BEAT_S)
        task.cancel()

    async def _beat(self) -> None:
        while True:
            due, (cpu, queued) = time.perf_counter() + BEAT_S, scheduled_s()
            await asyncio.sleep(BEAT_S)
            late = time.perf_counter() - due
            held, waited = (
                now - before for now, before in zip(scheduled_s(), (cpu, queued), strict=True)
            )
            self.late.append(1000 * late)
            self.held.append(1000 * held)
            self.blocked.append(1000 * max(late - held - waited, 0.0))


Work = Callable[[], Awaitable[object]]


async def measured(work: Work) -> Beat:
    """Return the beat beside one piece of work."""
    beat = Beat()
    gc.collect()
    gc.freeze()  # as the daemon does once it has recovered
    async with beat.beside():
        await work()
    return beat


@contextlib.asynccontextmanager
async def controller(endpoints: int, worker: Worker | None) -> AsyncIterator[Work]:
    """Yield a request for a plan of a whole controller."""
    with tempfile.TemporaryDirectory() as folder:
        site = make_site(endpoints)
        site = replace(site, scheduling=replace(site.scheduling, max_waiting=endpoints))
        world = World(site, Path(folder), worker)
        await scattered(world, "pause")
        request = PlanRequest(time_limit_s=LIMIT_S, force=True)

        async def plan() -> None:
            found = await world.service.desks.plans.make_plan(request)
            if not found.moves:
                raise SystemExit("the plan has no moves")

        await plan()  # what is made once is made
        yield plan
        await world.down()


@contextlib.asynccontextmanager
async def line(endpoints: int, worker: Worker | None) -> AsyncIterator[Work]:
    """Yield a plan of a hard fabric, without a controller."""
    planner = PlanLine(worker)
    task = RegroupTask(
        hard(endpoints // PORTS, PORTS, 0.95, "philly", 0), Limits(time_limit_s=LIMIT_S)
    )

    async def plan() -> None:
        if (await planner.compute(task, LIMIT_S + 30)).empty:
            raise SystemExit("the plan has no moves")

    await plan()
    yield plan
    await planner.close()


@contextlib.asynccontextmanager
async def queue(endpoints: int) -> AsyncIterator[Work]:
    """Yield a decision on a long queue."""
    pool = Pool("queue")
    fabric, running = full(endpoints, 64, 8, 0)
    waiting = [
        JobRecord(
            f"w{i}",
            JobSpec(name=f"w{i}", count=(48, 32, 16)[i % 3], locality=Locality.PREFERRED),
            "image",
            float(i),
        )
        for i in range(WAITING)
    ]

    def decide() -> object:
        return decide_and_explain(
            fabric,
            [*running, *waiting],
            [ProjectShare("default")],
            QueuePolicy(),
            lambda name: True,
            now=1000.0,
        )

    async def work() -> None:
        await pool.run(decide)

    yield work
    pool.close()


async def idle() -> None:
    """Do nothing for as long as a plan takes."""
    await asyncio.sleep(LIMIT_S)


async def rows(endpoints: int, repeat: int) -> list[dict[str, Any]]:
    """Return one row per arm; a row has one figure per turn."""
    beats: dict[str, list[Beat]] = {}
    for how in ("thread", "process"):
        made = [Worker("scheduler") if how == "process" else None for _ in range(2)]
        async with contextlib.AsyncExitStack() as stack:
            arms: dict[str, Work] = {f"idle, {how}": idle}
            enter = stack.enter_async_context
            arms[f"controller, {how}"] = await enter(controller(endpoints, made[0]))
            arms[f"hard plan, {how}"] = await enter(line(endpoints, made[1]))
            if how == "thread":
                arms["queue, thread"] = await enter(queue(endpoints))
            for _ in range(repeat):
                for name, work in arms.items():
                    beats.setdefault(name, []).append(await measured(work))
    return [
        {
            "arm": name,
            "took_s": [round(beat.took_s, 2) for beat in found],
            "late_ms": [round(max(beat.late), 1) for beat in found],
            "held_ms": [round(max(beat.held), 1) for beat in found],
            "blocked_ms": [round(max(beat.blocked), 1) for beat in found],
        }
        for name, found in beats.items()
    ]


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    found = asyncio.run(rows(given.endpoints, given.repeat))
    document = {
        "benchmark": "plan_holds",
        "endpoints": given.endpoints,
        "goal_ms": GOAL_MS,
        "load_average": os.getloadavg()[0],
        "rows": found,
    }
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
