"""Tests the convergence loop with a switch whose responses are all scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from ocs_driver import (
    Alarm,
    Capabilities,
    Circuit,
    CircuitMap,
    CircuitOutcome,
    CircuitRequest,
    CircuitState,
    OcsError,
    OcsEvent,
    PortInfo,
    PortPower,
)
from ocs_driver.converge import ConvergingDriver

LONG_S = 3600.0
WANTED = CircuitRequest("1", "2")


class Scripted(ConvergingDriver):
    """Reports ``states`` in successive reads of a made circuit, and repeats the last one."""

    def __init__(self, *states: CircuitState) -> None:
        super().__init__("switch", "lightloom")
        self.states = list(states)
        self.made = False
        self.look_s = 0.0
        self.bulk_s = 0.0

    async def read(self) -> CircuitMap:
        if not self.made:
            return CircuitMap((), 0.0)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return CircuitMap((Circuit("1", "2", True, state, "1-2", "lightloom"),), 0.0)

    async def _make_bulk(
        self, requests: Sequence[CircuitRequest], timeout_s: float
    ) -> list[OcsError | None]:
        self.made = True
        await asyncio.sleep(self.bulk_s)
        return [None] * len(requests)

    async def _delete_bulk(
        self, circuits: Sequence[Circuit], timeout_s: float
    ) -> list[OcsError | None]:
        raise AssertionError("nothing is deleted here")

    async def _may_be_lit(self, request: CircuitRequest) -> bool:
        await asyncio.sleep(self.look_s)
        return False

    def _validate(self, requests: Sequence[CircuitRequest]) -> None:
        return

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def capabilities(self) -> Capabilities:
        raise NotImplementedError

    async def inventory(self) -> tuple[PortInfo, ...]:
        raise NotImplementedError

    async def power(self, ports: Sequence[str]) -> tuple[PortPower, ...]:
        raise NotImplementedError

    async def alarms(self) -> tuple[Alarm, ...]:
        raise NotImplementedError

    def subscribe(self) -> AsyncIterator[OcsEvent]:
        raise NotImplementedError


async def test_a_poll_without_response_ends_at_the_deadline() -> None:
    began = asyncio.get_running_loop().time()
    driver = Scripted(CircuitState.TUNING)
    driver.look_s = LONG_S
    done = await driver.apply([], [WANTED], deadline_s=4.0)
    assert done.results[0].code == "not_tuned"
    assert asyncio.get_running_loop().time() <= began + 4.0


async def test_an_endless_bulk_ends_at_the_deadline() -> None:
    began = asyncio.get_running_loop().time()
    driver = Scripted(CircuitState.TUNED)
    driver.bulk_s = LONG_S
    done = await driver.apply([], [WANTED], deadline_s=4.0)
    assert done.ok, "the map decides, not the reply to the bulk"
    assert asyncio.get_running_loop().time() <= began + 4.0


async def test_each_failure_has_its_own_grace_time() -> None:
    """Settling mirrors may report a failure for a moment, more than once."""
    failed, tuning = CircuitState.FAILED, CircuitState.TUNING

    driver = Scripted(failed, *([tuning] * 8), failed, CircuitState.TUNED)
    done = await driver.apply([], [WANTED], deadline_s=10.0)
    assert done.results[0].outcome is CircuitOutcome.DONE


async def test_a_lasting_failure_is_reported_long_before_the_deadline() -> None:
    began = asyncio.get_running_loop().time()
    done = await Scripted(CircuitState.FAILED).apply([], [WANTED], deadline_s=60.0)
    assert done.results[0].code == "circuit_failed"
    assert asyncio.get_running_loop().time() < began + 1.0
