"""Jobs that are submitted together: all of them are queued, or none ever is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.base.errors import ServiceError
from controller.schema.submit.request import JobRequest
from controller.state.jobs import Jobs
from controller.state.records import JobRecord, JobSpec
from scheduler.queue.model import ProjectShare
from sitefile import Scheduling, load_site
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER


def jobs(*names: str | None, count: int = 6) -> list[JobRequest]:
    return [JobRequest(name=name, count=count, command=["true"]) for name in names]


async def known(rack: Rack) -> dict[str, str]:
    return {job.name: job.state for job in await rack.desks.jobs.jobs()}


async def submitted_events(rack: Rack) -> list[str]:
    events = rack.desks.fabric.events(0, 100)
    return [event.object for event in events if event.reason == "JobSubmitted"]


async def test_they_are_queued_in_order_and_durable(rack: Rack) -> None:
    await rack.desks.jobs.submit(jobs("red")[0])
    await rack.state("red", "running")
    names = await rack.desks.jobs.submit_all(jobs("a", None, "b", None), "ann")
    assert names[0] == "a" and names[2] == "b" and len(set(names)) == 4
    assert await known(rack) == {"red": "running", **dict.fromkeys(names, "pending")}
    await rack.down()
    await rack.up()
    assert list(await known(rack)) == ["red", *names]
    assert rack.desks.jobs.job("b").user == "ann"


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (jobs("b", count=7), "invalid"),
        (jobs("red"), "conflict"),
        (jobs("a"), "conflict"),
        ([JobRequest(name="b", count=1, project="nowhere")], "invalid"),
    ],
    ids=["too large", "its name is taken", "twice in one request", "no such project"],
)
async def test_one_that_is_refused_refuses_all(
    tmp_path: Path, broken: list[JobRequest], code: str
) -> None:
    scheduling = Scheduling(projects=(ProjectShare("default"),), named=True)
    rack = Rack(tmp_path, replace(load_site(PAPER), scheduling=scheduling))
    await rack.up()
    try:
        await rack.desks.jobs.submit(jobs("red")[0])
        await rack.state("red", "running")
        with pytest.raises(ServiceError) as refused:
            await rack.desks.jobs.submit_all([*jobs("a"), *broken, *jobs("c")])
        assert refused.value.code == code
        assert list(await known(rack)) == ["red"]
        assert await submitted_events(rack) == ["job/red"]
        await rack.down()
        await rack.up()
        assert list(await known(rack)) == ["red"]
    finally:
        await rack.down()


async def test_the_limit_of_waiting_jobs_counts_those_of_the_request(tmp_path: Path) -> None:
    rack = Rack(tmp_path, replace(load_site(PAPER), scheduling=Scheduling(max_waiting=3)))
    await rack.up()
    try:
        await rack.desks.jobs.submit(jobs("red")[0])
        await rack.state("red", "running")
        with pytest.raises(ServiceError, match="3 jobs of project default are waiting"):
            await rack.desks.jobs.submit_all(jobs("a", "b", "c", "d"))
        await rack.desks.jobs.submit_all(jobs("a", "b", "c"))
        await rack.desks.jobs.cancel("b")
        await rack.desks.jobs.submit_all(jobs("d"))
    finally:
        await rack.down()


async def test_what_the_disk_refuses_never_runs(rack: Rack) -> None:
    rack.disk.fault = "full"
    with pytest.raises(ServiceError):
        await rack.desks.jobs.submit_all(jobs("a", "b", count=1))
    rack.disk.release()
    assert await known(rack) == {}
    events = rack.desks.fabric.events(0, 100)
    told = [(e.object, e.reason) for e in events if e.object in ("job/a", "job/b")]
    assert told == [
        (f"job/{name}", reason)
        for reason in ("JobSubmitted", "JobNotSubmitted")
        for name in ("a", "b")
    ]
    await rack.down()
    await rack.up()
    assert await known(rack) == {}


async def test_a_name_that_ended_is_free_again_and_comes_back_when_refused(rack: Rack) -> None:
    await rack.desks.jobs.submit(jobs("red")[0])
    await rack.state("red", "running")
    await rack.desks.jobs.cancel("red")
    with pytest.raises(ServiceError):
        await rack.desks.jobs.submit_all([*jobs("red"), *jobs("b", count=7)])
    assert await known(rack) == {"red": "cancelled"}
    await rack.desks.jobs.submit_all(jobs("red"))
    await rack.state("red", "running")


async def test_nothing_of_them_starts_before_all_are_durable(rack: Rack) -> None:
    rack.disk.fault = "slow"
    work = asyncio.create_task(rack.desks.jobs.submit_all(jobs("a", "b", count=1)))
    await rack.until(lambda: rack.disk.hit)
    assert set((await known(rack)).values()) == {"pending"}
    assert not rack.engine.statuses
    rack.disk.release()
    await work
    await rack.state("a", "running")
    await rack.state("b", "running")


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from(["pending", "running", "gone"]), st.booleans()
        ),
        max_size=30,
    )
)
@settings(deadline=None)
def test_waiting_jobs_are_counted_right(changes: list[tuple[str, str, bool]]) -> None:
    known = Jobs()
    for name, state, other in changes:
        if state == "gone":
            known.remove(name)
        else:
            spec = JobSpec(count=1, project="p" if other else "q")
            known.put(JobRecord(name, spec, "image:1", 0.0, state=state))  # type: ignore[arg-type]
        for project in ("p", "q"):
            assert known.waiting(project) == sum(
                job.state == "pending" and job.request.project == project for job in known.values()
            )
