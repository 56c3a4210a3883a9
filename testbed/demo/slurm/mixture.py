"""Defines the mixture of trainings, and the arms in which Slurm runs it. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from testbed.demo.cases import chosen
from testbed.demo.errors import DemoError
from testbed.rack.slurm.programs import RANK

LIMIT_MIN = 15
"""Time limit that every job states, so that Slurm can fill gaps with small jobs."""


class MixtureArm(StrEnum):
    """One way in which the same jobs, submitted at the same times, are placed."""

    BLIND = "blind"
    """Slurm has no topology."""
    TREE = "tree"
    """Slurm has the topology of aggregators and prefers endpoints under one of them."""
    SWITCHES = "switches"
    """As ``tree``; and every job asks for the fewest aggregators and waits for them."""
    LIGHTLOOM = "lightloom"
    """As ``tree``, with plain jobs, and with lightloom: hook, regroups, published topology."""

    @property
    def alone(self) -> bool:
        """Whether Slurm runs without lightloom."""
        return self is not MixtureArm.LIGHTLOOM


@dataclass(slots=True, frozen=True)
class MixturePlan:
    """Size of the mixture; times are in seconds."""

    jobs: int = 20
    seed: int = 1
    gap_s: float = 8.0
    """Mean time between two submits (a Poisson process)."""
    most_ranks: int = 6
    least_steps: int = 15
    most_steps: int = 45
    rank_batch: int = 8

    def check(self) -> None:
        """Raise DemoError(invalid) when it describes no mixture."""
        if self.jobs < 1 or self.gap_s <= 0 or not 0 < self.least_steps <= self.most_steps:
            raise DemoError("invalid", "a mixture needs jobs, gaps and steps above 0")


@dataclass(slots=True, frozen=True)
class MixtureJob:
    """One training: when it is submitted, its ranks and its steps."""

    number: int
    at_s: float
    ranks: int
    steps: int

    @property
    def name(self) -> str:
        """Return its name in Slurm."""
        return f"mix-{self.number}"


def mixture(plan: MixturePlan) -> tuple[MixtureJob, ...]:
    """Return the jobs of a plan, in the order of their submits. The first comes at 0 s."""
    rng = random.Random(plan.seed)  # noqa: S311 - reproducible, not secret
    at, jobs = 0.0, []
    for number in range(plan.jobs):
        jobs.append(
            MixtureJob(
                number,
                round(at, 3),
                rng.randint(1, plan.most_ranks),
                rng.randint(plan.least_steps, plan.most_steps),
            )
        )
        at += rng.expovariate(1 / plan.gap_s)
    return tuple(jobs)


def least_span(ranks: int, ports: Mapping[str, int]) -> int:
    """Return how many aggregators a job of so many ranks needs at least.

    ``ports`` are the fibers of each aggregator.
    """
    left, span = ranks, 0
    for most in sorted(ports.values(), reverse=True):
        if left <= 0:
            break
        left -= most
        span += 1
    return span


def command(work: MixtureJob, plan: MixturePlan, arm: MixtureArm, span: int) -> tuple[str, ...]:
    """Return the ``sbatch`` command of a job; ``span`` is the least number of aggregators."""
    batch = plan.rank_batch * work.ranks
    train = (
        f"srun --label {RANK} python3 -m testbed.trainer --settle 0 --seed {1 + work.number}"
        f" --global-batch {batch} --samples {batch * work.steps}"
    )
    script = f"echo begin $(date +%s.%N); {train}; echo end $? $(date +%s.%N)"
    return (
        *("sbatch", "--parsable", f"--job-name={work.name}", "--output=/tmp/%j.out"),
        *(f"--nodes={work.ranks}", "--ntasks-per-node=1", "--gres=gpu:1", f"--time={LIMIT_MIN}"),
        *((f"--switches={span}",) if arm is MixtureArm.SWITCHES else ()),
        *("--wrap", script),
    )


def parse_arms(names: Sequence[str] | None) -> tuple[MixtureArm, ...]:
    """Return the requested arms, as :func:`testbed.demo.cases.chosen`."""
    return chosen(names, MixtureArm)
