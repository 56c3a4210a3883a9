"""A site that runs a comparison's jobs by a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from measure.compare.kind import COMPARE, placements_of
from measure.compare.table import road_of
from measure.envelope import Body
from measure.kinds import Line, MeasuredSite, Run, RunEnd
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.profile import StepProfile

JOB = {"count": 4, "command": ["train"], "env": {"SEED": "7"}, "image": "trainer:1"}


class Site:
    """Runs jobs of one profile, as the controller would, and prints what a trainer prints."""

    def __init__(
        self, there: MeasuredSite, profile: StepProfile, *, parts: bool = True, facts: bool = False
    ) -> None:
        self.fabric = there
        self.profile = profile
        self.parts = parts
        self.facts = facts
        self.runs: list[Run] = []
        self.lines: list[Line] = []
        self.ends: list[RunEnd] = []

    def step_s(self, run: Run) -> float:
        homes = {e: run.homes[e] for e in run.endpoints}
        asked = {"job": JOB | {"count": len(homes)}, "placements": [{"homes": homes}]}
        (placement,) = placements_of(asked, self.fabric)
        road = road_of(placement, self.fabric)
        assert road
        return self.profile.step_s(len(homes), road.low)

    def carry_out(self, runs: Sequence[Run]) -> None:
        for run in runs:
            number, step = len(self.runs), self.step_s(run)
            self.runs.append(run)
            compute = self.profile.compute_s
            record: dict[str, Any] = {"event": "step", "step_s": step}
            if self.parts:
                record |= {"compute_s": compute, "comm_s": step - compute}
            self.lines += [Line(number, 0, record | {"step": i}) for i in range(60)]
            told = StepFacts(
                ranks=len(run.endpoints),
                step_s=step,
                comm_s=step - compute,
                exposed_s=step - compute,
                bytes_per_step=0,
                calls_per_step=1,
                source="torch",
                steps=60,
            )
            homes: dict[str, str | None] = {e: run.homes[e] for e in run.endpoints}
            self.ends.append(
                RunEnd(True, job="compare", homes=homes, facts=told if self.facts else None)
            )

    def measure(self, given_: Mapping[str, Any]) -> Body:
        complete = COMPARE.settings({"job": JOB, **given_}, self.fabric)
        self.carry_out(COMPARE.runs(complete, self.fabric, 1))
        while more := COMPARE.more(complete, self.fabric, 1, self.lines, self.ends):
            self.carry_out(more)
            assert len(self.runs) < 10
        return COMPARE.body(complete, self.fabric, 1, self.lines, self.ends)
