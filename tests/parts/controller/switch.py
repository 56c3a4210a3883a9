"""An optical switch in memory: it holds a map of circuits."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Sequence,
)

from base import clock
from ocs_driver.base import (
    GROUP,
    Action,
    Alarm,
    ApplyResult,
    BusyPort,
    Capabilities,
    Circuit,
    CircuitMap,
    CircuitOutcome,
    CircuitRequest,
    CircuitState,
    Mode,
    OcsDriver,
    OcsEvent,
    PairResult,
    PortInfo,
    PortPower,
)
from ocs_driver.diff import diff
from ocs_driver.errors import OcsTimeout, OcsUnreachable

MIRRORS_S = 0.025
"""How long mirrors move."""


class FakeOcs(OcsDriver):
    """One optical switch. ``dull`` pairs of ports carry no light, even with a circuit."""

    def __init__(self) -> None:
        self.circuits: list[Circuit] = []
        self.dull: set[tuple[str, str]] = set()
        self.refused: set[str] = set()
        self.up_s: Callable[[str, str], float] = lambda a, b: 0.0
        """How long the link through two ports needs from light to carrier."""
        self.flap_at_s: float | None = None
        """When a link has a carrier for one second, before it comes up."""
        self.made_at: dict[tuple[str, str], float] = {}
        self.in_dbm: dict[str, float | None] = {}
        """Light that enters a port, where it is not -3 dBm; None: the port has no meter."""
        self.away = False
        self.late = False
        """Carries out requests but does not answer them."""
        self.applied: list[tuple[tuple[CircuitRequest, ...], tuple[CircuitRequest, ...]]] = []

    def add(self, a: str, b: str, owner: str = "lightloom") -> None:
        self.circuits.append(Circuit(a, b, True, CircuitState.TUNED, "", owner))

    def lit(self) -> list[tuple[str, str]]:
        return [p for p in self._pairs() if not self.up_s(*p) or self._age_s(p) >= self.up_s(*p)]

    def carrying(self) -> list[tuple[str, str]]:
        """Return the pairs whose port at the aggregator has a carrier."""
        at = self.flap_at_s
        flapping = [p for p in self._pairs() if at is not None and at <= self._age_s(p) < at + 1]
        return list(dict.fromkeys([*self.lit(), *flapping]))

    def _pairs(self) -> list[tuple[str, str]]:
        return [(c.a, c.b) for c in self.circuits if (c.a, c.b) not in self.dull]

    def _age_s(self, pair: tuple[str, str]) -> float:
        return clock.monotonic() - self.made_at.get(pair, float("-inf"))

    async def connect(self) -> None:
        self._check()

    async def close(self) -> None:
        pass

    async def capabilities(self) -> Capabilities:
        return Capabilities("Fake", "F1", "1", "0", True, True, False, BusyPort.REJECT, 0.025, 0.2)

    async def inventory(self) -> tuple[PortInfo, ...]:
        return ()

    async def read(self) -> CircuitMap:
        self._check()
        return CircuitMap(tuple(self.circuits), clock.time())

    async def apply(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        self._check()
        assert mode is Mode.SAFE
        self.applied.append((tuple(delete), tuple(make)))
        await asyncio.sleep(MIRRORS_S)
        results = []
        for request in delete:
            found = [c for c in self.circuits if c.matches(request)]
            self.circuits = [c for c in self.circuits if c not in found]
            outcome = CircuitOutcome.DONE if found else CircuitOutcome.UNCHANGED
            results.append(PairResult(Action.DELETE, request.a, request.b, True, outcome))
        results += [self.make(request) for request in make]
        if self.late:
            raise OcsTimeout("timeout", "fake", "no answer")
        return ApplyResult(tuple(results), CircuitMap(tuple(self.circuits), clock.time()))

    def make(self, request: CircuitRequest) -> PairResult:
        asked = (Action.MAKE, request.a, request.b, True)
        if any(c.matches(request) for c in self.circuits):
            return PairResult(*asked, CircuitOutcome.UNCHANGED)
        if request.b in self.refused:
            return PairResult(*asked, CircuitOutcome.FAILED, "SROF", "the mirror does not move")
        busy = {p for c in self.circuits for p in (c.a, c.b)}
        assert not {request.a, request.b} & busy, "a make on a busy port"
        self.add(request.a, request.b)
        self.made_at[(request.a, request.b)] = clock.monotonic()
        return PairResult(*asked, CircuitOutcome.DONE)

    async def check(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
    ) -> None:
        diff(await self.read(), delete, make, mode=mode, group=GROUP)

    async def power(self, ports: Sequence[str]) -> tuple[PortPower, ...]:
        self._check()
        return tuple(PortPower(port, self.in_dbm.get(port, -3.0), -4.0) for port in ports)

    async def alarms(self) -> tuple[Alarm, ...]:
        return ()

    async def subscribe(self) -> AsyncIterator[OcsEvent]:
        return
        yield

    def _check(self) -> None:
        if self.away:
            raise OcsUnreachable("unreachable", "fake", "switched off")
