"""Clients and faults that act at the same time."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.base.errors import ServiceError
from controller.schema.jobs import read_job
from controller.schema.plans import PlanRequest
from testbed.simulated.lives import DiedError
from tests.parts.controller.recoveries import kill
from tests.stories.rack import StoryRack
from tests.stories.telling import Log, tell

AFTER_S = 10.0
"""How long a story goes on after its last step: lost hardware is noticed, and swapped."""


@dataclass(frozen=True)
class Step:
    """Something that one client does, ``at_ms`` after the beginning of the story."""

    what: str
    """``submit``, ``cancel``, ``pause``, ``resume``, ``regroup``, ``drain`` or ``undrain``; faults:
    ``lose``, ``exit``, ``slow``, ``die`` (after ``count`` turns of the loop) or ``die at`` (the
    failpoint of that number)."""
    job: str
    at_ms: int
    count: int = 2

    def __str__(self) -> str:
        return f"{self.what} {self.job}"


class Clients:
    """One story: steps at the same time on one rack, and what clients were told."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.rack = StoryRack(folder, log)
        self._log = log
        self.submitted: set[str] = set()
        """Jobs whose submit was acknowledged."""
        self.cancelled: set[str] = set()
        """Jobs whose cancel was acknowledged."""

    async def run(self, steps: Sequence[Step]) -> None:
        """Carry out all steps, then let the controller die at rest and look at the disk."""
        rack = self.rack
        async with rack.run():
            await asyncio.gather(*(self._later(step) for step in steps))
            await asyncio.sleep(AFTER_S)
            await rack.rest()
            known = {job.name: job.state for job in await rack.desks.jobs.jobs()}
            found = await rack.end()
        self._log.note(f"in memory {known}, on the disk {found}")
        durable = {name: found.get(name, "none") for name in known}
        assert durable == known, f"at rest the disk has {durable} and memory {known}"
        for job in self.submitted:
            assert job in found, f"the submit of {job} was acknowledged, and the disk has none"
        for job in self.cancelled:
            assert found[job] in ("cancelled", "failed", "completed"), (
                f"the cancel of {job} was acknowledged, and the disk has {found[job]}"
            )
        assert not rack.engine.breaches, "ranks start in an epoch that the disk does not know: " + (
            "; ".join(rack.engine.breaches)
        )

    async def _later(self, step: Step) -> None:
        await asyncio.sleep(step.at_ms / 1000)
        self._log.note(f"begins: {step}")
        try:
            await self._do(step)
        except ServiceError as error:
            self._log.note(f"refused: {step}: {error.message}")
        except DiedError:
            self._log.note(f"unanswered: {step}")
        else:
            self._log.note(f"done: {step}")

    async def _do(self, step: Step) -> None:
        rack = self.rack
        desks = rack.desks
        match step.what:
            case "submit":
                body = {"name": step.job, "count": step.count, "restart": "on-failure:3"}
                self.cancelled.discard(step.job)  # another job of that name may be there
                await rack.do(desks.jobs.submit(read_job(body)))
                self.submitted.add(step.job)
            case "cancel":
                await rack.do(desks.jobs.cancel(step.job))
                self.cancelled.add(step.job)
            case "pause":
                await rack.do(desks.jobs.pause(step.job))
            case "resume":
                await rack.do(desks.jobs.resume(step.job))
            case "regroup":
                plan = await rack.do(desks.plans.make_plan(PlanRequest()))
                if not plan.empty:
                    await rack.do(desks.plans.apply(plan, wait_s=60))
            case "drain":
                await rack.do(desks.drains.drain("node", f"srv{step.count % 4}", now=True))
            case "undrain":
                await rack.do(desks.drains.undrain("node", f"srv{step.count % 4}"))
            case _:
                await self._fail(step)

    async def _fail(self, step: Step) -> None:
        """Let something fail."""
        rack = self.rack
        match step.what:
            case "exit":
                for key in rack.engine.statuses:
                    if key[0] == step.job:
                        rack.engine.exit(*key, 137)
            case "slow":
                rack.disk.fault, rack.disk.times = "slow", 1
                await rack.until(lambda: rack.disk.hit or rack.disk.fault != "slow")
                await asyncio.sleep(step.count * 0.7)
                rack.disk.release()
                rack.disk.hit = 0
            case "lose":
                kill(rack, f"gpu{step.count}")
            case "die":
                await rack.death(turns=step.count)
            case "die at":
                await rack.death(points=step.count)
            case other:
                raise ValueError(other)


def story(steps: Sequence[Step], seed: int) -> Log:
    """Tell a story of clients; AssertionError when it breaks a promise."""
    folder = Path(tempfile.mkdtemp(prefix="ll-story-"))

    async def told(log: Log) -> None:
        await Clients(folder, log).run(steps)

    try:
        return tell(told, seed)
    finally:
        shutil.rmtree(folder)
