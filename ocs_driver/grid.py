"""Translates bank.row.column port names to the port numbers of a switch.

With ``?ports=5x8x8`` in its URL (``?ports=5x8x8@10001`` if numbering starts there) a switch
with numbered ports fits a site whose cables name banks, rows and columns: only the URL
changes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocs_driver.base import (
    Alarm,
    ApplyResult,
    Capabilities,
    Circuit,
    CircuitMap,
    CircuitRequest,
    Mode,
    OcsDriver,
    OcsEvent,
    PortInfo,
    PortPower,
)
from ocs_driver.errors import OcsError

_SHAPE = re.compile(r"([1-9]\d{0,2})x([1-9]\d{0,2})x([1-9]\d{0,2})(?:@([1-9]\d{0,5}))?\Z", re.ASCII)


@dataclass(slots=True, frozen=True)
class Grid:
    """Banks x rows x columns, all counted from 1; ``first`` is the device's number of 1.1.1."""

    banks: int
    rows: int
    columns: int
    first: int = 1

    @classmethod
    def parse(cls, text: str) -> Grid:
        """Parse ``5x8x8`` or ``5x8x8@10001``. Raises OcsError when malformed."""
        match = _SHAPE.match(text)
        if match is None:
            raise OcsError(
                "bad_url",
                text,
                "ports= is banks x rows x columns, such as 5x8x8, or 5x8x8@10001 to start there",
            )
        return cls(*map(int, match.groups("1")))

    def number(self, port: str) -> str:
        """Return the device's number of a port. Raises OcsError when it is not in the grid."""
        parts = port.split(".")
        limits = (self.banks, self.rows, self.columns)
        if len(parts) != 3 or not all(
            p.isascii() and p.isdigit() and 1 <= int(p) <= limit
            for p, limit in zip(parts, limits, strict=True)
        ):
            raise OcsError(
                "bad_port", port, f"ports are bank.row.column, up to {'.'.join(map(str, limits))}"
            )
        bank, row, column = (int(p) - 1 for p in parts)
        return str((bank * self.rows + row) * self.columns + column + self.first)

    def name(self, number: str) -> str:
        """Return the site's name of a device's port, or its number outside the grid."""
        place = int(number) - self.first if number.isascii() and number.isdigit() else -1
        if not 0 <= place < self.banks * self.rows * self.columns:
            return number
        bank, rest = divmod(place, self.rows * self.columns)
        row, column = divmod(rest, self.columns)
        return f"{bank + 1}.{row + 1}.{column + 1}"


class GridDriver(OcsDriver):
    """Wraps a driver and translates its port names."""

    def __init__(self, inner: OcsDriver, grid: Grid) -> None:
        self._inner = inner
        self._grid = grid

    async def connect(self) -> None:
        """See ``OcsDriver.connect``."""
        await self._inner.connect()

    async def close(self) -> None:
        """See ``OcsDriver.close``."""
        await self._inner.close()

    async def capabilities(self) -> Capabilities:
        """See ``OcsDriver.capabilities``."""
        return await self._inner.capabilities()

    async def facts(self) -> Mapping[str, Any]:
        """See ``OcsDriver.facts``."""
        return await self._inner.facts()

    async def inventory(self) -> tuple[PortInfo, ...]:
        """See ``OcsDriver.inventory``."""
        ports = await self._inner.inventory()
        return tuple(dataclasses.replace(p, port=self._grid.name(p.port)) for p in ports)

    async def read(self) -> CircuitMap:
        """See ``OcsDriver.read``."""
        return self._map(await self._inner.read())

    async def apply(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        """See ``OcsDriver.apply``."""
        done = await self._inner.apply(
            [self._request(r) for r in delete],
            [self._request(r) for r in make],
            mode=mode,
            deadline_s=deadline_s,
        )
        name = self._grid.name
        results = tuple(dataclasses.replace(r, a=name(r.a), b=name(r.b)) for r in done.results)
        return ApplyResult(results, self._map(done.circuits))

    async def check(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
    ) -> None:
        """See ``OcsDriver.check``."""
        requests = [self._request(r) for r in delete], [self._request(r) for r in make]
        await self._inner.check(*requests, mode=mode)

    async def adopt(self, circuits: Sequence[CircuitRequest]) -> None:
        """See ``OcsDriver.adopt``."""
        await self._inner.adopt([self._request(c) for c in circuits])

    async def power(self, ports: Sequence[str]) -> tuple[PortPower, ...]:
        """See ``OcsDriver.power``."""
        powers = await self._inner.power([self._grid.number(port) for port in ports])
        return tuple(dataclasses.replace(p, port=self._grid.name(p.port)) for p in powers)

    async def alarms(self) -> tuple[Alarm, ...]:
        """See ``OcsDriver.alarms``."""
        return tuple(
            dataclasses.replace(a, obj=self._grid.name(a.obj)) for a in await self._inner.alarms()
        )

    def subscribe(self) -> AsyncIterator[OcsEvent]:
        """See ``OcsDriver.subscribe``."""
        events = self._inner.subscribe()

        async def renamed() -> AsyncIterator[OcsEvent]:
            async for event in events:
                yield dataclasses.replace(event, obj=self._grid.name(event.obj))

        return renamed()

    def _request(self, request: CircuitRequest) -> CircuitRequest:
        number = self._grid.number
        return dataclasses.replace(request, a=number(request.a), b=number(request.b))

    def _map(self, circuits: CircuitMap) -> CircuitMap:
        def renamed(circuit: Circuit) -> Circuit:
            name = self._grid.name
            return dataclasses.replace(circuit, a=name(circuit.a), b=name(circuit.b))

        return CircuitMap(tuple(map(renamed, circuits.circuits)), circuits.taken_at)
