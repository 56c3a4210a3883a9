"""Finds the optimum of a small regroup by trying all maps of homes; shares no planner code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from math import ceil

from scheduler.model import Aggregator, Fabric, Job, Limits, Objective, SpreadBy

Homes = dict[str, str | None]
Key = tuple[float, int, int, int]


def homes_now(fabric: Fabric) -> Homes:
    """Return every endpoint's home."""
    return {e.name: e.fixed or fabric.homes.get(e.name) for e in fabric.site.endpoints}


def aggregators_of(fabric: Fabric) -> tuple[Aggregator, ...]:
    """Return the aggregators without the ports that are held."""
    held = fabric.held_ports
    return tuple(
        replace(a, ports={k: n - held.get((a.name, k), 0) for k, n in a.ports.items()})
        for a in fabric.site.aggregators
    )


def fits(fabric: Fabric, homes: Homes) -> bool:
    """Return whether every aggregator has ports for its endpoints of each switch."""
    used = Counter((homes[e.name], e.ocs) for e in fabric.site.endpoints if e.ocs and homes[e.name])
    ports = {(a.name, k): n for a in aggregators_of(fabric) for k, n in a.ports.items()}
    return all(n <= ports.get((str(a), str(k)), 0) for (a, k), n in used.items())


def places(job: Job, homes: Homes) -> int:
    """Return the span of a job; every dark member is a place of its own."""
    own = [homes[name] for name in job.endpoints]
    return len({h for h in own if h}) + own.count(None)


def least(fabric: Fabric, job: Job) -> int:
    """Return LB_j as the project defines it."""
    members = [e for e in fabric.site.endpoints if e.name in job.endpoints]
    optical = Counter(e.ocs for e in members if e.ocs)
    aggregators = aggregators_of(fabric)

    def most_apart() -> int:
        """Try all numbers of aggregators: the first that can hold the members by the spread."""
        spread = job.spread
        if spread is None or spread.by is SpreadBy.SERVER:
            return 0
        homes = homes_now(fabric)
        there = Counter(homes[n] for n in job.endpoints if homes[n])
        caps = sorted((max(n, spread.most) for n in there.values()), reverse=True)
        caps += [spread.most] * len(members)
        return next(m for m in range(len(members) + 1) if sum(caps[:m]) >= len(members))

    def parts(count: int, size: int) -> int:
        return ceil(count / size) if size else count

    def ports(aggregator: Aggregator) -> int:
        wired = [e for e in fabric.site.endpoints if e.fixed == aggregator.name]
        return sum(aggregator.ports.values()) + max(aggregator.fixed_ports, len(wired))

    return max(
        most_apart(),
        len({e.fixed for e in members if e.fixed}),
        parts(len(members), max(map(ports, aggregators))),
        parts(optical.total(), max(sum(a.ports.values()) for a in aggregators)),
        *(parts(n, max(a.ports.get(k, 0) for a in aggregators)) for k, n in optical.items()),
        0,
    )


def apart(fabric: Fabric, homes: Homes) -> bool:
    """Return whether no job has more under an aggregator than its spread allows, or than now."""
    before = homes_now(fabric)
    for job in fabric.jobs:
        if job.spread is not None and job.spread.by is SpreadBy.AGGREGATOR:
            was = Counter(before[n] for n in job.endpoints)
            now = Counter(homes[n] for n in job.endpoints if homes[n])
            if any(n > max(job.spread.most, was[a]) for a, n in now.items()):
                return False
    return True


def optimum(fabric: Fabric, limits: Limits) -> Key:
    """Return the least objective that any allowed map of homes has."""
    before = homes_now(fabric)
    owner = {name: job for job in fabric.jobs for name in job.endpoints}
    aggregators: list[str | None] = [a.name for a in fabric.site.aggregators]
    options = []
    for e in fabric.site.endpoints:
        job, home = owner.get(e.name), before[e.name]
        if e.fixed or e.name in fabric.unavailable or (job is not None and job.pinned):
            options.append([home])
        elif job is not None and home is not None:
            options.append(aggregators)
        else:
            options.append([*aggregators, None])
    bounds = {job.name: least(fabric, job) for job in fabric.jobs}
    keys = []
    total_before = sum(j.weight * (places(j, before) - bounds[j.name]) for j in fabric.jobs)
    for selected in product(*options):
        homes = dict(zip(before, selected, strict=True))
        if not fits(fabric, homes) or not apart(fabric, homes):
            continue
        moved = [e for e, home in homes.items() if home != before[e]]
        running = [e for e in moved if e in owner]
        touched = {owner[e].name: len(owner[e].endpoints) for e in running}
        excess = {j.name: places(j, homes) - bounds[j.name] for j in fabric.jobs}
        total = sum(j.weight * excess[j.name] for j in fabric.jobs)
        if limits.max_moves is not None and len(running) > limits.max_moves:
            continue
        if limits.max_jobs_paused is not None and len(touched) > limits.max_jobs_paused:
            continue
        if total > total_before + 1e-9:
            continue
        own = total if limits.only_job is None else float(excess[limits.only_job])
        second, third = sum(touched.values()), len(running)
        if limits.objective is Objective.MOVES:
            second, third = third, second
        keys.append((own, second, third, len(moved) - len(running)))
    return min(keys)
