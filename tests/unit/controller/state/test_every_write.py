"""The disk fails at every durable write, in every way; the scenario continues or is refused.

``story`` of test_failpoints is repeated: in the n-th run the n-th commit meets the fault. The
controller continues by itself once the disk works, and a restart finds the same state.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.state import journal
from tests.parts.controller.disk import FAULTS, Fault
from tests.parts.controller.failpoints import Homes, check, settle, story
from tests.parts.controller.rack import Rack, crash

MOST = 60
"""A run has fewer commits; the runs stop when no commit is left to fail."""
STEP = 2
"""Every second commit for each fault: the other faults cover those in between."""


@pytest.mark.parametrize(("number", "fault"), list(enumerate(FAULTS)), ids=FAULTS)
async def test_a_fault_at_any_durable_write_is_survived(
    tmp_path: Path, number: int, fault: Fault
) -> None:
    for after in range(number % STEP, MOST, STEP):
        (folder := tmp_path / str(after)).mkdir()
        if not await ran_into(folder, fault, after):
            return
    pytest.fail("the story has more commits than expected")


async def ran_into(folder: Path, fault: Fault, after: int) -> bool:
    """Run the story with one fault; return False when it ended before the fault's commit."""
    rack, seen = Rack(folder), list[Homes]()

    async def broken_once() -> None:
        await rack.until(lambda: hasattr(rack, "disk"))
        rack.disk.fault, rack.disk.after, rack.disk.times = fault, after, 1
        await rack.until(lambda: rack.disk.hit)
        # Longer than anything waits for a late write.
        await asyncio.sleep(1.0 + journal.TURN_TIMEOUT_S + journal.COMMIT_TIMEOUT_S)
        rack.disk.release()

    breaking = asyncio.create_task(broken_once())
    with contextlib.suppress(ServiceError, AssertionError):  # refused, or rolled back
        await story(rack, seen)
    hit = bool(rack.disk.hit)
    if hit:
        await breaking
    else:
        breaking.cancel()
        await asyncio.gather(breaking, return_exceptions=True)
    if not hasattr(rack.service, "journal") or not rack.see.ready:
        await crash(rack)  # the first start was refused: it is tried again, as the keeper does
        await rack.up()
    await settle(rack)
    seen.append({e.name: e.home for e in await rack.desks.fabric.endpoints()})
    before = {job.name: job.state for job in await rack.desks.jobs.jobs()}
    await rack.until(lambda: not rack.see.owes)
    await crash(rack)
    await rack.up()
    await settle(rack)
    try:
        await check(rack, seen)
        assert {job.name: job.state for job in await rack.desks.jobs.jobs()} == before
    except AssertionError as error:
        raise AssertionError(f"{fault} at commit {after}: {error}") from error
    finally:
        await rack.down()
    return hit
