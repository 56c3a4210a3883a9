"""What a transaction's executor needs of those around it: the state, the switches, the flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from controller.devices.aggregators import AttachPoint
from controller.devices.counters import PortCounters
from controller.transaction.model import Transaction


class World(Protocol):
    """What the executor needs from the owner of state; all on the same loop."""

    async def write_log(self, tx: Transaction) -> None:
        """Make the transaction durable. ServiceError."""

    async def hold(
        self, endpoints: Sequence[str], target: Mapping[str, AttachPoint | None]
    ) -> None:
        """Install flows that drop the endpoints' traffic and admit probes at ``target``."""

    async def release(self, tx: Transaction) -> None:
        """Make ``tx.target`` the intent and install its flows. ServiceError."""

    async def restart_job(self, job: str) -> None:
        """Start a stopped job again, with ranks for the new homes. ServiceError."""

    @property
    def command_lost(self) -> str:
        """Why this controller may touch no device any more; empty while it may."""

    def lose_command(self, reason: str) -> None:
        """Know that a newer controller commands the site."""

    def server_of(self, endpoint: str) -> str:
        """Return the server that the endpoint is in."""

    def fail_job(self, job: str, reason: str) -> None:
        """End a job that cannot go on."""

    async def look(self) -> None:
        """Read the containers afresh, so that ``answers`` is right."""

    def answers(self, endpoint: str) -> bool:
        """Whether a container holds the endpoint's NIC, so that its address answers probes."""

    def attached(self, endpoint: str) -> AttachPoint | None:
        """Where the endpoint is now."""

    def port_up(self, point: AttachPoint) -> bool:
        """Whether the aggregator sees a carrier; True when it never said."""


class Aggregators(Protocol):
    """The part of ``OpenFlowAggregators`` that a transaction uses."""

    async def probe(
        self, as_name: str, port: int, ip: str, mac: str, *, deadline_s: float
    ) -> float | None:
        """ARP probe out of a port: round-trip time, or None without an answer."""

    async def port_counters(self, as_name: str) -> Mapping[int, PortCounters]:
        """Read the port counters."""
