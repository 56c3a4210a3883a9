"""Tests bulks larger than the in-flight limit, and the reads while mirrors move."""

from __future__ import annotations

import asyncio

import pytest

from ocs_driver import CircuitOutcome, CircuitRequest
from testbed.ocs_emulator.model import Fault, ModelError
from tests.parts.ocs.rig import PATIENCE_S, VENDORS, Readings, Vendor, rig

MANY = 24


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
async def test_refusals_in_a_large_bulk_belong_to_the_right_circuits(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(vendor) as bench, bench.driver() as driver:
        fibers = list(bench.emulator.personality.fibers)
        half = len(fibers) // 2
        count = min(MANY, half)
        wanted = [CircuitRequest(fibers[i], fibers[half + i]) for i in range(count)]
        refused = {wanted[i].a for i in (0, count // 2, count - 1)}
        model = bench.emulator.model
        enter, activate = model.enter, model.activate

        def entering(name: str, a: str, b: str, **rest: object) -> object:
            if a in refused and a != wanted[0].a:
                raise ModelError(Fault.BUSY, a)
            return enter(name, a, b, **rest)  # type: ignore[arg-type]

        def activating(name: str, now: float) -> None:
            if model.circuits[name].a == wanted[0].a:
                if not vendor.two_step:
                    model.drop(name)
                raise ModelError(Fault.BUSY, name)
            activate(name, now)

        monkeypatch.setattr(model, "enter", entering)
        monkeypatch.setattr(model, "activate", activating)
        result = await driver.apply([], wanted)
        failed = {r.a for r in result.results if r.outcome is CircuitOutcome.FAILED}
        assert failed == refused
        assert len(result.circuits.circuits) == count - len(refused), "none is half made"
        gone = await driver.apply(wanted, [])
        assert gone.ok
        assert gone.circuits.circuits == ()


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
async def test_the_whole_map_is_rarely_read_while_mirrors_move(vendor: Vendor) -> None:
    async with rig(vendor, never_settles=True) as bench, bench.driver() as driver:
        readings, loop = Readings.of(driver), asyncio.get_running_loop()
        began = loop.time()
        wanted = [CircuitRequest(bench.ports[0], bench.ports[4])]
        changing = asyncio.create_task(driver.apply([], wanted, deadline_s=4 * PATIENCE_S))
        await readings.settling()
        await asyncio.sleep(0.3)
        for circuit in bench.emulator.model.circuits.values():
            circuit.ready_at = loop.time()
        bench.emulator.switch.poke()
        assert (await changing).ok
        # Before, after sending, every 0.1 s, and when light arrives; not every few milliseconds.
        assert readings.done <= 4 + (loop.time() - began) / 0.1
