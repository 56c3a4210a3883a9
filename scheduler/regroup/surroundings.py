"""Counts a fabric around one running job: its ports, and the parts of other jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.model import SpreadBy
from scheduler.placement.index import DARK, FabricIndex

Vector = list[int]
"""Counts per optical switch."""

_NONE: frozenset[int] = frozenset()


@dataclass(slots=True, frozen=True)
class DisplaceablePart:
    """Members of another job under one aggregator that leave it together."""

    name: str
    home: int
    size: int
    """Endpoints of the whole job: it pauses as a whole."""
    vector: Vector
    members: list[int]
    elsewhere: frozenset[int]
    """Other aggregators with members of the job."""
    most: int | None = None
    """Members that its spread allows under one aggregator."""
    bound: bool = False
    """Some of its job's members stay, so these may only go where the job has others."""

    def may_go(self, aggregator: int) -> bool:
        """Return whether all its members may go to another aggregator, by spread and span."""
        if self.bound:
            return aggregator in self.elsewhere
        if self.most is None:
            return True
        return len(self.members) <= self.most and aggregator not in self.elsewhere


@dataclass(slots=True)
class Surroundings:
    """Counts of the fabric around one job."""

    index: FabricIndex
    name: str
    movable: Callable[[str], bool]
    members: list[int]
    total: Vector
    """Members of the job."""
    own: list[Vector]
    """Members of the job per aggregator."""
    room: list[Vector]
    """Ports without a busy or unavailable endpoint: idle ones are displaced for free."""
    _busy: list[dict[str, list[int]]] = field(default_factory=list)
    """Per aggregator the members of every job; filled when a job must be displaced."""
    _parts: dict[int, list[DisplaceablePart]] = field(default_factory=dict)
    """Per aggregator the parts that may move; filled on demand."""

    @staticmethod
    def of(index: FabricIndex, name: str, movable: Callable[[str], bool]) -> Surroundings:
        """Count around a running job. ``movable`` returns which other jobs may be moved."""
        members = [index.number[n] for n in index.jobs[name].endpoints]
        switches, size = index.fixed_slot, len(index.site.aggregators)
        own = [[0] * switches for _ in range(size)]
        total = [0] * switches
        for e in members:
            total[index.slot[e]] += 1
            if index.home[e] != DARK:
                own[index.home[e]][index.slot[e]] += 1
        room = (index.ports - index.held).tolist()
        return Surroundings(index, name, movable, members, total, own, room)

    def missing(self, targets: Sequence[int]) -> Vector:
        """Return the ports per switch that other jobs must leave to the job under the targets."""
        own, room = self.own, self.room
        return [
            max(n - sum(own[a][k] + room[a][k] for a in targets), 0)
            for k, n in enumerate(self.total)
        ]

    @property
    def switches(self) -> range:
        """The numbers of the optical switches."""
        return range(self.index.fixed_slot)

    def parts(self, aggregator: int) -> list[DisplaceablePart]:
        """Return the parts under one aggregator that may move."""
        found = self._parts.get(aggregator)
        if found is None:
            inside = self._members_at(aggregator)
            parts = (self._part(aggregator, name, there) for name, there in inside.items())
            found = self._parts[aggregator] = [part for part in parts if part is not None]
        return found

    def _members_at(self, aggregator: int) -> dict[str, list[int]]:
        if not self._busy:
            index = self.index
            home, reserved = index.home, index.reserved
            self._busy = [{} for _ in self.room]
            for e, owner in enumerate(index.owner):
                if owner is not None and home[e] != DARK and e not in reserved:
                    self._busy[home[e]].setdefault(owner, []).append(e)
        return self._busy[aggregator]

    def _part(self, aggregator: int, name: str, inside: list[int]) -> DisplaceablePart | None:
        index = self.index
        job = index.jobs[name]
        if name == self.name or job.pinned or not self.movable(name):
            return None
        home, slot, fixed = index.home, index.slot, index.fixed_slot
        vector = [0] * fixed
        for e in inside:
            if slot[e] == fixed or e in index.unavailable:
                return None
            vector[slot[e]] += 1
        elsewhere = _NONE
        if len(job.endpoints) > len(inside):
            homes = {home[index.number[n]] for n in job.endpoints}
            elsewhere = frozenset(homes - {aggregator, DARK})
        spread = job.spread
        apart = spread is not None and spread.by is SpreadBy.AGGREGATOR
        most = spread.most if spread is not None and apart else None
        return DisplaceablePart(
            name, aggregator, len(job.endpoints), vector, inside, elsewhere, most
        )
