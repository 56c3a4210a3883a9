"""Tests that a read that starts before a change and ends during it does not affect the change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from ocs_driver import CircuitOutcome, CircuitRequest, OcsAddress, OcsError, Pair
from ocs_driver.matrix import Identity, MatrixDriver
from ocs_driver.pairs import WirePair
from ocs_driver.polatis.scpi import PolatisScpiDriver
from ocs_driver.ports import MatrixPorts
from ocs_driver.profile import SwitchProfile

WANTED = CircuitRequest("1", "5")
LIGHT_AFTER_S = 0.8


class Measuring(MatrixDriver):
    """A switch with power monitors whose light is late, and that accepts commands slowly."""

    def __init__(self, state_dir: Path) -> None:
        profile = SwitchProfile(settle_s=1.0)
        super().__init__("switch", "lightloom", profile=profile, state_dir=state_dir)
        self.standing: list[Pair] = []
        self.lit_at = 0.0
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def _identify(self) -> Identity:
        return Identity("x", "8xCC", "1", "1", MatrixPorts(8, 0))

    async def _pairs(self) -> list[WirePair]:
        light = await self._light()
        return [self._judge_light(pair, light) for pair in self.standing]

    async def _light(self) -> Mapping[str, float | None]:
        lit = asyncio.get_running_loop().time() >= self.lit_at
        return {str(n): -3.0 if lit else None for n in range(1, 9)}

    async def _connect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        self.asked.set()
        await self.go_on.wait()
        self.standing += pairs
        self.lit_at = asyncio.get_running_loop().time() + LIGHT_AFTER_S
        return [None] * len(pairs)

    async def _disconnect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        raise AssertionError("nothing is removed here")


async def test_the_driver_waits_for_late_light(tmp_path: Path) -> None:
    driver = Measuring(tmp_path)
    changing = asyncio.create_task(driver.apply([], [WANTED]))
    await driver.asked.wait()
    assert (await driver.read()).circuits == ()
    driver.go_on.set()
    (result,) = (await changing).results
    assert result.outcome is CircuitOutcome.DONE, result


class Instrument:
    """A Polatis session: commands take effect when ``go_on`` is set; mirrors never settle."""

    def __init__(self) -> None:
        self.standing: list[Pair] = []
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def ask(self, line: str, replies: int = 1, timeout_s: float | None = None) -> list[str]:
        if line.startswith("*IDN?"):
            return ["Polatis,8xCC,1,1", "8,8"]
        if "CONN:STAT?" in line:
            sides = (",".join(p.a for p in self.standing), ",".join(p.b for p in self.standing))
            return [f"(@{sides[0]}),(@{sides[1]})"]
        return ["(E,E)"]

    async def send(self, line: str, replies: int, timeout_s: float | None = None) -> list[str]:
        if "ADD" in line:
            self.asked.set()
            await self.go_on.wait()
            self.standing.append(Pair("1", "5"))
            return ['0, "No error"']
        await asyncio.sleep(3600)  # *OPC?
        raise AssertionError

    async def open(self) -> None: ...

    async def close(self) -> None: ...


async def test_moving_mirrors_do_not_count_as_settled(tmp_path: Path) -> None:
    address = OcsAddress.parse("polatis+scpi://switch")
    driver = PolatisScpiDriver(address)
    driver._state_dir = tmp_path
    session = driver._session = Instrument()  # type: ignore[assignment]
    changing = asyncio.create_task(driver.apply([], [WANTED], deadline_s=4.0))
    await session.asked.wait()
    assert (await driver.read()).circuits == ()
    session.go_on.set()
    (result,) = (await changing).results
    assert result.code == "not_tuned"
