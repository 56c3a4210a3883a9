"""Settings and ranks' lines of measurements of type ``collectives``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from measure.collectives.kind import COLLECTIVES
from measure.envelope import Body, Row
from measure.kinds import (
    Line,
    MeasuredEndpoint,
    MeasuredSite,
    RunEnd,
)
from probe.collectives import read_plan

ACCESS, BETWEEN = 240e6, 120e6
HOMES = {"gpu0": "as0", "gpu1": "as1", "gpu2": "as0", "gpu3": "as1"}


def fabric(homes: Mapping[str, str] = HOMES, **other: Any) -> MeasuredSite:
    known: dict[str, Any] = {
        "access_bps": ACCESS,
        "inter_aggregator_bps": BETWEEN,
        "links": {frozenset({"as0", "as1"}): 1},
        "free_ports": {"as0": 4, "as1": 4},
        "emulated": True,
    }
    return MeasuredSite(
        [MeasuredEndpoint(e, f"srv{e[3:]}", home) for e, home in homes.items()],
        **{**known, **other},
    )


def settings(site: MeasuredSite, **given: Any) -> Row:
    return COLLECTIVES.settings({"sizes": "64k,1m", "repetitions": 2, **given}, site)


def lines_of(
    site: MeasuredSite, chosen: Row, seconds: float = 0.1, slow: Mapping[int, float] | None = None
) -> list[Line]:
    """What sound ranks print: every point takes ``seconds``, rank r times its factor."""
    lines = []
    for number, run in enumerate(COLLECTIVES.runs(chosen, site, 1)):
        plan = read_plan(run.command[-1])
        for rank in range(len(run.endpoints)):
            group = plan.group_of(rank)
            for point in plan.points[group]:
                time = seconds * (slow or {}).get(rank, 1.0)
                record = {
                    "probe": "collective",
                    "group": group,
                    "operation": point.operation,
                    "size": point.size,
                    "count": point.count,
                    "iterations": 20,
                    "times_s": [time] * plan.repetitions,
                    "wrong": 0,
                    "note": "",
                }
                lines.append(Line(number, rank, record))
    return lines


def body(
    site: MeasuredSite, chosen: Row, lines: Sequence[Line], ends: Sequence[RunEnd] = ()
) -> Body:
    runs = COLLECTIVES.runs(chosen, site, 1)
    return COLLECTIVES.body(chosen, site, 1, lines, ends or [RunEnd(True) for _ in runs])
