"""Jobs end at their time limits where they or their site say so, over fakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from base import clock
from controller.base.errors import ServiceError
from controller.jobs.limits import NEAR, TimeLimits
from controller.schema.submit.request import JobRequest
from controller.state.events import EventLog
from controller.state.records import LIMIT_GRACE_S, Event
from scheduler.model import TimeLimitAction
from sitefile import load_site
from testbed.simulated.clock import VirtualClock
from tests.parts.controller.jobs import events, submit, until
from tests.parts.controller.rack import Rack, crash
from tests.parts.sites import PAPER

HOUR = 3600.0
END = {"time_limit_s": HOUR, "time_limit_action": "end"}


class Steady:
    """A steady clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def limits(rack: Rack, steady: Steady) -> TimeLimits:
    parts = rack.parts
    return TimeLimits(parts.state, parts.ender, parts.jobs.is_busy, steady)


async def runs(rack: Rack, name: str) -> None:
    """Wait until a job runs and its start is over."""
    await rack.state(name, "running")
    await rack.until(lambda: not rack.see.handles(name))


async def test_a_job_ends_at_its_limit_and_not_before(rack: Rack) -> None:
    await submit(rack, "red", 2, **END, restart="on-failure")
    await runs(rack, "red")
    steady = Steady()
    watched = limits(rack, steady)
    watched.check()
    steady.now = HOUR - 1
    watched.check()
    assert rack.desks.jobs.job("red").state == "running"
    steady.now = HOUR
    watched.check()
    job = await until(rack, "red", state="failed")
    assert job.reason == "its time limit of 1 h ended it"
    assert rack.engine.graces["red"] == LIMIT_GRACE_S
    assert not rack.engine.holds(job.endpoints[0])
    assert job.restarts == 0


async def test_a_job_gets_the_time_that_its_checkpoint_needs(rack: Rack) -> None:
    await submit(rack, "red", 1, **END, checkpoint_grace_s=120.0)
    await runs(rack, "red")
    steady = Steady()
    watched = limits(rack, steady)
    watched.check()
    steady.now = HOUR
    watched.check()
    await rack.state("red", "failed")
    assert rack.engine.graces["red"] == 120.0


async def test_an_estimate_ends_no_job(rack: Rack) -> None:
    await submit(rack, "red", 1, time_limit_s=HOUR)
    await runs(rack, "red")
    steady = Steady()
    watched = limits(rack, steady)
    watched.check()
    steady.now = 10 * HOUR
    watched.check()
    assert not rack.see.ends("red")


async def test_a_step_of_the_wall_clock_ends_no_job(rack: Rack) -> None:
    await submit(rack, "red", 1, **END)
    await runs(rack, "red")
    watched = limits(rack, Steady())
    watched.check()
    date = clock.current()
    assert isinstance(date, VirtualClock)
    date.step(10 * HOUR)
    watched.check()
    assert not rack.see.ends("red")


async def test_a_controller_that_was_replaced_ends_no_job(rack: Rack) -> None:
    await submit(rack, "red", 1, **END)
    await runs(rack, "red")
    steady = Steady()
    watched = limits(rack, steady)
    watched.check()
    rack.parts.state.lose_command("a test")
    steady.now = HOUR
    watched.check()
    assert not rack.see.ends("red")


async def test_frozen_time_counts(rack: Rack) -> None:
    await submit(rack, "red", 1, **END)
    await runs(rack, "red")
    steady = Steady()
    watched = limits(rack, steady)
    watched.check()
    await rack.desks.jobs.pause("red")
    steady.now = HOUR
    watched.check()
    await rack.state("red", "failed")


async def test_the_wait_for_a_restart_counts(rack: Rack) -> None:
    await submit(rack, "red", 2, **END, restart="on-failure")
    await runs(rack, "red")
    steady = Steady()
    watched = limits(rack, steady)
    watched.check()
    rack.engine.exit("red", 0, 1)
    await rack.state("red", "starting")
    steady.now = HOUR
    watched.check()
    await rack.state("red", "failed")


async def test_another_operation_on_the_job_is_finished_first(rack: Rack) -> None:
    await submit(rack, "red", 1, **END)
    await runs(rack, "red")
    steady = Steady()
    watched = limits(rack, steady)
    watched.check()
    steady.now = HOUR
    with rack.parts.jobs.alone("red", "is being paused"):
        watched.check()
        assert not rack.see.ends("red")
    watched.check()
    await rack.state("red", "failed")


async def test_the_limit_counts_on_over_a_restart_of_the_controller(rack: Rack) -> None:
    await submit(rack, "red", 2, **END, restart="on-failure")
    await submit(rack, "blue", 1, **END)
    await runs(rack, "red")
    await runs(rack, "blue")
    state = rack.parts.state
    state.jobs.change("red", started_at=clock.time() - HOUR)
    await rack.parts.ender.keep("red")
    await crash(rack)
    for rank in (0, 1):  # the predecessor had begun to end it
        rack.engine.exit("red", rank, 143)
    await rack.up()
    job = await until(rack, "red", state="failed")
    assert job.reason == "its time limit of 1 h ended it"
    assert job.restarts == 0
    assert rack.desks.jobs.job("blue").state == "running"


async def test_a_job_is_warned_once(rack: Rack) -> None:
    await submit(rack, "red", 1, **END)
    await runs(rack, "red")
    steady = Steady()
    two = limits(rack, steady), limits(rack, steady)  # the second is of a new controller
    for watched in two:
        steady.now = 0.0
        watched.check()
        steady.now = HOUR - 301
        watched.check()
        steady.now = HOUR - 299
        watched.check()
        watched.check()
    (told,) = await events(rack, NEAR)
    assert told.startswith("its time limit of 1 h ends it in 29")


async def test_many_warnings_at_once_read_the_events_once(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"job{number}" for number in range(6)]
    for name in names:
        await submit(rack, name, 1, **END)
        await runs(rack, name)
    reads = []
    since = EventLog.since

    def counted(log: EventLog, ident: int, limit: int) -> list[Event]:
        reads.append(ident)
        return since(log, ident, limit)

    steady = Steady()
    checker = limits(rack, steady)
    checker.check()
    steady.now = HOUR - 60
    with monkeypatch.context() as patched:
        patched.setattr(EventLog, "since", counted)
        checker.check()
    assert len(await events(rack, NEAR)) == len(names)
    assert len(reads) == 1


async def test_the_site_chooses_for_jobs_that_do_not(tmp_path: Path) -> None:
    site = load_site(PAPER)
    scheduling = replace(site.scheduling, time_limit_action=TimeLimitAction.END)
    rack = Rack(tmp_path, replace(site, scheduling=scheduling))
    await rack.up()
    try:
        told = await submit(rack, "red", 1, time_limit_s=HOUR)
        own = await submit(rack, "blue", 1, time_limit_s=HOUR, time_limit_action="ignore")
        free = await submit(rack, "grey", 1)
    finally:
        await rack.down()
    assert [job.time_limit_action for job in (told, own, free)] == ["end", "ignore", "ignore"]


async def test_the_site_says_how_much_of_a_job_is_recorded(tmp_path: Path) -> None:
    """What holds at the submission stays, also under another site file."""
    rack = Rack(tmp_path, replace(load_site(PAPER), recording="full"))
    await rack.up()
    told = await submit(rack, "red", 1)
    own = await submit(rack, "blue", 1, record="counts")
    await rack.down()
    assert [told.record, own.record] == ["full", "counts"]
    later = Rack(tmp_path, replace(load_site(PAPER), recording="off"))
    await later.up()
    try:
        fresh = await submit(later, "grey", 1)
        old = later.service.desks.jobs.job("red")
    finally:
        await later.down()
    assert [fresh.record, old.record] == ["off", "full"]


async def test_an_end_without_a_limit_is_refused(rack: Rack) -> None:
    with pytest.raises(ServiceError, match="has none") as refused:
        await rack.desks.jobs.submit(
            JobRequest(name="red", count=1, time_limit_action=TimeLimitAction.END)
        )
    assert "--time-limit" in refused.value.hint
