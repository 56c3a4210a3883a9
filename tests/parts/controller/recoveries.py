"""What the stories of lost hardware have in common."""

from __future__ import annotations

from dataclasses import replace

from controller.devices.engine import RankState
from controller.state.kept.recoveries import RecoveryRecord
from controller.state.records import JobRecord
from controller.state.state import State
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

LOST = "the GPU is lost"
LIMIT_S = 600.0
"""Longest wait: a job that has died often is started again after a minute, or several."""


def state_of(rack: Rack) -> State:
    return rack.parts.state


def job_of(rack: Rack, name: str = "red") -> JobRecord:
    return state_of(rack).jobs[name]


async def running(rack: Rack, name: str = "red", count: int = 4, **fields: object) -> JobRecord:
    """Start a job that lost hardware does not end: it has checkpoints, or starts again from 0."""
    fields.setdefault("endpoints", [f"gpu{n}" for n in range(count)])
    if "checkpoint" not in fields:
        fields.setdefault("restart", "on-failure:3")
    await submit(rack, name, count, **fields)
    await rack.state(name, "running")
    return job_of(rack, name)


def kill(rack: Rack, endpoint: str, code: int | None = 137) -> None:
    """Take a GPU away, and with it the rank that uses it."""
    rack.engine.sick = {**rack.engine.sick, endpoint: LOST}
    for key, status in rack.engine.statuses.items():
        if status.endpoint != endpoint or status.state is RankState.EXITED:
            continue
        if code is None:
            rack.engine.statuses[key] = replace(status, reason=LOST, fault="lost")
        else:
            rack.engine.exit(*key, code)


def rows(rack: Rack, job: str = "red") -> list[RecoveryRecord]:
    return [r for r in state_of(rack).recoveries.values() if r.job == job]


async def again(rack: Rack, before: JobRecord) -> JobRecord:
    """Wait until the job runs in a later epoch, and nothing is under way with it."""

    def goes_on() -> bool:
        job = job_of(rack, before.name)
        quiet = not rack.see.recovers(job.name)
        return job.state == "running" and job.epoch > before.epoch and quiet

    try:
        await rack.until(goes_on, LIMIT_S)
    except TimeoutError as error:
        raise AssertionError(job_of(rack, before.name), rows(rack, before.name)) from error
    return job_of(rack, before.name)


def reasons(rack: Rack) -> list[str]:
    return [event.reason for event in state_of(rack).events.since(0, 500)]


def check(rack: Rack) -> None:
    """Assert what must be true at every moment at which nothing is under way."""
    state = state_of(rack)
    held = [e for job in state.jobs.values() if job.holding for e in job.endpoints]
    assert len(held) == len(set(held)), "an endpoint has two ranks"
    spares = [e for job in state.jobs.values() if job.holding for e in job.spares]
    assert len(spares) == len(set(spares)), "two jobs have one spare"
    assert not set(spares) & set(held), "a spare is in use"
    for job in state.jobs.values():
        if job.state == "running":
            mine = {s.rank: s for s in rack.engine.statuses.values() if s.job == job.name}
            assert [mine[r].endpoint for r in sorted(mine)] == list(job.endpoints)
            assert {s.epoch for s in mine.values()} == {job.epoch}
    light = rack.aggregators.light()
    assert light == state.light.attachments, "the light is where the intent says"
    assert not state.light.held, "nothing stays drained"


async def settled(rack: Rack) -> bool:
    """Wait until the job runs on endpoints that work, and nothing is under way.

    A job that finds too few of them waits in the queue until an operator has repaired the rack;
    return whether that was needed.
    """
    repaired = False

    async def whole() -> bool:
        nonlocal repaired
        state, job = state_of(rack), job_of(rack)
        if job.state == "pending" and "red" in state.jobs.queue.holds and _quiet(rack, state):
            await mended(rack)
            repaired = True
        answering = rack.engine.reachable()
        works = all(
            e not in rack.engine.sick and answering[state.cables[e].server] for e in job.endpoints
        )
        if job.state == "running" and works and _quiet(rack, state):
            mine = {s.endpoint for s in rack.engine.statuses.values() if s.job == "red"}
            if mine == set(job.endpoints) and not _dead(rack):
                return True
        assert job.state not in ("failed", "cancelled", "completed"), job
        return False

    await rack.until(whole, LIMIT_S)
    return repaired


def _dead(rack: Rack) -> bool:
    return any(s.exit_code is not None for s in rack.engine.statuses.values())


def _quiet(rack: Rack, state: State) -> bool:
    return not (
        rack.see.recovers("red")
        or state.transactions.running
        or rack.see.interrupted
        or state.light.held
    )


async def mended(rack: Rack) -> None:
    """Repair everything: the operator releases what is out of use."""
    rack.engine.sick = {}
    for server in list(rack.engine.lost):
        rack.engine.lost.discard(server)
        rack.engine.kept.back(server)
    state = state_of(rack)
    await rack.until(lambda: not state.light.unfit and not state.drains.left)
    for name in list(state.light.quarantine):
        await rack.desks.quarantine.release(name)
    await rack.until(lambda: _quiet(rack, state))
