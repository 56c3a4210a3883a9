"""Spares in the controller: reserved with the job, unusable for others, released at its end."""

from __future__ import annotations

import pytest

from checkpoints.values import Apart, Scheme
from controller.schema.jobs import read_job
from controller.schema.submit.request import LocalCheckpoints
from controller.state.records import CheckpointSpec, CopiesSpec, JobSpec
from controller.state.scheduling import spread_of
from scheduler.model import Spread, SpreadBy
from tests.parts.controller.rack import Rack


@pytest.mark.parametrize(
    ("count", "scheme", "most"),
    [
        (4, Scheme.PARTNER, 2),
        (5, Scheme.PARTNER, 2),
        (2, Scheme.PARTNER, 1),
        (1, Scheme.PARTNER, None),
        (8, Scheme.XOR, 2),
        (3, Scheme.XOR, 1),
        (8, Scheme.SINGLE, None),
    ],
)
def test_how_far_ranks_must_be_apart(count: int, scheme: Scheme, most: int | None) -> None:
    copies = CopiesSpec(scheme=scheme, apart=Apart.AGGREGATOR, set_size=4)
    spec = CheckpointSpec(local=LocalCheckpoints(size_bytes=1), copies=copies)
    wanted = None if most is None else Spread(SpreadBy.AGGREGATOR, most)
    assert spread_of(JobSpec(count=count, checkpoint=spec)) == wanted
    assert spread_of(JobSpec(count=count)) is None


async def test_a_spare_is_reserved_until_the_job_ends(rack: Rack) -> None:
    submit = rack.desks.jobs.submit
    request = {"name": "red", "count": 2, "command": ["true"], "spares": 1}
    await submit(read_job(request))
    await rack.state("red", "running")
    state = rack.see
    (spare,) = state.jobs["red"].spares
    assert spare not in state.jobs["red"].endpoints
    assert state.unavailable() == {spare: "spare of job red"}
    (job,) = state.fabric().jobs
    assert job.spares == (spare,)
    assert state.usage.ledger.open["red"].level.endpoints == 3
    await submit(read_job({"name": "blue", "count": 4, "command": ["true"]}))
    await rack.until(lambda: _waits(rack))
    assert state.jobs["blue"].reason.startswith("needs 4 endpoints, 3 of 6 are idle")
    await rack.desks.jobs.cancel("red")
    assert state.jobs["red"].spares == ()
    assert state.unavailable() == {}
    await rack.state("blue", "running")


async def _waits(rack: Rack) -> bool:
    return rack.see.jobs["blue"].reason.startswith("needs")
