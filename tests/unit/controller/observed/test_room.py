"""What light can do for a job that waits in another engine's queue."""

from __future__ import annotations

from dataclasses import replace

from controller.devices.observed import Turn
from controller.observed.waiting import room_for
from controller.state.records import JobRecord, JobSpec, Observed
from scheduler.model import Aggregator, Endpoint, Fabric, Job, Site

SITE = Site(
    "small",
    tuple(Endpoint(name, ocs="ocs0", server=f"s-{name}") for name in "abcd"),
    (Aggregator("as0", {"ocs0": 2}), Aggregator("as1", {"ocs0": 2})),
)
HOMES = {"a": "as0", "b": "as0", "c": "as1", "d": "as1"}


def waiting(count: int, leaves: int = 1) -> JobRecord:
    told = Observed(
        engine="slurm", key="slurm:7", revision="7", turn=Turn.WAITS, leaves=leaves, curable=True
    )
    return JobRecord("slurm-7", JobSpec(count=count), "", 100.0, state="waiting", observed=told)


def test_idle_endpoints_are_brought_together() -> None:
    free = replace(SITE, aggregators=(Aggregator("as0", {"ocs0": 3}), SITE.aggregators[1]))
    fabric = Fabric(free, HOMES, (Job("x", ("a",)), Job("y", ("c",))))
    room = room_for(fabric, waiting(2))
    assert room.placement is not None
    assert [(move.endpoint, move.target) for move in room.placement.moves] == [("d", "as0")]


def test_running_endpoints_in_the_way_are_counted_and_not_moved() -> None:
    fabric = Fabric(SITE, HOMES, (Job("x", ("a",)), Job("y", ("c",))))
    room = room_for(fabric, waiting(2))
    assert room.placement is None
    assert room.moves_needed == 1
    assert room.why == "the ports of one aggregator are in use by running jobs"


def test_a_job_that_accepts_two_aggregators_needs_no_help() -> None:
    fabric = Fabric(SITE, HOMES, (Job("x", ("a",)), Job("y", ("c",))))
    room = room_for(fabric, waiting(2, leaves=2))
    assert room.placement is not None
    assert room.placement.moves == ()


def test_too_few_idle_endpoints_are_not_cured_by_light() -> None:
    fabric = Fabric(SITE, HOMES, (Job("x", ("a", "b", "c")),))
    room = room_for(fabric, waiting(2))
    assert (room.placement, room.moves_needed) == (None, None)
    assert "idle" in room.why
