"""Clients and faults that act at the same time."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.base.errors import ServiceError
from controller.schema.jobs import JobRequest
from controller.schema.plans import PlanRequest
from tests.stories.rack import StoryRack
from tests.stories.telling import Log, tell
from tests.unit.controller.swaps.stories import kill

AFTER_S = 10.0
"""How long a story goes on after its last step: lost hardware is noticed, and swapped."""


@dataclass(frozen=True)
class Step:
    """Something that one client does, ``at_ms`` after the beginning of the story."""

    what: str
    """``submit``, ``cancel``, ``pause``, ``resume``, ``regroup``, ``drain``, ``undrain``, ``lose``
    or ``exit``."""
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
        self.cancelled: set[str] = set()
        """Jobs whose cancel was acknowledged."""

    async def run(self, steps: Sequence[Step]) -> None:
        """Carry out all steps, then let the controller die at rest and look at the disk."""
        rack = self.rack
        await rack.up()
        await asyncio.gather(*(self._later(step) for step in steps))
        await asyncio.sleep(AFTER_S)
        await rack.rest()
        known = {job.name: job.state for job in await rack.service.queries.jobs()}
        found = await rack.die()
        self._log.note(f"in memory {known}, on the disk {found}")
        durable = {name: found.get(name, "none") for name in known}
        assert durable == known, f"at rest the disk has {durable} and memory {known}"
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
        else:
            self._log.note(f"done: {step}")

    async def _do(self, step: Step) -> None:
        commands = self.rack.service.commands
        match step.what:
            case "submit":
                body = {"name": step.job, "count": step.count, "restart": "on-failure:3"}
                self.cancelled.discard(step.job)  # another job of that name may be there
                await commands.submit(JobRequest.model_validate(body))
            case "cancel":
                await commands.cancel(step.job)
                self.cancelled.add(step.job)
            case "pause":
                await commands.pause(step.job)
            case "resume":
                await commands.resume(step.job)
            case "regroup":
                plan = await commands.make_plan(PlanRequest())
                if not plan.empty:
                    await commands.apply(plan, wait_s=60)
            case "drain":
                await commands.drain("node", f"srv{step.count % 4}", now=True)
            case "undrain":
                await commands.undrain("node", f"srv{step.count % 4}")
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
