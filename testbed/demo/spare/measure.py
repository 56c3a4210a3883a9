"""Runs one arm: submits the training, loses a GPU of it, follows it to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from testbed import rack
from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError
from testbed.demo.jobs import ENDED
from testbed.demo.spare.arms import SpareArm, SparePlan, request
from testbed.demo.spare.trace import ProgramRun, figures, read

LOOK_S = 0.25
FIRST_STEP_S = 420.0
ARM_S = 1500.0
REPAIRED_S = 120.0
REPORT_EVERY_S = 10.0

Progress = Callable[[str], None]


@dataclass(slots=True, frozen=True)
class SpareResult:
    """One arm's figures, and the data of the plots."""

    arm: SpareArm
    figures: Document
    runs: tuple[ProgramRun, ...]
    lost_at: float | None
    lost: str
    """The endpoint; empty where nothing was lost."""


@dataclass(slots=True)
class SpareRunner:
    """Runs arms one after the other on an idle rack."""

    controller: Controller
    run_dir: Path
    plan: SparePlan
    image: str
    run_id: str
    progress: Progress
    _told: float = 0.0
    _open: list[str] = field(default_factory=list)

    def run(self, arm: SpareArm) -> SpareResult:
        """Measure one arm; the GPU is repaired and the rack idle afterwards."""
        name = f"{arm}-{self.run_id}"
        self._open.append(name)
        self.progress(f"{arm}: the training starts")
        body = request(arm, self.plan, name=name, image=self.image)
        self.controller.post("/jobs", body)
        lines: set[str] = set()
        lost, lost_at = "", None
        deadline = time.monotonic() + FIRST_STEP_S
        while (view := self._view(name))["state"] not in ENDED:
            trained = self._trained(arm, name, lines)
            if trained:
                deadline = max(deadline, time.monotonic() + 60.0)
            if arm.loses and not lost and trained >= self.plan.lost_after:
                lost, lost_at = self._lose(arm, view)
                deadline = time.monotonic() + FIRST_STEP_S
            if time.monotonic() > deadline:
                raise DemoError(
                    "timeout",
                    f"{name} is {view['state']} and does not train: {view['reason']}",
                    object=f"job/{name}",
                    hint=f"see: lightloom describe job {name}",
                )
            time.sleep(LOOK_S)
        self._trained(arm, name, lines)
        if view["state"] != "completed" or (arm.loses and not lost):
            raise DemoError(
                "failed",
                f"{name} is {view['state']}: {view['reason'] or 'before a GPU was lost'}",
                object=f"job/{name}",
                hint=f"see: lightloom logs {name}",
            )
        runs = read(lines)
        found = figures(name, runs, lost_at)
        found["endpoints"] = {"first": view["endpoints"], "lost": lost}
        found["span"] = view["span"]
        found["recoveries"] = self._recoveries(name) if lost else []
        self._open.remove(name)
        if lost:
            self._repair(lost)
        return SpareResult(arm, found, tuple(runs), lost_at, lost)

    def end(self) -> None:
        """Cancel what runs and repair what is lost, after a failure."""
        for name in self._open:
            if self._view(name)["state"] not in ENDED:
                self.controller.post(f"/jobs/{name}/cancel")
        for lost in rack.status(self.run_dir).lost:
            rack.repair(lost, self.run_dir)

    def _view(self, name: str) -> Document:
        return self.controller.get(f"/jobs/{name}")

    def _trained(self, arm: SpareArm, name: str, lines: set[str]) -> int:
        """Collect rank 0's lines; return how many steps its present run has reached."""
        try:
            lines.update(text for _, text in self.controller.logs(name, follow=False, rank=0))
        except DemoError as error:
            if error.code not in {"not_found", "unavailable"}:  # none runs yet, or none answers
                raise
        runs = read(lines)
        done = runs[-1].steps[-1][0] + 1 if runs and runs[-1].steps else 0
        if time.monotonic() > self._told + REPORT_EVERY_S:
            self._told = time.monotonic()
            self.progress(f"{arm}: step {done} of {self.plan.steps}")
        return done

    def _lose(self, arm: SpareArm, view: Document) -> tuple[str, float]:
        """Lose the GPU of the last rank: rank 0 only is special, it speaks for the job."""
        victim: str = view["endpoints"][-1]
        change = rack.lose(victim, self.run_dir)
        self.progress(f"{arm}: {victim} is lost, {len(change.killed)} processes killed")
        return victim, change.at

    def _repair(self, endpoint: str) -> None:
        """Repair a GPU and put it back into use, as its operator does."""
        rack.repair(endpoint, self.run_dir)
        deadline = time.monotonic() + REPAIRED_S
        while (state := self._state(endpoint)) not in {"idle", "dark"}:
            if state == "quarantined":
                self.controller.post(f"/quarantine/{endpoint}/release")
            if time.monotonic() > deadline:
                raise DemoError(
                    "timeout",
                    f"{endpoint} is repaired, and {state} after {REPAIRED_S:.0f} s",
                    object=f"endpoint/{endpoint}",
                    hint="see: lightloom get endpoints",
                )
            time.sleep(LOOK_S)

    def _state(self, endpoint: str) -> str:
        found = self.controller.items("/endpoints")
        state: str = next(one["state"] for one in found if one["name"] == endpoint)
        return state

    def _recoveries(self, name: str) -> list[Document]:
        """Return the controller's report of the loss, phase by phase."""
        found: list[Document] = self.controller.get(f"/jobs/{name}/recoveries")["recoveries"]
        return found
