"""Decides how a job goes on: with spares, under other aggregators, or with fewer ranks. Pure.

The order of the ranks is kept: a spare has the rank of the endpoint that it replaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from checkpoints.ledger import StepRecord
from checkpoints.restore import choose_spares
from checkpoints.values import Places
from controller.state.kept.recoveries import RecoveryWay
from controller.state.records import JobRecord
from scheduler.model import Endpoint, Fabric
from scheduler.occupancy import capacities
from scheduler.regroup import spare as regroup


@dataclass(slots=True, frozen=True)
class SwapPlan:
    """How a job goes on. ``moves`` are the new homes of endpoints whose light moves."""

    endpoints: tuple[str, ...]
    """Of the new run, in rank order."""
    how: RecoveryWay
    swaps: Mapping[str, str] = field(default_factory=dict)
    moves: Mapping[str, str | None] = field(default_factory=dict)
    why: str = ""
    """What could not be replaced, and why not by a spare."""


def fits(job: JobRecord, endpoint: Endpoint) -> bool:
    """Whether an endpoint is what the job asked for."""
    asked = job.request
    return (
        asked.model in (None, endpoint.model)
        and endpoint.memory_bytes >= asked.min_memory_bytes
        and {volume.volume for volume in asked.volumes} <= endpoint.volumes
    )


def by_spares(
    fabric: Fabric,
    job: Sequence[str],
    dead: Collection[str],
    spares: Sequence[str],
    *,
    record: StepRecord | None,
    places: Places,
    servers: Collection[str],
    lost: Collection[str],
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return the spare of each dead endpoint that gets one, and the moves that this needs.

    ``servers`` are those that answer, ``lost`` aggregators and switches on which no light moves.
    """
    ranks = {name: rank for rank, name in enumerate(job) if name in dead}
    left = list(spares)
    while left:
        offered = regroup.offers(fabric, list(ranks), left, lost)
        chosen, _ = choose_spares(ranks, offered, record, places, servers)
        swaps = {swap.dead: swap.spare for swap in chosen}
        try:
            moves = regroup.moves(fabric, swaps, lost)
        except regroup.NoPlaceError as error:
            left = [name for name in left if name not in error.spares]
            continue
        return swaps, {move.endpoint: move.target for move in moves}
    return {}, {}


def elsewhere(
    fabric: Fabric, job: Sequence[str], moving: Collection[str], lost: Collection[str]
) -> dict[str, str] | None:
    """Return other homes for endpoints whose aggregator is lost; None when ports are missing.

    Those with the most of the job's other endpoints come first.
    """
    gone = {*lost, *(home for name in moving if (home := fabric.homes.get(name)) is not None)}
    ocs = {e.name: e.ocs for e in fabric.site.endpoints}
    taken = Counter((home, ocs[name]) for name, home in fabric.homes.items() if home)
    mine = Counter(fabric.homes.get(name) for name in job if name not in moving)
    order = sorted(
        ((slot, n) for slot, n in capacities(fabric).items() if slot[0] not in gone),
        key=lambda port: -mine[port[0][0]],
    )
    found: dict[str, str] = {}
    for name in job:
        if name not in moving:
            continue
        switch = ocs[name]
        if switch is None or switch in lost:
            return None
        target = next((s for s, n in order if s[1] == switch and n > taken[s]), None)
        if target is None:
            return None
        taken[target] += 1
        found[name] = target[0]
    return found


def darkened(
    dead: Collection[str],
    homes: Mapping[str, str | None],
    ocs: Mapping[str, str | None],
    lost: Collection[str],
) -> dict[str, str | None]:
    """Return the dead endpoints whose circuit can be broken, each with its new home: none."""
    return {
        name: None
        for name in dead
        if homes.get(name) is not None and ocs.get(name) is not None and ocs[name] not in lost
    }
