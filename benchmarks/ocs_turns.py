"""Measures dark time while other clients read the switch: this driver against FIFO access.

``python -m benchmarks.ocs_turns`` prints one JSON document. An emulated Calient S320 of 320 ports
takes ``--read-time`` for each command that changes nothing. ``--circuits`` circuits move
repeatedly: alone, during an endless poll of the light of all ports, and during reads of all ports
as the console's switch page makes them. ``away_s`` is the median time from the first command of a
change that the switch receives until the last mirror has settled. ``fifo`` is the former policy:
first come, first served. Everything runs in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
from collections.abc import AsyncIterator

from ocs_driver.base import CircuitRequest
from ocs_driver.calient.driver import CalientTl1Driver
from ocs_driver.tl1.session import Login, Tl1Session
from ocs_driver.turns import CommandTurns
from testbed.ocs_emulator import Emulator, load_personality

LOADS = ("alone", "poll", "page")
DEADLINE_S = 60.0


class Fifo(CommandTurns):
    """First come, first served: a change has no priority over a read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._one_change = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def change(self, until: float | None = None) -> AsyncIterator[None]:
        """Exclude only other changes."""
        async with self._one_change:
            yield


class FifoSession(Tl1Session):
    """A session that a read holds for all its commands."""

    _PORTION = 1_000_000


class FifoDriver(CalientTl1Driver):
    """The rival driver with FIFO access."""

    def __init__(self, host: str, port: int, login: Login) -> None:
        super().__init__(host, port, login)
        self._turns = Fifo(self.name)
        self._session = FifoSession(host, port, login, turns=self._turns)


POLICIES: dict[str, type[CalientTl1Driver]] = {"ours": CalientTl1Driver, "fifo": FifoDriver}


async def away_s(emulator: Emulator, policy: str, load: str, circuits: int, rounds: int) -> float:
    """Return the dark time in seconds when ``circuits`` circuits move."""
    ports = emulator.personality.ports
    half = len(ports) // 2
    straight = [CircuitRequest(ports[i], ports[half + i]) for i in range(circuits)]
    crossed = [CircuitRequest(r.a, straight[(i + 1) % circuits].b) for i, r in enumerate(straight)]
    login = Login("admin", "x")
    async with POLICIES[policy](*emulator.addresses[0], login) as driver:

        async def read() -> None:
            while load == "poll":
                await driver.power(ports)
            while load == "page":
                await driver.inventory()
                await driver.alarms()

        reading = asyncio.create_task(read())
        await driver.apply([], straight, deadline_s=DEADLINE_S)
        found = []
        for _ in range(rounds):
            for old, new in ((straight, crossed), (crossed, straight)):
                emulator.switch.journal.clear()
                done = await driver.apply(old, new, deadline_s=DEADLINE_S)
                assert done.ok, [r for r in done.results if r.code][:3]
                first = next(heard.at for heard in emulator.switch.journal if heard.changes)
                ready = [c.ready_at for c in emulator.model.circuits.values()]
                found.append(max(at for at in ready if at is not None) - first)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await driver.apply(straight, [], deadline_s=DEADLINE_S)
    return statistics.median(found)


async def main() -> None:
    """Measure all loads under both policies alternately, and print the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--circuits", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--read-time", type=float, default=0.002)
    options = parser.parse_args()
    personality = load_personality("calient-s320").with_timing(
        command_s=0.0, read_s=options.read_time
    )
    results = []
    async with Emulator(personality, [("127.0.0.1", 0)]) as emulator:
        for load in LOADS:
            figures = {
                name: await away_s(emulator, name, load, options.circuits, options.rounds)
                for name in POLICIES
            }
            results.append(
                {
                    "load": load,
                    **{f"{name}_away_s": round(value, 4) for name, value in figures.items()},
                    "ratio": round(figures["fifo"] / figures["ours"], 2),
                }
            )
    document = {
        "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "ports": len(personality.ports),
        "circuits": options.circuits,
        "read_s": options.read_time,
        "results": results,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
