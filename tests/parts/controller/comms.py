"""Jobs whose communication is recorded, and what servers and the controller say of it."""

from __future__ import annotations

from dataclasses import replace

from controller.devices.engine import Recording
from controller.schema.insight.comms import CommsView
from controller.schema.jobs import read_job
from tests.parts.controller.rack import Rack
from tests.parts.measure.recordings import recording

MB = 10**6


async def running(rack: Rack, name: str = "red", **fields: object) -> None:
    request = read_job({"name": name, "count": 2, "command": ["x"], **fields})
    await rack.desks.jobs.submit(request)
    await rack.state(name, "running")


def recorded(rack: Rack, calls: int, *, job: str = "red", **fields: object) -> list[Recording]:
    """Return what the servers of a job's ranks say of them."""
    found = []
    for spec in rack.engine.specs[job]:
        one = recording([(MB, k, k + 0.1) for k in range(calls)], rank=spec.key.rank)
        own = replace(one, job=job, epoch=spec.key.epoch, server=spec.server)
        found.append(replace(own, **fields))  # type: ignore[arg-type]
    return found


async def view(rack: Rack, job: str = "red", rank: int | None = None) -> CommsView:
    await rack.parts.comms.read()
    return await rack.desks.comms.view(job, rank=rank, since_s=None)


def calls(shown: CommsView) -> int:
    return sum(row.calls for row in shown.rows)
