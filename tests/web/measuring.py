"""Measurements through the controller: their jobs print what probes print, and end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.measurements.views import job_name
from controller.schema.insight.measurements import MeasurementRequest, MeasurementView
from controller.state.kept.measurements import MeasurementRecord
from measure.kinds import Line, Run
from measure.links.settings import BANDWIDTH_FROM
from tests.parts.controller.rack import Rack

Says = Callable[[MeasurementRecord, int, Run], Sequence[Line]]
"""What the ranks of a run print: of a record, the number of the run, and the run."""


async def begun(rack: Rack, type_: str, *endpoints: str, **settings: Any) -> str:
    """Start a measurement as an operator; return its id once its first job runs."""
    request = MeasurementRequest.model_validate(
        {"type": type_, "endpoints": list(endpoints), "settings": settings}
    )
    view = await rack.desks.measurements.start(request, "alice")
    await _running(rack, job_name(view.id, 0))
    return view.id


async def finished(rack: Rack, ident: str, says: Says) -> MeasurementView:
    """Let every job of a measurement print and end; return it with its result."""
    number = 0
    while True:
        runs = _runs(rack, ident)
        if number < len(runs):
            name = job_name(ident, number)
            await _running(rack, name)
            record = rack.see.measurements[ident]
            lines: dict[int, list[str]] = {}
            for line in says(record, number, runs[number]):
                if line.run == number:
                    lines.setdefault(line.rank, []).append(json.dumps(line.record))
            for rank in range(len(runs[number].endpoints)):
                rack.engine.output[name, rank] = tuple(lines.get(rank, ()))
            for rank in range(len(runs[number].endpoints)):
                rack.engine.exit(name, rank, 0)
            number += 1
            continue

        def on(done: int = number) -> bool:
            ended = rack.see.measurements[ident].ended
            return ended or len(_runs(rack, ident)) > done

        await rack.until(on)
        if len(_runs(rack, ident)) == number:
            return await rack.desks.measurements.view(ident)


async def measured(
    rack: Rack, says: Says, type_: str, *endpoints: str, **settings: Any
) -> MeasurementView:
    """Carry out a measurement from its start to its end."""
    return await finished(rack, await begun(rack, type_, *endpoints, **settings), says)


def pairs(homes: Mapping[str, str], record: MeasurementRecord, slow: str = "") -> list[Line]:
    """Return what ranks print of every pair: 30 MB/s under one aggregator, 14 MB/s across.

    What ``slow`` sends takes a quarter longer.
    """
    small = [size for size in record.settings["sizes"] if size < BANDWIDTH_FROM]
    large = [size for size in record.settings["sizes"] if size >= BANDWIDTH_FROM]
    found: list[Line] = []
    for number in range(record.settings["repetitions"]):
        for a, one in enumerate(record.endpoints):
            for b, other in enumerate(record.endpoints):
                if a == b:
                    continue
                rate = 30e6 if homes[one] == homes[other] else 14e6
                rate *= (1 + 0.002 * number) * (0.8 if one == slow else 1.0)
                pair = {
                    "probe": "pair",
                    "sender": a,
                    "receiver": b,
                    "number": number,
                    "latency_s": [[size, 1e-4] for size in small if a < b],
                    "bandwidth": [[size, rate] for size in large],
                }
                found.append(Line(0, 0, pair))
    return found


def _runs(rack: Rack, ident: str) -> Sequence[Run]:
    """Return the runs so far, as its record has them: without their commands."""
    return [
        Run(command=(), endpoints=one.endpoints, label=one.label, homes=one.homes)
        for one in rack.see.measurements[ident].runs
    ]


async def _running(rack: Rack, job: str) -> None:
    async def reached() -> bool:
        return any(j.name == job and j.state == "running" for j in await rack.desks.jobs.jobs())

    await rack.until(reached)
