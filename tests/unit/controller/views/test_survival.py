"""What a job's document says of its checkpoints, spares and of the recovery that goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from checkpoints.ledger import Key
from controller.schema.jobs import JobView, read_job
from controller.state.kept.recoveries import RecoveryRecord
from tests.parts.controller.rack import Rack

KEPT: dict[str, Any] = {
    "complete": "dcp",
    "local": {"where": "disk", "size_bytes": 2**30},
}


class Safety:
    """What a test orders to be said of every job's checkpoints."""

    found: tuple[float, str] | None = None


async def submit(rack: Rack, name: str, **fields: object) -> JobView:
    asked = {"name": name, "count": 2, "command": ["true"], **fields}
    view = await rack.desks.jobs.submit(read_job(asked))
    await rack.state(name, "running")
    return view


def watched(rack: Rack) -> Safety:
    safety = Safety()
    rack.parts.checkpoints.protected = lambda job: safety.found  # type: ignore[method-assign]
    return safety


def condition(job: JobView) -> tuple[bool, str] | None:
    return next(((c.status, c.message) for c in job.conditions if c.type == "Protected"), None)


async def test_a_job_shows_how_its_checkpoints_are_kept_and_can_be_asked_for_again(
    rack: Rack,
) -> None:
    fields = {"spares_needed": False, "at_least": 2}
    await submit(rack, "red", checkpoint=KEPT, **fields)
    job = rack.desks.jobs.job("red")
    assert job.checkpoint is not None
    assert job.checkpoint.copies.scheme == "partner"  # the default is filled in
    assert (job.checkpoint.local.keep, job.checkpoint.complete) == (2, "dcp")
    assert (job.spares_asked, job.spares_needed, job.at_least) == (0, False, 2)
    again = read_job({"count": 2, "checkpoint": job.checkpoint.model_dump()})
    assert again.checkpoint == job.checkpoint.value()
    rack.parts.state.jobs.change("red", spares=("gpu5",))
    assert rack.desks.jobs.job("red").spares == ["gpu5"]


async def test_a_job_without_checkpoints_shows_none(rack: Rack) -> None:
    safety = watched(rack)
    safety.found = (1.0, "")
    await submit(rack, "blue")
    job = rack.desks.jobs.job("blue")
    assert (job.checkpoint, job.spares, job.recovery, condition(job)) == (None, [], None, None)


async def test_protected_says_why_not(rack: Rack) -> None:
    await submit(rack, "red", checkpoint=KEPT)
    safety = watched(rack)
    unwritten = condition(rack.desks.jobs.job("red"))
    assert unwritten == (False, "no step is written yet")
    safety.found = (1.0, "rank 1 and its copy are both on srv0")
    assert condition(rack.desks.jobs.job("red")) == (False, safety.found[1])
    safety.found = (2.0, "")
    assert condition(rack.desks.jobs.job("red")) == (True, "")
    await rack.desks.jobs.cancel("red")
    await rack.state("red", "cancelled")
    assert condition(rack.desks.jobs.job("red")) is None


async def test_a_recovery_shows_its_phase(rack: Rack) -> None:
    await submit(rack, "red", checkpoint=KEPT)
    state = rack.parts.state
    row = RecoveryRecord(
        id="r1",
        job="red",
        submitted_at=state.jobs["red"].submitted_at,
        number=1,
        epoch=1,
        cause="endpoint",
        objects=("endpoint/gpu0",),
        failed_at=1.0,
    )
    seen = []
    for marks in ((), ("decided",), ("decided", "stopped"), ("decided", "stopped", "lit")):
        state.recoveries.put(replace(row, marks=dict.fromkeys(marks, 1.0)))
        seen.append(rack.desks.jobs.job("red").recovery)
    assert seen == ["decide", "stop", "light", "fetch"]
    state.recoveries.change("r1", stage="started")
    assert rack.desks.jobs.job("red").recovery == "first_step"
    state.recoveries.change("r1", stage="over")
    assert rack.desks.jobs.job("red").recovery is None


async def test_who_keeps_checkpoints_and_recovers_jobs_says_it_itself(rack: Rack) -> None:
    await submit(rack, "red", checkpoint=KEPT, restart="on-failure")
    job = rack.desks.jobs.job("red")
    assert (condition(job), job.recovery) == ((False, "no step is written yet"), None)
    key = Key(7, job.epoch)
    for spec in rack.engine.specs["red"]:
        assert spec.checkpoint is not None
        rack.engine.kept.write(spec.checkpoint.folder, key, spec.key.rank, spec.endpoint)

    async def said() -> bool:
        found = condition(rack.desks.jobs.job("red"))
        return found is not None and "step is written" not in found[1]

    await rack.until(said)
    rack.engine.exit("red", 0, 1)
    phases = set[str | None]()

    async def recovered() -> bool:
        job = rack.desks.jobs.job("red")
        phases.add(job.recovery)
        return job.recovery == "first_step" and job.epoch > key.epoch

    await rack.until(recovered)
    assert phases <= {None, "decide", "first_step"}
