"""Optical switches: the contract that the controller asks of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ocs_driver.base import ApplyResult, Capabilities, CircuitMap, CircuitRequest, PortPower


class Switches(Protocol):
    """The part of ``SwitchBank`` that a transaction uses."""

    async def back(self, switch: str) -> None:
        """Return once the switch answers."""

    def capabilities(self, switch: str) -> Capabilities | None:
        """Return what the switch says it is."""

    async def read(self, switch: str) -> CircuitMap:
        """Read the circuits from the device."""

    async def adopt(self, switch: str, circuits: Sequence[CircuitRequest]) -> None:
        """Note lit circuits without a known owner as ours."""

    async def check(
        self, switch: str, delete: Sequence[CircuitRequest], make: Sequence[CircuitRequest]
    ) -> None:
        """Raise the OcsConflict that ``apply`` would raise now."""

    async def apply(
        self,
        switch: str,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        deadline_s: float,
    ) -> ApplyResult:
        """Remove and make circuits."""


class PowerMeters(Protocol):
    """The part of the switches that this needs."""

    def connected(self) -> frozenset[str]:
        """Return the switches that answer."""

    async def power(self, switch: str, ports: tuple[str, ...]) -> tuple[PortPower, ...]:
        """Measure light at some ports. OcsError, TimeoutError."""
