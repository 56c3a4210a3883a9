from __future__ import annotations

import asyncio

import pytest

from controller import switches as module
from controller.switches import SwitchBank
from ocs_driver.base import CircuitRequest
from ocs_driver.errors import OcsUnreachable
from tests.unit.controller.fakes import FakeOcs


async def test_bank_reconnects_and_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(module, "BACKOFF_S", (0.01, 0.02))
    ocs = FakeOcs()
    ocs.away = True
    told: asyncio.Queue[bool] = asyncio.Queue()
    bank = SwitchBank({"ocs0": ocs}, lambda _, connected: told.put_nowait(connected))
    bank.start()
    await asyncio.sleep(0.03)
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
