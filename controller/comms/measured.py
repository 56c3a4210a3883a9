"""What a job's collectives could be: the latest measurement on a ring like the job's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from controller.comms.latest import LatestResults
from controller.schema.insight.comms import CommsRowView, CommsView
from controller.state.records import JobRecord
from controller.state.state import State
from measure.collectives.matching import LEAST_BYTES, matching

RingRate = Callable[[Sequence[str], Mapping[str, str | None]], float | None]
"""Bytes/s that measured links let a ring have that is alone: its members in order, and all homes.
None where the links were not measured."""

_RING_OPERATIONS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


class Measured:
    """Compares jobs' bus bandwidth with measurements."""

    def __init__(self, state: State, latest: LatestResults, ring_rate: RingRate) -> None:
        self._state = state
        self._latest = latest
        self._ring_rate = ring_rate

    async def compared(self, job: JobRecord, view: CommsView) -> CommsView:
        """Return a job's document with its efficiency."""
        rows = sorted(
            (row for row in view.rows if row.rank is None and row.busbw and not row.tag),
            key=lambda row: -row.total_s,
        )
        if not rows or not job.endpoints:
            return view
        await self._latest.refresh()
        here: Mapping[str, str | None] = self._state.light.homes()
        if job.ended:
            here = {**here, **dict(zip(job.endpoints, job.final_homes, strict=False))}
        found = self._against_collectives(rows, [here.get(e) for e in job.endpoints])
        found = found or self._against_links(rows, job, here)
        if found is None:
            return view
        efficiency, of = found
        return view.model_copy(update={"efficiency": efficiency, "efficiency_of": of})

    def _against_collectives(
        self, rows: Sequence[CommsRowView], homes: Sequence[str | None]
    ) -> tuple[float, str] | None:
        known = self._latest.collectives()
        if known is None:
            return None
        ident, result = known
        for row in rows:
            figure = matching(result, row.op, homes, row.bytes)
            if figure is not None and row.busbw is not None:
                best, size = figure
                return row.busbw / best, f"{_named(row)}, to {size} bytes of {ident}"
        return None

    def _against_links(
        self, rows: Sequence[CommsRowView], job: JobRecord, homes: Mapping[str, str | None]
    ) -> tuple[float, str] | None:
        rate = self._ring_rate(job.endpoints, homes)
        large = [r for r in rows if r.op in _RING_OPERATIONS and r.bytes >= LEAST_BYTES]
        if not rate or not large or large[0].busbw is None:
            return None
        return large[0].busbw / rate, f"{_named(large[0])}, to its ring's rate over measured links"


def _named(row: CommsRowView) -> str:
    return f"{row.op} of {row.bytes} bytes"
