"""Defines the paper's two cases and the arms in which each is measured.

Yan et al. (OFC 2022) train a modified VGG16 in two concurrent jobs, red and blue, whose GPUs are
under both aggregators, and again after the optical switch has moved each job under one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from scheduler.model import Fabric, Job, Locality, Placement, RankOrder, Request
from scheduler.placement.place import place
from sitefile import CabledSite
from testbed.demo.errors import DemoError
from testbed.demo.rule import CALIBRATION_BATCH


class CaseArm(StrEnum):
    """One way to run the red job while the blue job runs concurrently."""

    FRAGMENTED = "fragmented"
    """Scattered with interleaved ranks, as in the paper."""
    REORDERED = "reordered"
    """The same endpoints with ranks sorted by aggregator: the best that software alone can do."""
    REGROUPED = "regrouped"
    """The same endpoints, with each job moved under one aggregator before it starts."""
    LIVE = "live"
    """Starts as fragmented; the regroup happens during the training."""

    @property
    def locality(self) -> Locality:
        """Requested locality of the arm's jobs."""
        return Locality.REGROUP if self is CaseArm.REGROUPED else Locality.ANY

    @property
    def rank_order(self) -> RankOrder:
        """Requested rank order of the arm's jobs."""
        placed = self in (CaseArm.FRAGMENTED, CaseArm.LIVE)
        return RankOrder.PLACED if placed else RankOrder.AGGREGATOR


@dataclass(slots=True, frozen=True)
class JobSize:
    """A job's size: number of endpoints, and images per step of each of them."""

    count: int
    batch: int = CALIBRATION_BATCH

    @property
    def global_batch(self) -> int:
        """Images per step over all endpoints."""
        return self.count * self.batch


@dataclass(slots=True, frozen=True)
class Paper:
    """The paper's figures for red: seconds, and the reduction as a fraction."""

    fragmented_s: float
    regrouped_s: float
    reduction: float


@dataclass(slots=True, frozen=True)
class PaperCase:
    """One of the paper's cases."""

    name: str
    red: JobSize
    blue: JobSize
    paper: Paper


CASES: Mapping[str, PaperCase] = {
    "a": PaperCase("a", JobSize(4), JobSize(2), Paper(407.0, 109.0, 0.732)),
    "b": PaperCase("b", JobSize(3), JobSize(3), Paper(368.0, 140.0, 0.620)),
}
"""The paper fixes the number of samples: its times after regrouping scale with 1/N. The batch of a
rank is fixed, so a job of fewer ranks takes more steps, as in the model that gives the link rates
(docs/adr/0006)."""


@dataclass(slots=True, frozen=True)
class Places:
    """The endpoints of both jobs in placement order, shared by all arms."""

    red: tuple[str, ...]
    blue: tuple[str, ...]


def find_case(name: str) -> PaperCase:
    """Return the case called ``name``. Raises DemoError(invalid) for an unknown one."""
    if name not in CASES:
        raise DemoError("invalid", f"unknown case {name!r}", hint="the cases are a and b")
    return CASES[name]


AnArm = TypeVar("AnArm", bound=StrEnum)


def chosen(names: Sequence[str] | None, arms: type[AnArm]) -> tuple[AnArm, ...]:
    """Return the requested arms in their fixed order, or all without ``names``.

    Raises DemoError(invalid) for an unknown name.
    """
    if names is None:
        return tuple(arms)
    hint = f"the arms are {', '.join(arms)}"
    for name in names:
        if name not in set(arms):
            raise DemoError("invalid", f"unknown arm {name!r}", hint=hint)
    if not names:
        raise DemoError("invalid", "no arm was given", hint=hint)
    return tuple(arm for arm in arms if arm.value in names)


def parse_arms(names: Sequence[str] | None) -> tuple[CaseArm, ...]:
    """Return the requested arms of a case, as :func:`chosen`."""
    return chosen(names, CaseArm)


def scattered(site: CabledSite, case: PaperCase) -> Places:
    """Return where a topology-blind scheduler places red and then blue on the idle site.

    The scheduler's own placement computes it, so that blue can start (and train) before red on
    exactly the endpoints that it would get after red.
    Raises DemoError(invalid) when the site is too small or does not scatter the jobs.
    """
    empty = Fabric(site.scheduler_site(), dict(site.homes))
    red = _place(empty, "red", case.red.count)
    taken = Fabric(empty.site, empty.homes, (Job("red", red.endpoints),))
    blue = _place(taken, "blue", case.blue.count)
    for placement in (red, blue):
        if placement.span <= placement.span_possible:
            raise DemoError(
                "invalid",
                f"on site {site.name} job {placement.job} is not scattered: nothing to regroup",
                object=f"site/{site.name}",
                hint="use testbed/sites/paper.yaml",
            )
    return Places(red.endpoints, blue.endpoints)


def _place(fabric: Fabric, job: str, count: int) -> Placement:
    request = Request(job, count, locality=Locality.ANY, rank_order=RankOrder.PLACED)
    placement = place(fabric, request)
    if not isinstance(placement, Placement):
        raise DemoError(
            "invalid",
            f"site {fabric.site.name} has no room for job {job}: {placement.reason}",
            object=f"site/{fabric.site.name}",
            hint="use testbed/sites/paper.yaml",
        )
    return placement
