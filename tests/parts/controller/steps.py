"""Jobs whose steps follow a profile, and racks that know them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from base import clock
from controller.telemetry.steps import SETTLED_AFTER
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.profile import StepProfile
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack

PROFILE = StepProfile(0.2, 0.4, 0.0)
TOGETHER = {"gpu0": "as0", "gpu1": "as0", "gpu2": "as0", "gpu3": "as0"}


class Recorder:
    """Tells the facts of a profile where the job is now; every answer is news."""

    def __init__(self, rack: Rack, profile: StepProfile = PROFILE, steps: int = 100) -> None:
        """``steps`` are recorded; every second answer has one more."""
        self._rack = rack
        self._profile = profile
        self._steps = steps
        self.told = 0
        self.silent: set[str] = set()
        self.kept: dict[str, StepFacts] = {}
        """Facts that are no news any more, by job."""

    def __call__(self, name: str) -> StepFacts | None:
        state = self._rack.see
        if name in self.kept:
            return self.kept[name]
        job = state.jobs.get(name)
        if job is None or not job.endpoints or name in self.silent:
            return None
        size = len(job.endpoints)
        rates = self._rack.parts.meter.rates([job], state.homes())
        rate = rates.get(name, 1.0) if rates else 1.0
        step = self._profile.step_s(size, rate)
        access = self._rack.site.emulation
        assert access
        self.told += 1
        return StepFacts(
            ranks=size,
            step_s=step,
            comm_s=step - self._profile.compute_s,
            exposed_s=step - self._profile.compute_s,
            bytes_per_step=self._profile.ring_s * access.access_bps * 1448 / 1514 / 8,
            calls_per_step=1,
            source="torch",
            steps=self._steps + self.told % 2,
        )


class Trainer:
    """A program that prints a line for each of its steps, which follow a profile."""

    def __init__(self, rack: Rack, job: str = "red", profile: StepProfile = PROFILE) -> None:
        self._rack = rack
        self._job = job
        self._profile = profile
        self.slow = 0
        """Number of the next steps that take twice as long."""

    def step_s(self) -> float:
        """Return the length of a step where the job is now."""
        job = self._rack.see.jobs[self._job]
        rates = self._rack.parts.meter.rates([job], self._rack.see.homes())
        return self._profile.step_s(len(job.endpoints), rates[self._job] if rates else 1.0)

    async def run(self) -> None:
        """Train until cancelled."""
        size = len(self._rack.see.jobs[self._job].endpoints)
        lines: list[list[tuple[float, str]]] = [[] for _ in range(size)]
        for rank in range(size):
            self._rack.engine.printed[self._job, rank] = lines[rank]
        access = self._rack.site.emulation
        assert access
        sent = self._profile.ring_s * access.access_bps * 1448 / 1514 / 8
        self._print(lines, {"event": "start", "gradient_bytes": sent})
        for number in count():
            await self._rack.until(self._runs)
            step, compute = self.step_s(), self._profile.compute_s
            if self.slow:
                self.slow -= 1
                step *= 2
            await asyncio.sleep(step)
            parts = {"step_s": step, "compute_s": compute, "comm_s": step - compute}
            self._print(lines, {"event": "step", "step": number, **parts})

    def _runs(self) -> bool:
        return self._rack.see.jobs[self._job].state == "running"

    def _print(self, lines: list[list[tuple[float, str]]], record: Mapping[str, object]) -> None:
        for of_rank in lines:
            of_rank.append((clock.time(), json.dumps(record)))
            del of_rank[1:-64]


async def started(tmp_path: Path) -> tuple[Rack, Recorder]:
    """Start red over two aggregators, with nobody beside it, and wait for its facts."""
    rack = Rack(tmp_path)
    recorder = Recorder(rack)
    recorder.silent = {"red", "blue"}  # it tells facts of jobs that are alone
    await rack.up(facts=recorder)
    await scattered(rack)
    await rack.desks.jobs.cancel("blue")
    await rack.state("blue", "cancelled")
    recorder.silent.clear()
    await known(rack)
    return rack, recorder


async def known(rack: Rack, job: str = "red") -> None:
    def settled() -> bool:
        state = rack.see
        found = rack.parts.meter.current(state.jobs[job], state.homes())
        return found is not None and rack.see.news(job) > SETTLED_AFTER

    await rack.until(settled)
