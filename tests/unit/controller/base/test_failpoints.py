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
from pathlib import Path

import pytest

from controller.base import failpoints
from controller.base.errors import ServiceError
from tests.parts.controller.failpoints import Homes, Reaper, check, settle, story
from tests.parts.controller.rack import Rack, crash


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
