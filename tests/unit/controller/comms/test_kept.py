"""What ended jobs communicated: over a restart, for a second user, and within its bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from controller.api.scope.sight import Sight
from controller.base.errors import ServiceError
from controller.comms import kept
from controller.comms.kept import kept_view, record_of
from controller.comms.ledger import advance
from controller.devices.engine import Recording
from controller.people.authz import Principal, Role
from controller.state.kept import comms
from controller.state.kept.kinds import row_of
from tests.parts.controller.comms import MB, calls, running, view
from tests.parts.controller.rack import Rack
from tests.parts.measure.recordings import operation, training
from tests.unit.controller.comms.recordings import JOB, counted

ANN = Principal("ann", Role.USER, frozenset({"alpha"}))
BOB = Principal("bob", Role.USER, frozenset({"default"}))


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    one = Rack(tmp_path)
    await one.up()
    yield one
    await one.down()


def trained(rack: Rack, job: str = "red", late: float = 0.0) -> list[Recording]:
    """Return what servers say of a training whose rank 1 computes ``late`` seconds longer."""
    found = []
    for spec in rack.engine.specs[job]:
        mine = late if spec.key.rank == 1 else 0.0
        buckets = [(4 * MB, 1.0 + mine, 0.1 + late - mine)]
        one = training(40, 1.0 + mine, buckets, rank=spec.key.rank)
        found.append(replace(one, job=job, epoch=spec.key.epoch, server=spec.server))
    return found


async def end(rack: Rack, job: str = "red") -> None:
    rack.engine.exit(job, 0, 0)
    rack.engine.exit(job, 1, 0)
    await rack.state(job, "completed")
    await rack.parts.comms.read()


async def test_an_ended_job_is_told_after_a_restart(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = trained(rack)
    before = await view(rack)
    await end(rack)
    rack.engine.recorded = []  # the agents have forgotten it
    await rack.down()
    await rack.up()
    after = await view(rack)
    assert after.state == "completed"
    assert (after.rows, after.rank_rows) == (before.rows, before.rank_rows)
    assert (after.overlap, after.overlap_ranks) == (before.overlap, before.overlap_ranks)
    assert {rank.recorder for rank in after.ranks} == {"recording"}
    one = await view(rack, rank=1)
    assert [(row.rank, row.calls) for row in one.rows] == [(1, 40)]
    assert one.overlap is not None
    assert one.overlap.rank == 1
    facts = rack.parts.comms.facts("red")
    assert facts is not None
    assert facts.step_s == pytest.approx(1.1)
    lately = await rack.desks.comms.view("red", rank=None, since_s=60.0)
    assert (lately.since, lately.rows) == (None, before.rows)
    assert "whole run" in lately.notes[-1]


async def test_a_second_user_sees_nothing_of_it(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = trained(rack)
    await end(rack)
    rack.engine.recorded = []
    await rack.down()
    await rack.up()
    desks = rack.desks
    mine, theirs = (Sight(who, desks.jobs.owners) for who in (BOB, ANN))
    mine.require_job("red")
    assert calls(await desks.comms.view("red", rank=None, since_s=None)) == 80
    with pytest.raises(ServiceError, match="job red does not exist") as caught:
        theirs.require_job("red")
    assert caught.value.code == "not_found"


async def test_another_job_of_the_same_name_does_not_inherit_it(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = trained(rack)
    await end(rack)
    state = rack.parts.state
    earlier = replace(state.comms["red"], submitted_at=state.jobs["red"].submitted_at - 1.0)
    rack.engine.recorded = []
    await rack.down()
    await rack.up()
    state = rack.parts.state
    state.comms.put(earlier)
    assert rack.parts.comms.brief("red") is None
    assert rack.parts.comms.facts("red") is None
    assert calls(await rack.desks.comms.view("red", rank=None, since_s=None)) == 0
    await rack.parts.comms.read()
    assert "red" not in state.comms


async def test_agents_that_forgot_a_rank_take_nothing_back(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = trained(rack)
    await end(rack)
    await rack.down()
    await rack.up()
    rack.engine.recorded = trained(rack)[:1]
    assert calls(await view(rack)) == 80
    rack.engine.recorded = []
    await rack.down()
    await rack.up()
    assert calls(await view(rack)) == 80


async def test_a_document_of_another_version_is_unknown(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = trained(rack)
    await end(rack)
    state = rack.parts.state
    record = replace(state.comms["red"], body='{"job": "red", "ranks": 7}')
    state.comms.put(record)
    await state.record(row_of(record))
    rack.engine.recorded = []
    await rack.down()
    await rack.up()
    shown = await view(rack)
    assert {rank.recorder for rank in shown.ranks} == {"unknown"}
    assert rack.parts.comms.brief("red") is None
    assert rack.parts.comms.facts("red") is not None


async def test_the_oldest_are_forgotten(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comms, "KEPT_COMMS", 1)
    for name in ("red", "blue"):
        await running(rack, name)
        rack.engine.recorded = trained(rack, name)
        await end(rack, name)
    rack.engine.recorded = []
    await rack.down()
    await rack.up()
    assert list(rack.see.comms) == ["blue"]
    assert calls(await view(rack, "blue")) == 80
    assert calls(await view(rack, "red")) == 0


@pytest.mark.parametrize("bound", ["KEPT_COMMS", "KEPT_COMMS_BYTES"])
async def test_one_projects_jobs_displace_no_other_ones(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A project ends one job after the other; the only one of another project stays."""
    await running(rack, "alpha-red", project="alpha")
    rack.engine.recorded = trained(rack, "alpha-red")
    await end(rack, "alpha-red")
    most = {"KEPT_COMMS": 2, "KEPT_COMMS_BYTES": 5 * len(rack.see.comms["alpha-red"].body) // 2}
    monkeypatch.setattr(comms, bound, most[bound])
    for name in ("b1", "b2", "b3"):
        await running(rack, name)
        rack.engine.recorded = trained(rack, name)
        await end(rack, name)
    rack.engine.recorded = []
    await rack.down()
    await rack.up()
    assert set(rack.see.comms) == {"alpha-red", "b3"}
    assert calls(await view(rack, "alpha-red")) == 80
    assert calls(await view(rack, "b2")) == 0


async def test_who_comes_last_is_evidence_of_a_straggler(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = trained(rack, late=0.5)
    shown = await view(rack)
    assert (shown.rows[0].last_rank, shown.rows[0].last_share) == (1, 1.0)
    for _ in ("running", "ended", "restarted"):
        advice = await rack.desks.advice.advise("red")
        late = next(one for one in advice.findings if one.limit == "straggler")
        assert "rank 1" in late.text
        (last,) = (text for text in late.evidence if "came last" in text)
        assert "100 % of its calls of all_reduce" in last
        assert "0.5 s" in last
        if not rack.see.jobs["red"].ended:
            await end(rack)
            rack.engine.recorded = []
        else:
            await rack.down()
            await rack.up()


def test_a_document_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", 64 * 1024)
    rows = tuple(operation(size=n, durations=[0.001 * n]) for n in range(1, 600))
    known = advance(None, [counted(3, rank, operations=rows) for rank in range(2)], 1, 2, 5.0)
    record = record_of(replace(JOB, state="completed"), known, 5.0)
    assert record is not None
    assert len(record.body) <= 64 * 1024
    shown = kept_view(record, None, since=False)
    assert shown is not None
    assert [row.bytes for row in shown.rows][:3] == [599, 598, 597]
    assert "were not kept" in shown.notes[-1]
    one = kept_view(record, 1, since=False)
    assert one is not None
    assert one.rows


def test_a_job_that_told_nothing_has_no_record() -> None:
    silent = replace(counted(0), state="absent", operations=(), calls=())
    assert record_of(JOB, advance(None, [silent], 1, 2, 5.0), 5.0) is None
    assert record_of(replace(JOB, epoch=9), advance(None, [counted(3)], 1, 2, 5.0), 5.0) is None
