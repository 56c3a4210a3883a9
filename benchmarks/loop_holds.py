"""Measures how long one look of the controller holds its loop when users have made it large.

``python -m benchmarks.loop_holds`` prints one JSON document with three holds, each the longest
iteration of the event loop in CPU time of its thread (independent of the machine's load), the
shortest of three tries: the look at 128 jobs of which one rank has written 250 steps and the other
none; the check of 256 time limits that are all near; the reading of 12 full recorders of one
server. Devices are simulated. The goal is 50 ms each, because the loop also controls the fabric.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import structlog

from agentlink.values import Record
from base import clock
from controller.comms.keeper import CommsKeeper
from controller.devices.agents.messages import recordings_of
from controller.devices.engine import ExecutionEngine, Recording, RecordingLimits
from controller.jobs.limits import TimeLimits
from controller.ranks.ends import JobEnder
from controller.state.events import KEPT
from controller.state.records import JobRecord, JobSpec
from protos import agent_pb2 as pb
from scheduler.model import TimeLimitAction
from tests.parts.controller.checkpoint_rig import Rig, site_of
from tests.parts.measure.hostile import full_recording

CHECKPOINTING = 128
STEPS = 250
LIMITED = 256
RECORDERS = 12
GOAL_S = 0.05
TRIES = 3


class Agents:
    """Servers that answer with these recordings; they are read in a thread, as real ones are."""

    def __init__(self, reply: pb.RecordingsReply) -> None:
        self._reply = reply

    async def recordings(
        self, timeout_s: float, job: str = "", limits: RecordingLimits | None = None
    ) -> list[Recording]:
        """Return the recordings of ``srv0``."""
        del timeout_s, job
        jobs = None if limits is None else limits.jobs
        return await asyncio.to_thread(recordings_of, "srv0", self._reply, clock.time(), jobs)


class Ender:
    """Ends no job."""

    def is_ending(self, name: str) -> bool:
        """Return that it is not."""
        del name
        return False


async def longest_hold(work: Callable[[], Awaitable[None]]) -> float:
    """Return the longest iteration of the loop during ``work``, in seconds of CPU time.

    What was made before is not examined for garbage, as in the daemon after its start: a full
    collection of this benchmark's whole world takes 0.1 s, whenever it happens to come.
    """
    held = 0.0
    gc.collect()
    gc.freeze()

    async def beat() -> None:
        nonlocal held
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            held, last = max(held, time.thread_time() - last), time.thread_time()

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    held = 0.0
    await work()
    await asyncio.sleep(0)
    beating.cancel()
    gc.unfreeze()
    return held


async def checkpoints() -> float:
    """Return the hold of the look at jobs of which a rank never writes."""
    rig = Rig(site_of(2 * CHECKPOINTING))
    await rig.up()
    for number in range(CHECKPOINTING):
        name, ends = f"j{number}", [f"gpu{4 * number}", f"gpu{4 * number + 2}"]
        rig.submit(name, ends)
        await rig.start(name, ends)
        for step in range(STEPS):
            rig.write(name, step, ranks=[0])
        await rig.quiet()
    held = await longest_hold(rig.keeper.check)
    await rig.crash()
    return held


async def time_limits() -> float:
    """Return the hold of the first check after a start, when all limits are near."""
    rig = Rig()
    await rig.up()
    state, now = rig.state, rig.now
    spec = JobSpec(count=1, time_limit_s=1000.0, time_limit_action=TimeLimitAction.END)
    for number in range(LIMITED):
        name = f"j{number}"
        record = JobRecord(name, spec, "image:1", now, "running", endpoints=("gpu0",), epoch=1)
        state.jobs.put(replace(record, started_at=now - 950.0))
    for number in range(KEPT):
        state.events.add("info", f"job/j{number % LIMITED}", "JobStarted", "gpu0 under as0")
    limits = TimeLimits(state, cast(JobEnder, Ender()), lambda name: False, lambda: now)

    async def check() -> None:
        limits.check()

    held = await longest_hold(check)
    await rig.crash()
    return held


async def recorders() -> float:
    """Return the hold of reading one job whose ranks fill their recorders' files."""
    rig = Rig(site_of(1, RECORDERS))
    await rig.up()
    ends = tuple(f"gpu{number}" for number in range(RECORDERS))
    spec = JobSpec(count=RECORDERS, record=Record.FULL)
    record = JobRecord("red", spec, "image:1", rig.now, "running", endpoints=ends, epoch=1)
    rig.state.jobs.put(record)
    reply = pb.RecordingsReply(
        recordings=[full_recording("red", rank, 1) for rank in range(RECORDERS)]
    )
    keeper = CommsKeeper(rig.state, cast(ExecutionEngine, Agents(reply)))
    held = await longest_hold(keeper.read)
    if not keeper.communicates(record):
        raise RuntimeError("nothing was read")
    await rig.crash()
    return held


def holds() -> dict[str, Any]:
    """Return the document of this benchmark."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    parts = (
        (f"{CHECKPOINTING} checkpointing jobs", checkpoints),
        (f"{LIMITED} time limits", time_limits),
        (f"{RECORDERS} full recorders", recorders),
    )
    found = {name: min(asyncio.run(measured()) for _ in range(TRIES)) for name, measured in parts}
    return document("loop_holds", found)


def document(benchmark: str, held_s: Mapping[str, float]) -> dict[str, Any]:
    """Return what a benchmark of holds says of each part, in seconds."""
    return {
        "benchmark": benchmark,
        "held_s": {name: round(held, 4) for name, held in held_s.items()},
        "goal_s": GOAL_S,
        "met": max(held_s.values()) <= GOAL_S,
    }


def main() -> None:
    """Print one JSON document."""
    print(json.dumps(holds(), indent=2))


if __name__ == "__main__":
    main()
