"""Runs one arm: blue trains throughout, red is measured from its first to its last step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from testbed.demo import homes
from testbed.demo.api import Controller, Document
from testbed.demo.cases import CaseArm, PaperCase, Places
from testbed.demo.errors import DemoError
from testbed.demo.jobs import DemoJobs, Training
from testbed.demo.trainer_log import StepLine, TrainerLog, longest_gap_s

BLUE_STEPS = 10_000
"""More steps than any arm lasts; blue is cancelled when red has ended."""
BLUE_WARM = 2
"""Steps that blue completes before red starts."""
REGROUP_AFTER = 3
"""The live arm is regrouped after red's steps divided by this number."""
REPORT_EVERY_S = 10.0
SERIES_LIMIT_S = 900.0

Progress = Callable[[str], None]


@dataclass(slots=True, frozen=True)
class CaseExperiment:
    """The settings that all arms of one run share."""

    controller: Controller
    jobs: DemoJobs
    case: PaperCase
    places: Places
    samples: int
    image: str
    homes: Mapping[str, str]
    run_id: str
    progress: Progress


@dataclass(slots=True, frozen=True)
class CaseResult:
    """One arm's result: the figures of the JSON contract, and the data of the plots."""

    arm: CaseArm
    red: str
    blue: str
    samples: int
    figures: Document
    steps: tuple[StepLine, ...]
    series: Document
    started_at: float
    ended_at: float
    transaction: Document | None = None
    """The live arm's regroup, as the controller reports it."""

    @property
    def regroup(self) -> tuple[float, float] | None:
        """Wall-clock start and end of the time in which circuits moved."""
        return light_moved(self.transaction)


def run_arm(experiment: CaseExperiment, arm: CaseArm) -> CaseResult:
    """Measure one arm on the idle rack and leave the rack idle."""
    say = experiment.progress
    case, places = experiment.case, experiment.places
    blue = _training(experiment, arm, "blue")
    red = _training(experiment, arm, "red")
    homes.restore(experiment.controller, experiment.homes)
    say(f"{arm}: blue starts on {', '.join(places.blue)}")
    experiment.jobs.submit(blue)
    experiment.jobs.wait_training(blue.name, step=BLUE_WARM)
    say(f"{arm}: red starts on {', '.join(places.red)}, {experiment.samples} samples to train")
    experiment.jobs.submit(red)
    watch = _Watch(experiment, arm, red.name)
    log = experiment.jobs.follow(red.name, case.red.count, watch.step)
    experiment.jobs.require_running(blue.name)
    view = experiment.jobs.wait_completed(red.name)
    series = _series(experiment.controller, log, (red.name, blue.name))
    experiment.jobs.end(blue.name)
    return CaseResult(
        arm=arm,
        red=red.name,
        blue=blue.name,
        samples=experiment.samples,
        figures=figures(
            log, view, series, regroup=light_moved(watch.regroup), replaced=watch.replaced
        ),
        steps=tuple(log.steps[0]),
        series=series,
        started_at=log.started_at,
        ended_at=log.ended_at,
        transaction=watch.regroup,
    )


def figures(
    log: TrainerLog,
    view: Document,
    series: Document,
    *,
    regroup: tuple[float, float] | None,
    replaced: int,
) -> Document:
    """Return an arm's figures; times in seconds, fractions from 0 to 1.

    ``replaced`` counts ranks whose container is not the one that started the training.
    """
    end = log.ends[0]
    return {
        "completion_s": round(end.completion_s, 3),
        "samples_per_s": round(end.samples_s, 3),
        "step_s_median": round(end.step_s_median, 4),
        "exposed_comm_fraction": round(log.exposed_comm_fraction, 4),
        "utilisation": mean_utilisation(series, log.job, log.started_at, log.ended_at),
        "final_loss": end.final_loss,
        "container_restarts": int(view["restarts"]) + replaced,
        "dark_time_s": round(max(rank["dark_time_s"] for rank in view["ranks"]), 4),
        "longest_gap_s": round(longest_gap_s(log.steps[0], regroup), 4),
    }


def mean_utilisation(series: Document, job: str, begin: float, end: float) -> float | None:
    """Return a job's mean busy fraction between two wall-clock times; None without samples."""
    samples = [
        value
        for line in series["containers"]
        if line["job"] == job
        for at, value in zip(series["times"], line["utilisation"], strict=True)
        if value is not None and begin <= at <= end
    ]
    return round(statistics.fmean(samples), 4) if samples else None


@dataclass(slots=True)
class _Watch:
    """Handles every step of red: reports progress and starts the live arm's regroup."""

    experiment: CaseExperiment
    arm: CaseArm
    job: str
    regroup: Document | None = None
    replaced: int = 0
    _begun: Mapping[int, str] = field(default_factory=dict)
    _reported: float = 0.0

    def step(self, rank: int, line: StepLine) -> None:
        """Handle one step of one rank."""
        if rank != 0:
            return
        steps = self.experiment.samples // self.experiment.case.red.global_batch
        if line.step == 0:
            self._begun = self.experiment.jobs.containers(self.job)
        if line.step == steps - 1:
            now = self.experiment.jobs.containers(self.job)
            self.replaced = sum(self._begun.get(r) != c for r, c in now.items())
        if time.monotonic() > self._reported + REPORT_EVERY_S:
            self._reported = time.monotonic()
            self.experiment.progress(
                f"{self.arm}: step {line.step + 1} of {steps}, {line.step_s:.2f} s"
            )
        if (
            self.arm is CaseArm.LIVE
            and self.regroup is None
            and line.step + 1 >= steps // REGROUP_AFTER
        ):
            self._regroup()

    def _regroup(self) -> None:
        controller = self.experiment.controller
        plan = controller.post("/plans", {})
        if not plan["moves"]:
            raise DemoError(
                "failed",
                "the planner found no gain in a regroup of the scattered jobs",
                object="plan",
                hint="see: lightloom get endpoints",
            )
        self.experiment.progress(f"{self.arm}: regroup, {len(plan['moves'])} moves")
        self.regroup = homes.carry_out(controller, plan)


def light_moved(transaction: Document | None) -> tuple[float, float] | None:
    """Return the start and end of the time in which a regroup stopped its jobs, or None.

    Until it drains, jobs of a transaction run: that time is not a gap.
    """
    if transaction is None:
        return None
    drained = [p["started_at"] for p in transaction["phases"] if p["name"] == "drain"]
    return min(drained, default=transaction["started_at"]), transaction["finished_at"]


def _training(experiment: CaseExperiment, arm: CaseArm, role: str) -> Training:
    red = role == "red"
    work = experiment.case.red if red else experiment.case.blue
    return Training(
        name=f"{role}-{experiment.case.name}-{arm}-{experiment.run_id}",
        work=work,
        samples=experiment.samples if red else BLUE_STEPS * work.global_batch,
        endpoints=experiment.places.red if red else experiment.places.blue,
        arm=arm,
        project=role,
        image=experiment.image,
    )


def _series(controller: Controller, log: TrainerLog, jobs: tuple[str, ...]) -> Document:
    """Return the samples of both jobs since red's first step."""
    since_s = min(SERIES_LIMIT_S, time.time() - log.started_at + 1.0)
    series = controller.get("/series", since_s=since_s)
    lines = [line for line in series["containers"] if line["job"] in jobs]
    return {"times": series["times"], "containers": lines}
