"""Places in HiveD's buddy cells (Zhao et al., OSDI'20; microsoft/hivedscheduler, pkg/algorithm).

A cell of level ``l`` is 2^l neighbouring endpoints under one aggregator; a job asks for the
smallest cell that holds it and waits until one is free. A free cell of a higher level is split
into buddies, two free buddies merge again: free endpoints stay in large cells. Cells are taken
under the aggregator with the fewest idle endpoints. The part of a cell that a job does not need
is free at lower levels. All jobs are of one tenant, so virtual clusters are left out. Affinity
is hard, as in the paper, except for jobs larger than any cell: those take several cells.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.placement.index import DARK
from scheduler.sim.cluster import ANY_GPU, Cluster, Live, ReplayRegroup, ReplayStart
from scheduler.sim.rivals.leaves import idle_by_aggregator
from scheduler.sim.trace import TraceJob

Cell = tuple[int, int]
"""First endpoint, by its position in the row of all cells, and level."""


class BuddyCells:
    """Buddy allocation, one row of endpoints cut into top-level cells."""

    name = "hived"

    def __init__(self) -> None:
        self._row: list[str] = []
        self._aggregator: list[int] = []
        self._root: list[int] = []
        """First position of the top-level cell of each position."""
        self._top: dict[int, int] = {}
        """Level of the top-level cell by its first position."""
        self._free: list[dict[int, None]] = []
        self._held: dict[str, list[Cell]] = {}

    def start(self, cluster: Cluster, job: TraceJob) -> ReplayStart | None:
        """Give the job a cell, or keep it waiting for one."""
        if not self._row:
            self._cut(cluster)
        free = idle_by_aggregator(cluster)
        if sum(free) < job.gpus:
            return None
        cells = self._allocate(job.gpus, free)
        if cells is None:
            return None
        self._held[job.name] = cells
        places = (p for first, level in cells for p in range(first, first + (1 << level)))
        return ReplayStart(tuple(self._row[p] for p in places))

    def ended(self, cluster: Cluster, live: Live) -> None:
        """Free the job's cells, and merge buddies."""
        del cluster
        for cell in self._held.pop(live.job.name):
            self._release(cell)

    def improve(self, cluster: Cluster) -> Iterable[ReplayRegroup]:
        """Never re-place a running job."""
        del cluster
        return ()

    def _cut(self, cluster: Cluster) -> None:
        """Cut every aggregator's endpoints into top-level cells, the largest first."""
        index = cluster.index
        pool = index.pool(ANY_GPU)
        below: list[list[int]] = [[] for _ in index.site.aggregators]
        for e in pool.of(range(index.size)):
            if index.home[e] != DARK:
                below[index.home[e]].append(e)
        for a, members in enumerate(below):
            left = list(members)
            while left:
                level = len(left).bit_length() - 1
                first = len(self._row)
                self._top[first] = level
                while len(self._free) <= level:
                    self._free.append({})
                self._free[level][first] = None
                self._row += [index.names[e] for e in left[: 1 << level]]
                self._aggregator += [a] * (1 << level)
                self._root += [first] * (1 << level)
                left = left[1 << level :]

    def _allocate(self, count: int, free: list[int]) -> list[Cell] | None:
        largest = len(self._free) - 1
        if count <= 1 << largest:
            first = self._cell((count - 1).bit_length(), free)
            return None if first is None else self._trim(first, (count - 1).bit_length(), count)
        cells: list[Cell] = []
        level = largest
        while count:
            level = min(level, count.bit_length() - 1)
            first = self._cell(level, free)
            if first is not None:
                cells.append((first, level))
                count -= 1 << level
            elif level == 0:
                for cell in cells:
                    self._release(cell)
                return None
            else:
                level -= 1
        return cells

    def _cell(self, level: int, free: list[int]) -> int | None:
        """Allocate a free cell of this level, if necessary split from the lowest higher level."""
        for higher in range(level, len(self._free)):
            if self._free[higher]:
                first = min(
                    self._free[higher], key=lambda place: (free[self._aggregator[place]], place)
                )
                del self._free[higher][first]
                for below in range(level, higher):
                    self._free[below][first + (1 << below)] = None
                return first
        return None

    def _trim(self, first: int, level: int, count: int) -> list[Cell]:
        """Keep ``count`` endpoints of a cell; the rest is free again."""
        if count == 1 << level:
            return [(first, level)]
        half = 1 << (level - 1)
        if count <= half:
            self._free[level - 1][first + half] = None
            return self._trim(first, level - 1, count)
        return [(first, level - 1), *self._trim(first + half, level - 1, count - half)]

    def _release(self, cell: Cell) -> None:
        first, level = cell
        root = self._root[first]
        while level < self._top[root]:
            buddy = root + ((first - root) ^ (1 << level))
            if buddy not in self._free[level]:
                break
            del self._free[level][buddy]
            first = min(first, buddy)
            level += 1
        self._free[level][first] = None
