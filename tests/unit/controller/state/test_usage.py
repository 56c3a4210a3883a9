"""What jobs hold, through their lives: pauses, regroups, requeues, restarts, ends, forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
import pytest_asyncio

from base import clock
from controller.base.errors import ServiceError
from controller.devices.engine import RankStatus
from controller.schema.insight.usage import By, UsageLineView, UsageView
from controller.schema.plans import PlanRequest
from controller.schema.submit.request import JobRequest
from controller.service import upkeep
from controller.state import jobs, usage
from controller.state.writes import TrimUsage
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack, crash


class Hand:
    """The ledger's clock, moved by hand, of this controller and those after it."""

    rack: Rack

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.began = clock.time() + 86400.0
        monkeypatch.setattr(usage, "SteadyClock", lambda _: self)
        monkeypatch.setattr(usage, "STEP_S", math.inf)

    def __call__(self) -> float:
        return self.now

    async def usage(self, by: By = "project", projects: Collection[str] | None = None) -> UsageView:
        """Ask for everything since the beginning."""
        self.now += 1e-6  # a window does not contain its end
        return await self.rack.desks.usage.over(self.began - 1, None, by, projects)

    async def of(self, job: str) -> UsageLineView:
        """Return a job's line."""
        (line,) = [line for line in (await self.usage("job")).lines if line.job == job]
        return line


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    return Hand(monkeypatch)


@pytest_asyncio.fixture
async def rack(tmp_path: Path, hand: Hand) -> AsyncIterator[Rack]:
    hand.rack = Rack(tmp_path)
    await hand.rack.up()
    yield hand.rack
    await hand.rack.down()


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-3)


async def test_a_job_that_is_paused_and_ends(rack: Rack, hand: Hand) -> None:
    request = JobRequest(name="red", count=2, command=["train"])
    await rack.desks.jobs.submit(request, "ann")
    await rack.state("red", "running")
    hand.now += 100
    await rack.desks.jobs.pause("red")
    hand.now += 50
    await rack.desks.jobs.resume("red")
    hand.now += 10
    await rack.desks.jobs.cancel("red")
    hand.now += 1000
    line = await hand.of("red")
    assert (line.project, line.user, line.jobs) == ("default", "ann", 1)
    assert (line.held_s, line.frozen_s, line.dark_s) == (near(320), near(100), 0)
    (ann,) = (await hand.usage("user")).lines
    assert (ann.user, ann.held_s, ann.job, ann.project) == ("ann", near(320), None, None)
    assert rack.desks.jobs.job("red").user == "ann"


async def test_a_regroup_freezes_darkens_and_brings_the_job_together(
    rack: Rack, hand: Hand
) -> None:
    await scattered(rack)
    hand.now += 100
    freeze, frozen = rack.engine.freeze, list[str]()

    async def slowly(job: str, limit_s: float) -> bool:
        hand.now += 7
        frozen.append(job)
        return bool(await freeze(job, limit_s))

    rack.engine.freeze = slowly  # type: ignore[method-assign]
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert (await rack.desks.plans.apply(plan, wait_s=60)).state == "committed"
    hand.now += 10
    red = rack.desks.jobs.job("red")
    line = await hand.of("red")
    still = 7 * len(frozen)
    assert "red" in frozen
    assert line.held_s == near(4 * (110 + still))
    assert line.frozen_s == near(4 * still)
    assert line.weighted_s == near(4 * (2 * (100 + still) + 10))
    assert line.dark_s == pytest.approx(sum(r.dark_time_s for r in red.ranks), abs=1e-4)
    assert line.dark_s > 0


async def test_a_job_that_goes_back_into_the_queue_is_one_job(rack: Rack, hand: Hand) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    hand.now += 10
    stop = rack.engine.stop

    async def slowly(job: str, grace_s: float, *, until: int) -> list[RankStatus]:
        hand.now += 5
        return await stop(job, grace_s, until=until)

    rack.engine.stop = slowly  # type: ignore[method-assign]
    await rack.parts.jobs.requeue("red", "stopped for a test")
    await rack.state("red", "running")
    hand.now += 20
    line = await hand.of("red")
    assert (line.held_s, line.jobs) == (near(70), 1)


async def test_a_crash_loses_and_doubles_nothing(rack: Rack, hand: Hand) -> None:
    await submit(rack, "red", 2)
    await submit(rack, "blue", 1)
    await rack.state("red", "running")
    await rack.state("blue", "running")
    hand.now += 100
    await rack.desks.jobs.pause("red")
    hand.now += 40
    await rack.desks.jobs.cancel("blue")
    await crash(rack)
    hand.now += 1000  # the containers run on
    await rack.up()
    hand.now += 10
    red, blue = await hand.of("red"), await hand.of("blue")
    assert (red.held_s, red.frozen_s, red.jobs) == (near(2 * 1150), near(2 * 1050), 1)
    assert (blue.held_s, blue.frozen_s, blue.jobs) == (near(140), 0, 1)
    await rack.desks.jobs.resume("red")
    hand.now += 5
    red = await hand.of("red")
    assert (red.held_s, red.frozen_s) == (near(2 * 1155), near(2 * 1050))


async def test_a_crash_in_a_regroup_keeps_the_job_frozen_until_it_runs(
    rack: Rack, hand: Hand
) -> None:
    reached = asyncio.Event()

    async def never(job: str) -> None:
        reached.set()
        await asyncio.Event().wait()

    await scattered(rack)
    hand.now += 100
    rack.engine.thaw = never  # type: ignore[method-assign]
    plan = await rack.desks.plans.make_plan(PlanRequest())
    await rack.desks.plans.apply(plan, wait_s=0)
    await asyncio.wait_for(reached.wait(), 60)
    hand.now += 30
    await crash(rack)
    del rack.engine.thaw
    hand.now += 20
    await rack.up()
    kept = rack.parts.state.usage

    def runs() -> bool:
        kept.update(rack.see.jobs)
        return not kept.ledger.open["red"].level.frozen

    await rack.until(runs)
    hand.now += 10
    red = await hand.of("red")
    assert (red.held_s, red.frozen_s) == (near(4 * 160), near(4 * 50))


async def test_a_job_that_is_forgotten_keeps_its_usage(
    rack: Rack, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_JOBS", 0)
    await submit(rack, "red", 3)
    await rack.state("red", "running")
    hand.now += 60
    for rank in range(3):
        rack.engine.exit("red", rank, 0)

    async def forgotten() -> bool:
        return not await rack.desks.jobs.jobs()

    await rack.until(forgotten)
    await crash(rack)
    await rack.up()
    assert (await hand.of("red")).held_s == near(180)


async def test_a_refused_start_is_not_charged(rack: Rack, hand: Hand) -> None:
    state = rack.parts.state
    rack.engine.sick.update(dict.fromkeys(rack.desks.fabric.endpoint_names(), "away"))
    await rack.until(lambda: len(state.light.unfit) == len(state.cables))
    await submit(rack, "red", 1)
    job = state.jobs["red"]
    state.jobs.change("red", state="starting", endpoints=("gpu0",), epoch=state.epoch + 1)
    hand.now += 5
    assert (await hand.usage()).total.held_s == near(5)
    state.jobs.put_back(job)
    total = (await hand.usage()).total
    assert (total.held_s, total.jobs) == (0, 0)


async def test_a_job_of_before_the_ledger_is_charged_from_its_start(rack: Rack, hand: Hand) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    await rack.service.journal.flush()
    with contextlib.closing(sqlite3.connect(rack.state_dir / "controller.sqlite")) as db, db:
        db.execute("DELETE FROM usage")
    started = rack.desks.jobs.job("red").started_at
    assert started is not None
    await crash(rack)
    await rack.up()
    (interval,) = rack.see.usage.ledger.open.values()
    assert (interval.since, interval.first, interval.level.endpoints) == (started, True, 2)


async def test_sums_agree_and_a_window_must_not_be_empty(rack: Rack, hand: Hand) -> None:
    await submit(rack, "red", 2)
    await submit(rack, "blue", 3)
    await rack.state("red", "running")
    await rack.state("blue", "running")
    hand.now += 30
    await rack.desks.jobs.cancel("red")
    for by in ("project", "user", "job"):
        view = await hand.usage(by)
        assert sum(line.held_s for line in view.lines) == near(view.total.held_s) == near(150)
    assert (await hand.usage("job", ["other"])).total.held_s == 0
    assert (await hand.usage("job", ["other"])).lines == []
    with pytest.raises(ServiceError, match="empty"):
        await rack.desks.usage.over(hand.now + 10, None, "job", None)


async def test_a_clock_that_is_set_moves_dates_only(
    rack: Rack, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    hand.now += 50
    kept = rack.parts.state.usage
    monkeypatch.setattr(usage, "STEP_S", 1.0)
    for step in (-7200.0, 3600.0):
        before = kept.ledger.open["red"].since
        now = hand.now + step
        clock.current().step(now - clock.time())
        kept.update(rack.see.jobs)
        hand.now = now
        assert kept.ledger.open["red"].since == pytest.approx(before + step)
    hand.began -= 7200
    assert (await hand.of("red")).held_s == near(100)


async def test_old_usage_is_summed_up_while_the_controller_runs(rack: Rack, hand: Hand) -> None:
    seen = list[object]()
    commit = rack.store.commit

    async def noted(*writes: object) -> None:
        seen.extend(w for w in writes if isinstance(w, TrimUsage))
        await commit(*writes)  # type: ignore[arg-type]

    rack.store.commit = noted  # type: ignore[method-assign, assignment]
    await rack.until(lambda: seen, 2 * upkeep.TRIM_USAGE_EVERY_S)
