"""Converts a fabric to counts, and a layout in counts back to homes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scheduler.metrics import SpanBound
from scheduler.model import Endpoint, Fabric, Job, Limits, SpreadBy
from scheduler.occupancy import all_homes, capacities, displace_idle, occupied
from scheduler.regroup.counts import Counts, JobUnit, MemberLayout, RegroupProblem, moved_members


@dataclass(slots=True, frozen=True)
class Counted:
    """A fabric, its problem in counts, and the mapping between the two."""

    fabric: Fabric
    endpoints: Mapping[str, Endpoint]
    problem: RegroupProblem
    switches: tuple[str, ...]
    constant_excess: float
    """Weighted excess span, in the objective, of jobs that no plan can move."""


def movable(fabric: Fabric, endpoint: Endpoint, job: Job | None) -> bool:
    """Return whether a plan may change this endpoint's home."""
    pinned = job is not None and job.pinned
    return endpoint.ocs is not None and endpoint.name not in fabric.unavailable and not pinned


class _MemberCount:
    """Members of one job by slot."""

    __slots__ = ("dark", "held", "held_dark", "lit")

    def __init__(self) -> None:
        self.lit: dict[int, int] = {}
        self.dark: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.held_dark = 0


def count(fabric: Fabric, limits: Limits) -> Counted:
    """Count a checked fabric. Raises ValueError if ``limits.only_job`` does not exist."""
    if limits.only_job is not None and limits.only_job not in {j.name for j in fabric.jobs}:
        raise ValueError(f"job {limits.only_job} does not exist")
    site = fabric.site
    switches = tuple(sorted({e.ocs for e in site.endpoints if e.ocs is not None}))
    counter = _EndpointCount(fabric, switches)
    for endpoint in site.endpoints:
        counter.add(endpoint)
    units, constant = _units(fabric, limits, counter.by_job)
    taken, single = np.zeros_like(counter.room), np.zeros_like(counter.room)
    for job, own in zip(fabric.jobs, counter.by_job, strict=True):
        for slot, n in own.lit.items():
            taken[slot] += n
            single[slot] += len(job.endpoints) == 1
    problem = RegroupProblem(
        limits=limits,
        units=units,
        switches=len(switches),
        aggregators=len(site.aggregators),
        room=counter.room,
        single=single,
        idle=counter.idle,
        spare=(counter.room - taken).reshape(len(switches), len(site.aggregators)).sum(axis=1),
        excess_limit=0.0,
        endpoints=len(site.endpoints),
        search_nodes=fabric.search_nodes,
    )
    before = problem.cost(problem.start).total_excess
    by_name = {e.name: e for e in site.endpoints}
    return Counted(fabric, by_name, replace(problem, excess_limit=before), switches, constant)


class _EndpointCount:
    """Counts endpoints one by one: by job, by slot, and by whether they may move."""

    def __init__(self, fabric: Fabric, switches: tuple[str, ...]) -> None:
        self._fabric = fabric
        self._homes = all_homes(fabric)
        self._at_k = {ocs: k for k, ocs in enumerate(switches)}
        self._at_a = {a.name: i for i, a in enumerate(fabric.site.aggregators)}
        self._owner = {name: j for j, job in enumerate(fabric.jobs) for name in job.endpoints}
        self.by_job = [_MemberCount() for _ in fabric.jobs]
        self.room = np.zeros(len(switches) * len(self._at_a), np.int64)
        self.idle = np.zeros_like(self.room)
        for (name, ocs), ports in capacities(fabric).items():
            if ocs in self._at_k:
                self.room[self._at_k[ocs] * len(self._at_a) + self._at_a[name]] = ports

    def add(self, endpoint: Endpoint) -> None:
        """Count one endpoint."""
        j, home = self._owner.get(endpoint.name), self._homes[endpoint.name]
        job = None if j is None else self._fabric.jobs[j]
        stays = not movable(self._fabric, endpoint, job)
        if j is not None:
            self._add_member(self.by_job[j], endpoint, home, stays=stays)
        if endpoint.ocs is not None and home is not None:
            slot = self._at_k[endpoint.ocs] * len(self._at_a) + self._at_a[home]
            self.room[slot] -= stays
            self.idle[slot] += not stays and j is None

    def _add_member(
        self, own: _MemberCount, endpoint: Endpoint, home: str | None, *, stays: bool
    ) -> None:
        if stays and home is None:
            own.held_dark += 1
        elif stays:
            a = self._at_a[home or ""]
            own.held[a] = own.held.get(a, 0) + 1
        elif endpoint.ocs is not None:
            k = self._at_k[endpoint.ocs]
            where, at = (own.dark, k)
            if home is not None:
                where, at = own.lit, k * len(self._at_a) + self._at_a[home]
            where[at] = where.get(at, 0) + 1


def _units(
    fabric: Fabric, limits: Limits, by_job: list[_MemberCount]
) -> tuple[tuple[JobUnit, ...], float]:
    """Return the jobs with movable members, and the weighted excess of the others."""
    bound = SpanBound(fabric)
    by_name = {e.name: e for e in fabric.site.endpoints}
    # Scaled to at most 1: tolerances then mean the same for every unit of weight.
    most = max((job.weight for job in fabric.jobs), default=0.0)
    scale = 1.0 / most if most > 0 else 0.0
    width = len(fabric.site.aggregators)
    homes = all_homes(fabric) if any(job.spread is not None for job in fabric.jobs) else None
    units, constant = [], 0.0
    for j, (job, own) in enumerate(zip(fabric.jobs, by_job, strict=True)):
        if len(job.endpoints) < 2:
            continue
        if limits.only_job is None:
            weight = job.weight * scale
        else:
            weight = float(limits.only_job == job.name)
        members = Counter(own.dark)
        for slot, n in own.lit.items():
            members[slot // width] += n
        apart, exceptions = _caps(job, own, width, bound.widest)
        unit = JobUnit(
            job=j,
            size=len(job.endpoints),
            least=bound.least([by_name[n] for n in job.endpoints], job.spread, homes),
            weight=weight,
            all_weight=job.weight * scale,
            members=dict(members),
            start=own.lit,
            dark=own.dark,
            held=frozenset(own.held),
            held_dark=own.held_dark,
            most=apart,
            exceptions=exceptions,
        )
        if members:
            units.append(unit)
        else:
            constant += weight * (unit.base_span - unit.least)
    return tuple(units), constant


def _caps(
    job: Job, own: _MemberCount, width: int, widest: int
) -> tuple[int | None, dict[int, int]]:
    """Return how many movable members may be under an aggregator, and where it is another number.

    Where a job has more than its spread allows, a plan may keep or lessen them.
    """
    spread = job.spread
    if spread is None or spread.by is not SpreadBy.AGGREGATOR:
        return None, {}
    if spread.most >= min(len(job.endpoints), widest):
        return None, {}
    there = Counter(own.held)
    for slot, n in own.lit.items():
        there[slot % width] += n
    caps = {a: max(n, spread.most) - own.held.get(a, 0) for a, n in there.items()}
    return spread.most, {a: n for a, n in caps.items() if n != spread.most}


def homes_after(counted: Counted, layout: MemberLayout) -> dict[str, str | None]:
    """Convert counts to homes of all endpoints.

    Members stay where they can, in rank order; the rest fill the gaps. Then one-endpoint jobs
    are displaced, the last one first, and then idle endpoints.
    """
    fabric, problem = counted.fabric, counted.problem
    homes = all_homes(fabric)
    for unit, lit, dark in zip(problem.units, layout.lit, layout.dark, strict=True):
        if moved_members(unit, lit, dark):
            _assign_members(counted, fabric.jobs[unit.job], lit, homes)
    _displace_singles(counted, layout, homes)
    idle = fabric.idle()
    names = {e.name for e in idle}
    others = [e for e in fabric.site.endpoints if e.name not in names]
    displace_idle(capacities(fabric), idle, homes, occupied(others, homes))
    return homes


def _assign_members(counted: Counted, job: Job, lit: Counts, homes: dict[str, str | None]) -> None:
    """Give the movable members of one job their homes."""
    fabric, width = counted.fabric, counted.problem.aggregators
    names = [a.name for a in fabric.site.aggregators]
    by_name = {n: counted.endpoints[n] for n in job.endpoints}
    for k, ocs in enumerate(counted.switches):
        left = Counter({names[slot % width]: n for slot, n in lit.items() if slot // width == k})
        leaving = []
        for name, endpoint in by_name.items():
            home = homes[name]
            if endpoint.ocs != ocs or not movable(fabric, endpoint, job):
                continue
            if home is not None and left[home] > 0:
                left[home] -= 1
            else:
                leaving.append(name)
        # Lit members first: a member that stays dark was dark before.
        leaving.sort(key=lambda name: homes[name] is None)
        homes.update(zip(leaving, left.elements(), strict=False))


def _displace_singles(counted: Counted, layout: MemberLayout, homes: dict[str, str | None]) -> None:
    """Re-home the one-endpoint jobs whose ports units need."""
    problem, fabric = counted.problem, counted.fabric
    used = problem.used(layout)
    leaving = np.maximum(used + problem.single - problem.room, 0)
    if not leaving.any():
        return
    staying = used + problem.single - leaving
    # To an unused port if there is one, otherwise to a port of an idle endpoint.
    free = np.maximum(problem.room - staying - problem.idle, 0)
    crowded = problem.room - staying - free
    names = [a.name for a in fabric.site.aggregators]
    at = {name: a for a, name in enumerate(names)}
    width = problem.aggregators
    targets = [
        [
            a
            for ports in (free, crowded)
            for a in np.repeat(np.arange(width), ports[k * width : (k + 1) * width]).tolist()
        ]
        for k in range(problem.switches)
    ]
    for targets_k in targets:
        targets_k.reverse()
    switch = {ocs: k for k, ocs in enumerate(counted.switches)}
    for job in reversed(fabric.jobs):
        if len(job.endpoints) != 1:
            continue
        endpoint, home = counted.endpoints[job.endpoints[0]], homes[job.endpoints[0]]
        if home is None or endpoint.ocs is None or not movable(fabric, endpoint, job):
            continue
        k = switch[endpoint.ocs]
        slot = k * width + at[home]
        if leaving[slot] > 0:
            leaving[slot] -= 1
            homes[endpoint.name] = names[targets[k].pop()]
