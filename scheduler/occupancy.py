"""Derives homes and port occupancy from a fabric, and checks its consistency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite

from scheduler.model import Endpoint, Fabric, Move, Site, Slot


class FabricError(ValueError):
    """The fabric contradicts itself (unknown name, endpoint in two jobs, port used twice)."""


def home_of(homes: Mapping[str, str | None], endpoint: Endpoint) -> str | None:
    """Return the endpoint's aggregator, None when dark; a hard-wired one keeps its own."""
    return endpoint.fixed if endpoint.fixed is not None else homes.get(endpoint.name)


def all_homes(fabric: Fabric) -> dict[str, str | None]:
    """Return the home of every endpoint of the site, in site order."""
    return {e.name: home_of(fabric.homes, e) for e in fabric.site.endpoints}


def capacities(fabric: Fabric) -> dict[Slot, int]:
    """Return the optical ports that endpoints can have, of every slot with any, in site order."""
    cabled = {(a.name, ocs): n for a in fabric.site.aggregators for ocs, n in a.ports.items()}
    held = fabric.held_ports
    return {slot: n for slot, ports in cabled.items() if (n := ports - held.get(slot, 0)) > 0}


def occupied(endpoints: Iterable[Endpoint], homes: Mapping[str, str | None]) -> Counter[Slot]:
    """Count the optical ports that these endpoints occupy."""
    taken: Counter[Slot] = Counter()
    for endpoint in endpoints:
        home = homes.get(endpoint.name)
        if endpoint.ocs is not None and home is not None:
            taken[home, endpoint.ocs] += 1
    return taken


def check(fabric: Fabric) -> None:
    """Raise FabricError unless names are known, jobs are disjoint and ports suffice."""
    known = {e.name for e in fabric.site.endpoints}
    aggregators = {a.name for a in fabric.site.aggregators}
    for name, home in fabric.homes.items():
        if name not in known:
            raise FabricError(f"homes names endpoint {name}, which the site does not have")
        if home is not None and home not in aggregators:
            raise FabricError(f"{name} is homed on {home}, which the site does not have")
    _check_jobs(fabric, known)
    capacity = capacities(fabric)
    for slot, used in occupied(fabric.site.endpoints, all_homes(fabric)).items():
        if used > capacity.get(slot, 0):
            raise FabricError(
                f"{slot[0]} has {capacity.get(slot, 0)} ports on {slot[1]},"
                f" but {used} endpoints are homed there"
            )


def _check_jobs(fabric: Fabric, known: set[str]) -> None:
    owner: dict[str, str] = {}
    for job in fabric.jobs:
        if not (isfinite(job.weight) and job.weight >= 0):
            raise FabricError(f"job {job.name} has weight {job.weight}; it must be 0 or more")
        for name in job.endpoints:
            if name not in known:
                raise FabricError(f"job {job.name} holds {name}, which the site does not have")
            if name in owner:
                raise FabricError(f"{name} is held by {owner[name]} and again by {job.name}")
            owner[name] = job.name


def moves_between(
    site: Site, before: Mapping[str, str | None], after: Mapping[str, str | None]
) -> tuple[Move, ...]:
    """Return the moves that lead from one map of homes to the other, in site order."""
    return tuple(
        Move(e.name, before[e.name], after[e.name])
        for e in site.endpoints
        if before[e.name] != after[e.name]
    )


def displace_idle(
    ports: Mapping[Slot, int],
    idle: Iterable[Endpoint],
    homes: dict[str, str | None],
    taken: Mapping[Slot, int],
) -> None:
    """Re-home the idle endpoints whose ports others need, and no others; changes ``homes``.

    ``ports`` are those that endpoints can have, ``taken`` counts the ports that all other
    endpoints use. An idle endpoint goes dark when its optical switch has no free port.
    """
    room = Counter(ports)
    room.subtract(taken)
    displaced: list[tuple[Endpoint, str]] = []
    for endpoint in idle:
        home = homes.get(endpoint.name)
        if endpoint.ocs is None or home is None:
            continue
        if room[home, endpoint.ocs] > 0:
            room[home, endpoint.ocs] -= 1
        else:
            displaced.append((endpoint, endpoint.ocs))
    for endpoint, ocs in displaced:
        target = next((slot for slot in ports if slot[1] == ocs and room[slot] > 0), None)
        homes[endpoint.name] = None if target is None else target[0]
        if target is not None:
            room[target] -= 1
