"""Measures the trainer once per image and CPU share: its steps, its gradient, its overlap."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from sitefile import CabledSite
from testbed.demo.cases import CaseArm, JobSize
from testbed.demo.errors import DemoError
from testbed.demo.jobs import DemoJobs, Training
from testbed.demo.rule import CALIBRATION_BATCH, TrainerCalibration, measured_overlap
from testbed.demo.trainer_log import StepLine, TrainerLog

FILE = Path("/var/lib/lightloom/rates.json")
ALONE_STEPS = 40
PAIR_STEPS = 20
UNUSUAL_STEPS = 5
"""Number of steps to skip after the CPU share takes effect."""

Progress = Callable[[str], None]


def cache_key(image: str, share: float) -> str:
    """Return the key of a measurement: the trainer's image and the CPU share per GPU."""
    return f"{image} share={share:g}"


def load(file: Path, key: str) -> TrainerCalibration | None:
    """Return the stored measurement for ``key``; None when it is missing or unreadable."""
    try:
        return TrainerCalibration(**json.loads(file.read_text(encoding="utf-8"))[key])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(file: Path, key: str, measured: TrainerCalibration) -> None:
    """Store the measurement atomically, for the other case and for later runs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps({key: dataclasses.asdict(measured)}, indent=1) + "\n", "utf-8")
    draft.replace(file)


def known_or_measured(
    jobs: DemoJobs,
    site: CabledSite,
    image: str,
    *,
    run_id: str,
    recalibrate: bool,
    unshape: Callable[[], None],
    progress: Progress,
) -> TrainerCalibration:
    """Return the stored measurement for this image and CPU share, or measure and store one.

    ``unshape`` gives the links a rate that nothing reaches.
    """
    key = cache_key(image, site.emulation.gpu_share if site.emulation else 1.0)
    known = None if recalibrate else load(FILE, key)
    if known is not None:
        progress(f"the trainer is calibrated: {FILE}")
        return known
    unshape()
    measured = measure(jobs, site, image=image, run_id=run_id, progress=progress)
    save(FILE, key, measured)
    return measured


def measure(
    jobs: DemoJobs, site: CabledSite, *, image: str, run_id: str, progress: Progress
) -> TrainerCalibration:
    """Train one rank, then a ring of two under one aggregator; the links are not shaped.

    The result is the mean and not the median: the kernel grants a CPU share in slices, so a
    single step takes a whole number of slices and only the mean shows the step's real need.
    """
    pair = _neighbours(site)
    progress("calibration: one rank alone")
    work = JobSize(1, CALIBRATION_BATCH)
    alone = _train(jobs, _training(f"alone-{run_id}", work, ALONE_STEPS, pair[:1], image))
    progress("calibration: two ranks under one aggregator")
    work = JobSize(2, CALIBRATION_BATCH)
    both = _train(jobs, _training(f"pair-{run_id}", work, PAIR_STEPS, pair, image))
    steps = usual(both)
    return TrainerCalibration(
        compute_s=_mean("compute_s", usual(alone)),
        gradient_bytes=alone.gradient_bytes,
        overlap=measured_overlap(
            _mean("compute_s", steps), _mean("comm_s", steps), _mean("step_s", steps)
        ),
        ring_s=_mean("step_s", steps),
    )


def usual(log: TrainerLog) -> list[StepLine]:
    """Return rank 0's steps without the first ones, which are not representative."""
    return log.steps[0][UNUSUAL_STEPS:]


def _training(
    name: str, work: JobSize, steps: int, endpoints: Sequence[str], image: str
) -> Training:
    return Training(
        name=name,
        work=work,
        samples=steps * work.global_batch,
        endpoints=endpoints,
        arm=CaseArm.FRAGMENTED,
        project="demo",
        image=image,
    )


def _train(jobs: DemoJobs, training: Training) -> TrainerLog:
    jobs.submit(training)
    log = jobs.follow(training.name, training.work.count, lambda rank, line: None)
    jobs.wait_completed(training.name)
    return log


def _neighbours(site: CabledSite) -> tuple[str, str]:
    """Return two endpoints with the same home aggregator."""
    for first, home in site.homes.items():
        for second, other in site.homes.items():
            if first != second and home == other:
                return first, second
    raise DemoError(
        "invalid",
        f"no two endpoints of site {site.name} share an aggregator",
        object=f"site/{site.name}",
        hint="use testbed/sites/paper.yaml",
    )


def _mean(name: str, steps: Sequence[StepLine]) -> float:
    return statistics.fmean(getattr(step, name) for step in steps)
