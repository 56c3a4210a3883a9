"""Tests that a change holds the session from its first to its last command while others read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ocs_driver import CircuitRequest, OcsDriver
from testbed.ocs_emulator.switch import Heard
from tests.parts.ocs.rig import PATIENCE_S, VENDORS, Rig, Vendor, rig, until

READERS = ("read", "inventory", "power", "alarms")
READ_S = 0.001
"""How long a read takes at least, which the emulator answers at once."""
OF_A_CHANGE = ("*CLS", "SYSTEM:ERROR", "SYST:ERR")
"""SCPI queries on the line of a change, which read the error queue of the switch."""


@contextlib.asynccontextmanager
async def readers(bench: Rig, driver: OcsDriver) -> AsyncIterator[None]:
    """Read everything repeatedly and concurrently."""
    done = dict.fromkeys(READERS, 0)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "read": driver.read,
        "inventory": driver.inventory,
        "power": lambda: driver.power(bench.emulator.personality.fibers),
        "alarms": driver.alarms,
    }

    async def ask(name: str) -> None:
        while True:
            await calls[name]()
            done[name] += 1
            await asyncio.sleep(READ_S)

    tasks = [asyncio.create_task(ask(name)) for name in READERS]
    try:
        await until(lambda: any(done.values()), "a first read")
        yield
        before = dict(done)
        await until(lambda: all(done[n] > before[n] for n in READERS), "all reads to continue")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cut(journal: list[Heard]) -> list[Heard]:
    """Return the commands from the first change to the last, inclusive."""
    places = [i for i, heard in enumerate(journal) if heard.changes]
    return journal[places[0] : places[-1] + 1]


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
async def test_no_read_runs_between_the_deletes_and_the_makes(vendor: Vendor) -> None:
    async with rig(vendor) as bench, bench.driver() as driver:
        half = len(bench.ports) // 2
        old = [CircuitRequest(bench.ports[i], bench.ports[half + i]) for i in range(half)]
        new = [CircuitRequest(o.a, old[(i + 1) % half].b) for i, o in enumerate(old)]
        assert (await driver.apply([], old, deadline_s=PATIENCE_S)).ok
        async with readers(bench, driver):
            bench.emulator.switch.journal.clear()
            assert (await driver.apply(old, new, deadline_s=PATIENCE_S)).ok
            heard = cut(list(bench.emulator.switch.journal))
        between = [h.command for h in heard if not h.changes]
        assert [c for c in between if not c.upper().startswith(OF_A_CHANGE)] == []
