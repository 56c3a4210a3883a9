"""Jobs whose steps follow a profile, and racks that know them."""

from __future__ import annotations

from pathlib import Path

from controller.telemetry.steps import SETTLED_AFTER
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.profile import StepProfile
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack

PROFILE = StepProfile(0.2, 0.4, 0.0)
TOGETHER = {"gpu0": "as0", "gpu1": "as0", "gpu2": "as0", "gpu3": "as0"}


class Recorder:
    """Tells the facts of a profile where the job is now; every answer is news."""

    def __init__(self, rack: Rack, profile: StepProfile = PROFILE) -> None:
        self._rack = rack
        self._profile = profile
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
            steps=100 + self.told,
        )


async def started(tmp_path: Path) -> tuple[Rack, Recorder]:
    """Start red over two aggregators, with nobody beside it, and wait for its facts."""
    rack = Rack(tmp_path)
    recorder = Recorder(rack)
    recorder.silent = {"red", "blue"}  # it tells facts of jobs that are alone
    await rack.up(facts=recorder)
    await scattered(rack)
    await rack.service.commands.cancel("blue")
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
