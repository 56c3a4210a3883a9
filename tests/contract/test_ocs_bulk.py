"""Bulks larger than what is on its way at a time, and what is asked while mirrors move."""

from __future__ import annotations

import pytest

from ocs_driver import CircuitMap, CircuitRequest, Outcome
from ocs_driver.converge import ConvergingDriver
from testbed.ocs_emulator.model import Fault, ModelError
from tests.contract.ocs_rig import VENDORS, Vendor, rig

MANY = 24


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
async def test_refusals_in_a_large_bulk_are_laid_to_the_right_circuits(
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
        failed = {r.a for r in result.results if r.outcome is Outcome.FAILED}
        assert failed == refused
        assert len(result.circuits.circuits) == count - len(refused), "none is half made"
        gone = await driver.apply(wanted, [])
        assert gone.ok
        assert gone.circuits.circuits == ()


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
async def test_while_mirrors_move_the_whole_map_is_seldom_read(vendor: Vendor) -> None:
    async with (
        rig(vendor, mirror_s=0.3, bulk_s=0.3, settle_s=9.0) as bench,
        bench.driver() as driver,
    ):
        assert isinstance(driver, ConvergingDriver)
        read, reads = driver._read_map, 0

        async def counted() -> CircuitMap:
            nonlocal reads
            reads += 1
            return await read()

        driver._read_map = counted  # type: ignore[method-assign]
        assert (await driver.apply([], [CircuitRequest(bench.ports[0], bench.ports[4])])).ok
        # Before, after sending, every 0.1 s, and when the light came; not every few milliseconds.
        assert 3 <= reads <= 20
