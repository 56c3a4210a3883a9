"""The controller dies at every failpoint, every time it passes it; the next one converges.

``story`` is a life of the controller with everything in it that writes or touches a device. It
is told again and again: the n-th telling dies at the n-th point it passes. Then a new controller
starts over the same store and the same devices, and must bring the world to the old or to the
new epoch, never to a mix.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.devices.engine import RankState
from controller.devices.openflow.rules.compiler import compile as compile_flows
from controller.devices.openflow.rules.program import diff
from controller.schema.plans import PlanRequest
from controller.state.records import Quarantine
from controller.state.writes import PutRecords
from tests.unit.controller.fakes import Rack
from tests.unit.controller.jobs.test_recovery import crash
from tests.unit.controller.service.test_service import submit

Homes = Mapping[str, str | None]


class Reaper:
    """Lets a controller die at the ``at``-th point it passes: nothing it does has effect after."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.passed: list[str] = []
        self.died = asyncio.Event()

    async def __call__(self, point: str) -> None:
        if not self.died.is_set():
            self.passed.append(point)
            if self.at is None or len(self.passed) < self.at:
                return
            self.died.set()
        await asyncio.Event().wait()  # every other task of the dead hangs at its next point


async def story(rack: Rack, seen: list[Homes]) -> None:
    """Start, two jobs, a regroup that pauses one and restarts the other, a cancel, a release.

    ``seen`` gets every set of homes that is right at some moment.
    """
    seen.append(rack.site.homes)
    await rack.up()
    ends = ["gpu0", "gpu2", "gpu1", "gpu3"]
    await submit(rack, "red", 4, endpoints=ends, rank_order="placed")
    await asyncio.sleep(0.001)  # jobs of the same moment are in the order of their names
    await submit(rack, "blue", 2, policy="restart")
    await rack.state("red", "running")
    await rack.state("blue", "running")
    plan = await rack.service.commands.make_plan(PlanRequest())
    seen.append(plan.homes_after)
    assert (await rack.service.commands.apply(plan, wait_s=60)).state == "committed"
    await rack.service.commands.cancel("blue")
    state = rack.service._state
    state.light.quarantine["as0/4"] = Quarantine("as0/4", "a test", 0.0)
    await state.store.commit(PutRecords([state.light.quarantine["as0/4"]]))
    await rack.service.commands.release("as0/4")


async def settle(rack: Rack) -> None:
    """Wait until a restarted controller has nothing left to put right."""

    async def settled() -> bool:
        jobs = await rack.service.queries.jobs()
        state = rack.service._state
        return (
            not state.transactions.running
            and not state.jobs.owed
            and all(view.finished_at is not None for view in state.transactions.finished.values())
            and all(job.state in ("running", "cancelled", "failed") for job in jobs)
            and {s.job for s in rack.engine.statuses.values()}
            == {job.name for job in jobs if job.state == "running"}
            and (await rack.service.queries.health()).status == "ok"
            and _flows_as_intended(rack)
        )

    await rack.until(settled)


def _flows_as_intended(rack: Rack) -> bool:
    state = rack.service._state
    now = state.forwarding()
    wanted = compile_flows(rack.site, now.epoch, now.attachments, now.jobs, now.held)
    return not any(diff(rack.aggregators.programs[name], wanted[name]) for name in wanted)


async def check(rack: Rack, seen: list[Homes]) -> None:
    state = rack.service._state
    ports = [port for c in rack.switch.circuits for port in (c.a, c.b)]
    assert len(ports) == len(set(ports)), "the map is a matching"
    light = rack.aggregators.light()
    assert light == state.light.attachments, "the light is where the intent says"
    homes = {e: light[e].aggregator for e in light}
    assert homes in seen, "the old epoch or the new one, never a mix"
    assert not state.light.held, "nothing stays drained"
    assert _flows_as_intended(rack), "flows = intent"
    # A cancel that was never acknowledged may have stopped the job, which then counts as failed.
    assert "red" not in state.jobs or state.jobs["red"].state == "running"
    running = {job.name for job in state.jobs.values() if job.state == "running"}
    assert {s.job for s in rack.engine.statuses.values()} == running, "containers = intent"
    for job in running:
        assert rack.engine.states(job) == {RankState.RUNNING}, "every job thawed"
        ranks = {s.endpoint for s in rack.engine.statuses.values() if s.job == job}
        assert ranks == set(state.jobs[job].endpoints)


async def told(folder: Path, at: int | None) -> list[str]:
    """Tell the story with a death at point ``at``; return the points passed until then."""
    rack, seen = _fresh(folder), list[Homes]()
    reaper = Reaper(at)
    with failpoints.hooked(reaper):
        life = asyncio.create_task(story(rack, seen))
        death = asyncio.create_task(reaper.died.wait())
        await asyncio.wait({life, death}, return_when=asyncio.FIRST_COMPLETED)
        life.cancel()
        death.cancel()
        await asyncio.gather(life, death, return_exceptions=True)
        await crash(rack)
    if reaper.died.is_set():
        await rack.up()
        await settle(rack)
        try:
            await check(rack, seen)
        except AssertionError as error:
            raise AssertionError(f"dead at {reaper.passed[-1]} ({at}): {error}") from error
        await rack.down()
    else:
        assert life.done() and not life.cancelled() and life.exception() is None
    return reaper.passed


async def test_death_at_every_failpoint_converges(tmp_path: Path) -> None:
    passed = await told(tmp_path / "0", None)
    assert set(passed) >= set(failpoints.POINTS) - {"log-recovered.before", "log-recovered.after"}
    for at in range(1, len(passed) + 1):
        await told(tmp_path / str(at), at)


async def test_death_in_the_middle_of_a_recovery_converges(tmp_path: Path) -> None:
    """Die in the switch step, then at each point of the recovery, then recover for good."""
    reached: set[str] = set()
    for at in range(1, 100):
        rack, seen = _fresh(tmp_path / f"r{at}"), list[Homes]()
        with failpoints.hooked(first := _at("switch.after", 2)):
            life = asyncio.create_task(story(rack, seen))
            await asyncio.wait_for(first.died.wait(), 60)
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await crash(rack)
        second = Reaper(at)
        with failpoints.hooked(second):
            up = asyncio.create_task(_recovered(rack, second))
            death = asyncio.create_task(second.died.wait())
            await asyncio.wait({up, death}, return_when=asyncio.FIRST_COMPLETED)
            for task in (up, death):
                task.cancel()
            await asyncio.gather(up, death, return_exceptions=True)
            await crash(rack)
        await rack.up()
        await settle(rack)
        await check(rack, seen)
        await rack.down()
        reached.update(second.passed)
        if not second.died.is_set():
            break
    assert {"log-recovered.before", "log-recovered.after", "thaw.after"} <= reached


def _fresh(folder: Path) -> Rack:
    folder.mkdir()
    return Rack(folder)


async def _recovered(rack: Rack, reaper: Reaper) -> None:
    """Recover whole: all is settled in memory, and the log has it too."""

    async def logged() -> bool:
        return "log-recovered.after" in reaper.passed

    await rack.up()
    await settle(rack)
    await rack.until(logged)


def _at(name: str, times: int) -> Reaper:
    """Return a reaper that waits for the ``times``-th passage of one point."""

    class Named(Reaper):
        async def __call__(self, point: str) -> None:
            self.at = (
                len(self.passed) + 1
                if point == name and self.passed.count(name) == times - 1
                else None
            )
            await super().__call__(point)

    return Named()


@pytest.mark.parametrize("setting", ["nowhere.before", "switch.after:0", "switch.after:x"])
def test_unknown_failpoint_is_refused(setting: str) -> None:
    with pytest.raises(ServiceError) as caught, failpoints.armed(setting):
        pass
    assert caught.value.code == "invalid"


def test_an_armed_failpoint_ends_the_process_as_sigkill_would() -> None:
    program = (
        "import asyncio\n"
        "from controller.base import failpoints\n"
        "async def twice():\n"
        "    for n in range(2):\n"
        "        async with failpoints.around('switch'):\n"
        "            print(n, flush=True)\n"
        "with failpoints.armed('switch.after:2'):\n"
        "    asyncio.run(twice())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ},
    )
    assert (done.returncode, done.stdout) == (137, b"0\n1\n")
