"""Ended jobs and transactions are kept within limits: a controller runs for years."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from controller.schema.jobs import read_job
from controller.schema.submit.request import JobRequest
from controller.state import events, jobs, transactions
from controller.state.records import JobRecord
from tests.parts.controller.mirror import Mirror
from tests.parts.controller.rack import Rack


async def test_a_project_displaces_no_other_ones_ended_jobs(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_JOBS", 4)
    desks = rack.desks
    await desks.jobs.submit(JobRequest(name="theirs", count=6, project="quiet"))
    await desks.jobs.cancel("theirs")
    for number in range(12):
        await desks.jobs.submit(JobRequest(name=f"job-{number}", count=6, project="loud"))
        await desks.jobs.cancel(f"job-{number}")
    left = [job.name for job in await rack.desks.jobs.jobs()]
    assert left == ["theirs", "job-9", "job-10", "job-11"]


async def test_the_latest_ended_jobs_and_all_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_JOBS", 2)
    rack = Rack(tmp_path)
    service = await rack.up()
    mirror = Mirror(service)
    await mirror.start()
    await service.desks.jobs.submit(JobRequest(name="long", count=6))
    await service.desks.jobs.submit(JobRequest(name="waits", count=6))
    for number in range(5):
        await service.desks.jobs.submit(JobRequest(name=f"job-{number}", count=6))
        await service.desks.jobs.cancel(f"job-{number}")
        await asyncio.sleep(1.0)
    await service.desks.jobs.cancel("long")
    left = ["long", "waits", "job-4"]
    assert [job.name for job in await service.desks.jobs.jobs()] == left

    async def up_to_date() -> bool:
        return not await mirror.differences()

    await rack.until(up_to_date)
    await mirror.stop()
    await rack.down()
    service = await rack.up()
    assert [job.name for job in await service.desks.jobs.jobs()] == left
    await rack.down()


async def test_ended_jobs_are_kept_up_to_a_total_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_JOB_BYTES", 25_000)
    rack = Rack(tmp_path)
    service = await rack.up()
    for number in range(5):
        body = {"name": f"job-{number}", "count": 6, "env": {"USER_X": "y" * 10_000}}
        await service.desks.jobs.submit(read_job(body))
        await service.desks.jobs.cancel(f"job-{number}")
    assert [job.name for job in await service.desks.jobs.jobs()] == ["job-3", "job-4"]
    await rack.down()
    service = await rack.up()
    assert [job.name for job in await service.desks.jobs.jobs()] == ["job-3", "job-4"]
    await rack.down()


async def test_wide_texts_of_ended_jobs_count_as_memory_holds_them(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_JOB_BYTES", 100_000)
    desks = rack.desks
    for number in range(4):
        body = {"name": f"job-{number}", "count": 6, "env": {"USER_X": "\U0001f600" + "y" * 10_000}}
        await desks.jobs.submit(read_job(body))
        await desks.jobs.cancel(f"job-{number}")
    assert [job.name for job in await rack.desks.jobs.jobs()] == ["job-2", "job-3"]


async def test_nothing_of_a_forgotten_job_is_kept_for_its_view(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more jobs than large ones that are forgotten; a name is used again, too."""
    large = "y" * 10_000
    monkeypatch.setattr(jobs, "KEPT_JOB_BYTES", 25_000)
    desks = rack.desks
    for number in range(9):
        await desks.jobs.submit(JobRequest(name=f"waits-{number}", count=6))
    for name in ("one", "two", "three", "four", "two"):
        body = {"name": name, "count": 6, "env": {"USER_X": large}}
        await desks.jobs.submit(read_job(body))
        await desks.jobs.cancel(name)
    shown = {job.name: job.submitted_at for job in await desks.jobs.jobs()}
    assert shown.keys() >= {"four", "two"}
    assert not shown.keys() & {"one", "three"}

    def held() -> set[tuple[str, float]]:
        gc.collect()
        found = (item for item in gc.get_objects() if type(item) is JobRecord)
        mine = (item for item in found if item.request.env.get("USER_X") == large)
        return {(item.name, item.submitted_at) for item in mine}

    await rack.until(lambda: held() == {(n, shown[n]) for n in ("four", "two")}, 10)


async def test_events_of_one_projects_flood_displace_no_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEPT", 60)
    rack = Rack(tmp_path)
    service = await rack.up()
    await service.desks.jobs.submit(JobRequest(name="theirs", count=6, project="quiet"))
    await rack.state("theirs", "running")
    loud = [f"job-{number}" for number in range(20)]
    for name in loud:
        await service.desks.jobs.submit(JobRequest(name=name, count=6, project="loud"))
        for _ in range(20):
            rack.parts.state.events.add("warning", f"job/{name}", "RankFailed", "again")
        await service.desks.jobs.cancel(name)

    async def kept() -> list[tuple[str, str]]:
        return [(e.object, e.reason) for e in rack.desks.fabric.events(0, 1000)]

    before = await kept()
    assert len(before) == 60
    assert ("job/theirs", "JobSubmitted") in before
    assert ("job/theirs", "JobStarted") in before
    assert before[-1] == ("job/job-19", "JobCancelled")
    assert "Resync" in {event.reason for event in service.desks.fabric.events(1, 1000)}
    await rack.down()
    await rack.up()
    after = await kept()
    assert ("job/theirs", "JobSubmitted") in after
    assert ("job/theirs", "JobStarted") in after
    assert len(after) == 60
    await rack.down()


async def test_the_latest_transactions_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "KEPT_TRANSACTIONS", 2)
    rack = Rack(tmp_path)
    rack.switch.add("1.1.1", "2.1.1")
    service = await rack.up()
    for target in ("as1", "as0", "as1", "as0"):
        await service.desks.plans.attach("gpu0", target, 10)
    shown = service.desks.plans.transactions()
    assert len(shown) == 2
    assert rack.see.transactions.moved.keys() == {view.id for view in shown}
    await rack.down()
