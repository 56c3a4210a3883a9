"""Another engine's jobs over the whole service, with devices in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio

from base import clock
from controller.base.errors import ServiceError
from controller.devices.observed import EngineJob, JobNeeds, ObservedError, Published, Turn, Verdict
from controller.fabric.mover import Mover
from controller.observed.publisher import CALM_S, RESTLESS_S
from controller.schema.plans import PlanRequest
from controller.state.transactions import RunningTransaction
from controller.transaction.model import Transaction
from sitefile import CabledSite, load_site
from sitefile.engine import EnginePolicy
from tests.parts.controller.jobs import submit
from tests.parts.controller.observed import FakeEngine
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

THEIRS = ("gpu0", "gpu1", "gpu2", "gpu3")


def site(isolation: Literal["open", "job"] = "open") -> CabledSite:
    """The paper's site, four of whose endpoints are Slurm's."""
    return replace(
        load_site(PAPER),
        engine=EnginePolicy(
            kind="slurm",
            transport="cli",
            nodes={f"n{e}": (e,) for e in THEIRS},
            topology=Path("/etc/slurm/topology.conf"),
            publish=True,
            isolation=isolation,
        ),
    )


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    """A controller beside an engine that owns four endpoints, two under each aggregator."""
    made = Rack(tmp_path, site())
    made.observed = FakeEngine(THEIRS)
    await made.up()
    yield made
    await made.down()


def engine(rack: Rack) -> FakeEngine:
    assert isinstance(rack.observed, FakeEngine)
    return rack.observed


def published(rack: Rack) -> Published:
    found = engine(rack).published
    assert found is not None
    return found


async def shown(rack: Rack, name: str, *states: str) -> None:
    """Wait until the job is known, and in one of ``states``."""
    await rack.until(lambda: name in rack.see.jobs)
    await rack.state(name, *states)


async def waits(rack: Rack, number: int, count: int, leaves: int = 0) -> str:
    """Put a job into the engine's queue, for something that light may change; return its key."""
    wants = JobNeeds(count=count, servers=count, leaves=leaves)
    await engine(rack).set(
        EngineJob(
            key=f"slurm:{number}",
            attempt=0,
            revision="",
            turn=Turn.WAITS,
            wants=wants,
            name=f"train {number}",
            user="ada",
            reason="Resources",
            curable=True,
            submitted_at=1000.0 + number,
        )
    )
    return f"slurm:{number}"


async def gets(rack: Rack, number: int, *endpoints: str) -> str:
    """Put a job into the queue and give it endpoints; nothing runs there yet."""
    key = await waits(rack, number, len(endpoints))
    await engine(rack).allocate(key, endpoints)
    return key


async def running(rack: Rack, number: int, *endpoints: str) -> str:
    key = await gets(rack, number, *endpoints)
    await engine(rack).run(key)
    await shown(rack, f"slurm-{number}", "running")
    return key


async def test_idle_light_moves_under_an_allocation_before_it_starts(rack: Rack) -> None:
    await waits(rack, 7, 2)
    await shown(rack, "slurm-7", "waiting")
    await engine(rack).allocate("slurm:7", ("gpu0", "gpu2"))
    done = await rack.desks.engine.allocated("7")
    assert (done.verdict, done.job, done.text[:30]) == (
        "go",
        "slurm-7",
        "2 endpoints under 1 aggregator",
    )
    assert done.moves >= 1
    assert done.transaction
    job = rack.desks.jobs.job("slurm-7")
    assert (job.state, job.span, job.pauses) == ("starting", 1, 0)
    assert job.engine is not None
    assert (job.engine.id, job.engine.title, job.engine.answered) == ("7", "train 7", done.text)
    assert not [call for call, _ in rack.engine.calls if call.startswith("freeze")]
    await rack.until(lambda: engine(rack).answers)
    assert engine(rack).answers["slurm:7"] == (Verdict.GO, done.text)
    # Called again, it is the same work; it is the same answer.
    assert await rack.desks.engine.allocated("7") == done


async def test_an_allocation_that_no_hook_announces_is_served_from_the_poll(rack: Rack) -> None:
    await gets(rack, 7, "gpu0", "gpu2")
    await rack.until(lambda: engine(rack).answers)
    job = rack.desks.jobs.job("slurm-7")
    assert job.span == 1


async def test_both_hooks_at_once_move_light_once(rack: Rack) -> None:
    await gets(rack, 7, "gpu0", "gpu2")
    ask = rack.desks.engine.allocated
    first, second = await asyncio.gather(ask("7"), ask("7"))
    assert first == second
    assert len(rack.desks.plans.transactions()) == 2, "one at the start, one now"


async def test_the_hook_is_told_what_cannot_be_done(rack: Rack) -> None:
    with pytest.raises(ServiceError) as unknown:
        await rack.desks.engine.allocated("99")
    assert unknown.value.code == "not_found"
    await waits(rack, 7, 2)
    waiting = await rack.desks.engine.allocated("7")
    assert waiting.moves == 0
    await engine(rack).go_away()
    await engine(rack).allocate("slurm:7", ("gpu0", "gpu1"))
    with pytest.raises(ServiceError) as away:
        await rack.desks.engine.allocated("7")
    assert away.value.code == "unavailable"


async def test_a_job_that_is_announced_too_soon_is_served_when_it_has_endpoints(rack: Rack) -> None:
    await waits(rack, 7, 2)
    assert (await rack.desks.engine.allocated("7")).moves == 0
    await engine(rack).allocate("slurm:7", ("gpu0", "gpu2"))
    assert (await rack.desks.engine.allocated("7")).moves >= 1


def untold(rack: Rack, key: str, **changes: Any) -> None:
    """Change a job of the engine, of which the controller hears only when it asks."""
    jobs = engine(rack).jobs
    jobs[key] = replace(jobs[key], **changes)


async def test_endpoints_whose_last_job_has_just_ended_are_the_next_ones(rack: Rack) -> None:
    await running(rack, 7, "gpu0", "gpu1")
    await waits(rack, 8, 2)
    await shown(rack, "slurm-8", "waiting")
    untold(rack, "slurm:7", turn=Turn.ENDED, ended_at=engine(rack).now, revision="ended")
    untold(rack, "slurm:8", turn=Turn.ALLOCATED, endpoints=("gpu0", "gpu2"), revision="allocated")
    done = await rack.desks.engine.allocated("8")
    assert done.text.startswith("2 endpoints under 1 aggregator")
    assert done.moves
    assert rack.desks.jobs.job("slurm-7").state == "completed"


async def test_the_hook_of_the_end_frees_the_endpoints(rack: Rack) -> None:
    await gets(rack, 7, "gpu0", "gpu1")
    await rack.desks.engine.allocated("7")
    await engine(rack).run("slurm:7")
    await shown(rack, "slurm-7", "running")
    untold(rack, "slurm:7", turn=Turn.ENDED, ended_at=engine(rack).now, revision="ended")
    await rack.desks.engine.allocated("7")
    assert rack.desks.jobs.job("slurm-7").state == "completed"


async def test_endpoints_of_the_engine_are_not_for_our_jobs(rack: Rack) -> None:
    await submit(rack, "two", 2)
    await rack.state("two", "running")
    job = rack.desks.jobs.job("two")
    assert set(job.endpoints) == {"gpu4", "gpu5"}
    with pytest.raises(ServiceError) as named:
        await submit(rack, "named", 1, endpoints=["gpu0"])
    assert "belongs to slurm" in named.value.message
    with pytest.raises(ServiceError) as many:
        await submit(rack, "many", 3)
    assert many.value.code == "invalid"
    with pytest.raises(ServiceError) as taken:
        await submit(rack, "slurm-8", 1)
    assert "slurm" in taken.value.message


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
async def test_only_the_engine_ends_or_stops_its_jobs(rack: Rack, verb: str) -> None:
    await running(rack, 7, "gpu0", "gpu2")
    with pytest.raises(ServiceError) as refused:
        await getattr(rack.desks.jobs, verb)("slurm-7")
    assert (refused.value.code, refused.value.object) == ("conflict", "job/slurm-7")
    assert "slurm" in refused.value.hint
    # Missing containers and a lost server are none of lightloom's business here.
    rack.engine.lost.add("srv0")
    await asyncio.sleep(10)
    assert rack.desks.jobs.job("slurm-7").state == "running"


async def regrouped(rack: Rack) -> str:
    """Plan for all running jobs and apply the plan; return the transaction's state."""
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert plan.moves
    view = await rack.desks.plans.apply(plan.model_dump(by_alias=True), wait_s=30.0)
    return view.state


async def test_a_running_job_is_regrouped_with_its_scope_frozen(rack: Rack) -> None:
    await running(rack, 7, "gpu0", "gpu2")
    assert await regrouped(rack) == "committed"
    job = rack.desks.jobs.job("slurm-7")
    assert (job.state, job.span, job.pauses) == ("running", 1, 1)
    calls = [call for call in rack.engine.calls if call[1] == "slurm:7"]
    assert [call for call, _ in calls] == ["freeze_scope", "thaw_scope"]


async def test_a_job_whose_agents_do_not_freeze_runs_on(tmp_path: Path) -> None:
    rack = Rack(tmp_path, site())
    rack.observed = FakeEngine(THEIRS)
    rack.engine.unscoped["srv1"] = "forbidden"
    await rack.up()
    await running(rack, 7, "gpu0", "gpu2")
    assert await regrouped(rack) == "committed"
    job = rack.desks.jobs.job("slurm-7")
    assert job.span == 1
    assert job.engine is not None
    assert not job.engine.freezes
    assert not [call for call, name in rack.engine.calls if name == "slurm:7"]
    await rack.down()


async def test_a_job_that_has_changed_since_is_not_touched(rack: Rack) -> None:
    await running(rack, 7, "gpu0", "gpu2")
    # It was given other endpoints since, and nobody has been told yet.
    seen = engine(rack).jobs["slurm:7"]
    engine(rack).jobs["slurm:7"] = replace(seen, revision="another")
    assert await regrouped(rack) == "rolled_back"
    assert not [call for call, name in rack.engine.calls if name == "slurm:7"]
    job = rack.desks.jobs.job("slurm-7")
    assert (job.span, job.pauses) == (2, 0)


async def test_an_engine_that_is_away_stops_a_regroup_before_it_begins(rack: Rack) -> None:
    await running(rack, 7, "gpu0", "gpu2")
    await engine(rack).go_away()
    assert await regrouped(rack) == "rolled_back"
    assert not [call for call, name in rack.engine.calls if name == "slurm:7"]


async def test_light_helps_a_waiting_job_and_the_topology_says_so(rack: Rack) -> None:
    await rack.until(lambda: engine(rack).published)
    await running(rack, 1, "gpu0")
    await running(rack, 2, "gpu2")
    await waits(rack, 7, 2, leaves=1)
    await rack.until(
        lambda: any({"gpu1", "gpu3"} <= set(held) for held in published(rack).leaves.values())
    )

    async def told() -> bool:
        status = rack.desks.engine.status()
        return status.published is not None and status.published.epoch == published(rack).epoch

    await rack.until(told)
    await rack.until(lambda: "slurm:7" in engine(rack).answers)


async def test_moves_that_fail_are_tried_less_and_less_often(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rack.until(lambda: engine(rack).published)
    tried = []

    async def refused(mover: Mover, moving: RunningTransaction) -> Transaction:
        tried.append(clock.monotonic())
        mover.call_off(moving, "the switch refuses")
        return moving.tx

    monkeypatch.setattr(Mover, "carry_out", refused)
    await running(rack, 1, "gpu0")
    await running(rack, 2, "gpu2")
    await waits(rack, 7, 2, leaves=1)
    await asyncio.sleep(600)
    assert 2 <= len(tried) <= 6
    assert all(later - before >= 30 for before, later in pairwise(tried))


async def begins(rack: Rack, number: int, endpoint: str) -> str:
    """Let a job begin now; it needs no light to move."""
    engine(rack).now = rack.see.now()
    return await running(rack, number, endpoint)


async def others_begin(rack: Rack, last: str) -> None:
    """Let a job begin every second; the one before it ends then."""
    for number in count(8):
        await asyncio.sleep(1.0)
        last, ended = await begins(rack, number, ("gpu3", "gpu1")[number % 2]), last
        await engine(rack).end(ended)


async def test_nodes_that_the_engine_does_not_know_are_named_once(rack: Rack) -> None:
    await rack.until(lambda: engine(rack).published)
    engine(rack).unknown = ("n8", "n9")
    await asyncio.sleep(600)
    (said,) = rack.see.messages("UnknownNodes")
    assert "does not know n8, n9" in said


@pytest.mark.parametrize(
    "others", [False, True], ids=["no job begins any more", "it has waited long enough"]
)
async def test_an_engine_does_not_restart_for_a_topology_while_a_job_begins(
    rack: Rack, others: bool
) -> None:
    await rack.until(lambda: engine(rack).published)
    engine(rack).restarts_to_publish = True
    began, writes = clock.monotonic(), engine(rack).writes
    first = await begins(rack, 6, "gpu1")
    await gets(rack, 7, "gpu0", "gpu2")
    await rack.until(lambda: "slurm:7" in engine(rack).answers)
    assert engine(rack).writes == writes
    beside = asyncio.create_task(others_begin(rack, first)) if others else None
    await rack.until(lambda: engine(rack).writes > writes)
    assert (CALM_S <= clock.monotonic() - began < RESTLESS_S) is not others
    if beside:
        beside.cancel()


@pytest.mark.parametrize(
    "stays", [False, True], ids=["its processes are gone", "it has waited long enough"]
)
async def test_an_engine_does_not_restart_for_a_topology_while_it_ends_a_job(
    rack: Rack, stays: bool
) -> None:
    await rack.until(lambda: engine(rack).published)
    engine(rack).restarts_to_publish = True
    ended = await running(rack, 6, "gpu1")
    await engine(rack).begin_to_end(ended)
    began, writes = clock.monotonic(), engine(rack).writes
    await gets(rack, 7, "gpu0", "gpu2")
    await rack.until(lambda: "slurm:7" in engine(rack).answers)
    await asyncio.sleep(CALM_S)
    assert engine(rack).writes == writes
    if not stays:
        await engine(rack).end(ended, "cancelled")
    await rack.until(lambda: engine(rack).writes > writes)
    assert (clock.monotonic() - began < RESTLESS_S) is not stays


async def test_an_engine_that_does_not_say_whether_it_ends_jobs_gets_its_topology(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> bool:
        raise ObservedError("unavailable", "slurm", "it is away")

    await rack.until(lambda: engine(rack).published)
    engine(rack).restarts_to_publish = True
    monkeypatch.setattr(engine(rack), "ends_jobs", away)
    began, writes = clock.monotonic(), engine(rack).writes
    await rack.desks.plans.attach("gpu0", "as1", wait_s=30.0)
    await rack.until(lambda: engine(rack).writes > writes)
    assert clock.monotonic() - began < RESTLESS_S


async def test_a_refused_topology_is_told_once_and_tried_again(rack: Rack) -> None:
    await rack.until(lambda: engine(rack).published)
    engine(rack).forbidden = True
    await rack.desks.plans.attach("gpu0", "as1", wait_s=30.0)

    async def error() -> str:
        status = rack.desks.engine.status()
        return status.published.error if status.published else ""

    await rack.until(error)
    engine(rack).forbidden = False
    await rack.until(lambda: "gpu0" in published(rack).leaves["as1"])
    events = [e for e in rack.desks.fabric.events(0, 1000) if e.reason == "NotPublished"]
    assert len(events) == 1


async def test_a_restarted_controller_knows_the_jobs_and_what_was_answered(tmp_path: Path) -> None:
    rack = Rack(tmp_path, site())
    rack.observed = FakeEngine(THEIRS)
    await rack.up()
    await gets(rack, 7, "gpu0", "gpu2")
    done = await rack.desks.engine.allocated("7")
    await engine(rack).run("slurm:7")
    await rack.state("slurm-7", "running")
    await running(rack, 8, "gpu1")
    await rack.down()
    await engine(rack).forget("slurm:8")
    await rack.up()
    await rack.state("slurm-8", "cancelled")
    job = rack.desks.jobs.job("slurm-7")
    assert (job.state, job.endpoints) == ("running", ["gpu0", "gpu2"])
    assert job.engine is not None
    assert job.engine.answered == done.text
    assert not [name for call, name in rack.engine.calls if call in ("start", "stop")]
    await rack.down()


async def test_a_requeued_job_gives_its_endpoints_back(rack: Rack) -> None:
    await running(rack, 7, "gpu0", "gpu2")
    await engine(rack).requeue("slurm:7")
    await rack.state("slurm-7", "waiting")
    assert rack.desks.jobs.job("slurm-7").endpoints == []
    await engine(rack).allocate("slurm:7", ("gpu1", "gpu3"))
    done = await rack.desks.engine.allocated("7")
    assert (done.attempt, done.verdict) == (1, "go")
    job = rack.desks.jobs.job("slurm-7")
    assert (job.restarts, job.span) == (1, 1)


@pytest.mark.parametrize("isolation", ["open", "job"])
async def test_isolation_is_one_tenant_or_one_a_job(
    tmp_path: Path, isolation: Literal["open", "job"]
) -> None:
    rack = Rack(tmp_path, site(isolation))
    rack.observed = FakeEngine(THEIRS)
    await rack.up()
    await running(rack, 7, "gpu0", "gpu2")
    jobs = rack.see.forwarding().jobs
    if isolation == "open":
        assert jobs == {"slurm": THEIRS}
    else:
        assert jobs == {"slurm-7": ("gpu0", "gpu2")}
    await rack.down()


async def test_a_site_without_another_engine_says_so(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    await rack.up()
    with pytest.raises(ServiceError) as refused:
        rack.desks.engine.status()
    assert (refused.value.code, refused.value.object) == ("not_found", "engine")
    await rack.down()
