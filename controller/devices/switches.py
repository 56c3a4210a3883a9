"""Optical switches: the contract that the controller asks of all switches of a site together.

The protocol of a single switch is up to its driver (``ocs_driver``); one suite tests every dialect
(``tests/contract/test_ocs_driver.py``). Here ports are named as the site file names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ocs_driver.base import (
    Alarm,
    ApplyResult,
    Capabilities,
    CircuitMap,
    CircuitRequest,
    PortInfo,
    PortPower,
)


class Switches(Protocol):
    """All optical switches of a site. Every call has a time-out of its own."""

    def start(self) -> None:
        """Begin to connect; returns at once."""

    async def stop(self) -> None:
        """Log out of all switches; circuits stay as they are."""

    async def all_known(self) -> None:
        """Return once every switch was read."""

    async def back(self, switch: str) -> None:
        """Return once the switch answers."""

    def connected(self) -> frozenset[str]:
        """Return the switches that answer."""

    def answered_since(self, switch: str, since: float) -> bool:
        """Whether a switch has answered a question asked since a moment of the loop's time.

        If its session is up and it has not, it is asked at once; look again later.
        """

    def error(self, switch: str) -> str:
        """Return why a switch does not answer, empty when it does."""

    def capabilities(self, switch: str) -> Capabilities | None:
        """Return the capabilities that the switch reports; None before the first contact."""

    def last_map(self, switch: str) -> CircuitMap | None:
        """Return the map as read last, at most a few seconds old while connected."""

    async def read(self, switch: str) -> CircuitMap:
        """Read the circuits from the device. OcsError, TimeoutError."""

    async def check(
        self, switch: str, delete: Sequence[CircuitRequest], make: Sequence[CircuitRequest]
    ) -> None:
        """Raise the OcsConflict that ``apply`` would raise now. OcsError, TimeoutError."""

    async def apply(
        self,
        switch: str,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        deadline_s: float,
    ) -> ApplyResult:
        """Remove and make circuits of ours; foreign ones in the way are a conflict.

        OcsError: OcsTimeout when the outcome is unknown, OcsUnreachable when nothing was sent.
        """

    async def adopt(self, switch: str, circuits: Sequence[CircuitRequest]) -> None:
        """Note lit circuits without a known owner as ours. OcsError, TimeoutError."""

    async def power(self, switch: str, ports: Sequence[str]) -> tuple[PortPower, ...]:
        """Measure light at some ports. OcsError, TimeoutError."""

    async def optics(self, switch: str) -> tuple[tuple[PortInfo, ...], tuple[Alarm, ...]]:
        """Read all ports with their light, and the standing alarms. OcsError, TimeoutError."""
