from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from controller.devices import optical as module
from controller.devices.optical import SwitchBank
from ocs_driver.base import ApplyResult, CircuitMap, CircuitRequest, Mode
from ocs_driver.errors import OcsUnreachable
from tests.parts.controller.switch import FakeOcs
from tests.parts.ocs.rig import until


async def test_bank_reconnects_and_tells() -> None:
    ocs = FakeOcs()
    ocs.away = True
    told: asyncio.Queue[bool] = asyncio.Queue()
    bank = SwitchBank({"ocs0": ocs}, lambda _, connected: told.put_nowait(connected))
    bank.start()
    await asyncio.sleep(30)
    assert bank.connected() == frozenset()
    assert "switched off" in bank.error("ocs0")
    with pytest.raises(OcsUnreachable):
        await bank.apply("ocs0", [], [CircuitRequest("1", "2")], deadline_s=1)
    for away in (False, True, False):
        ocs.away = away
        async with asyncio.timeout(30):
            assert await told.get() is not away
    await bank.apply("ocs0", [], [CircuitRequest("1", "2")], deadline_s=1)
    seen = bank.last_map("ocs0")
    assert seen is not None
    assert [(c.a, c.b) for c in seen.circuits] == [("1", "2")]
    about = bank.capabilities("ocs0")
    assert about is not None
    assert about.vendor == "Fake"
    await bank.stop()


class _Slow(FakeOcs):
    """Its session belongs to a change for as long as that takes; readings wait."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()
        self.waiting = 0
        self.given_up = 0

    async def read(self) -> CircuitMap:
        self.waiting += 1
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.waiting -= 1
        return await super().read()

    async def apply(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        await self.free.wait()
        return await super().apply(delete, make, mode=mode, deadline_s=deadline_s)


async def test_a_reading_that_waits_for_a_change_is_no_lost_session() -> None:
    ocs, told = _Slow(), list[bool]()
    bank = SwitchBank({"ocs0": ocs}, lambda _, connected: told.append(connected))
    bank.start()
    await bank.all_known()
    ocs.free.clear()
    await until(lambda: ocs.waiting, "a reading")
    made = [CircuitRequest("1", "2")]
    changing = asyncio.create_task(bank.apply("ocs0", [], made, deadline_s=1000.0))
    await asyncio.sleep(0)
    await asyncio.sleep(module.READ_TIMEOUT_S)
    await until(lambda: ocs.given_up, "the reading to end")
    ocs.free.set()
    await changing
    assert told == [True]
    await bank.stop()


class _Babbling(FakeOcs):
    """Says what its driver stumbles over, for a while."""

    babbles = False

    async def read(self) -> CircuitMap:
        if self.babbles:
            raise ValueError("invalid literal for int() with base 10: '²'")
        return await super().read()


async def test_a_switch_that_its_driver_does_not_understand_is_away_and_may_come_back() -> None:
    ocs, told = _Babbling(), list[bool]()
    bank = SwitchBank({"ocs0": ocs}, lambda _, connected: told.append(connected))
    bank.start()
    await bank.all_known()
    ocs.babbles = True
    await until(lambda: told[-1] is False, "the switch to count as away")
    assert "does not understand" in bank.error("ocs0")
    ocs.babbles = False
    await until(lambda: told[-1], "the switch to be back")
    await bank.stop()
