"""Packet switches that join endpoints (aggregators): the contract that every southbound keeps.

The contract speaks of places, jobs and endpoints, never of a protocol's rules: an implementation
makes its own tables of :class:`Forwarding`. One suite tests them all
(``tests/contract/test_aggregators.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from controller.devices.counters import PortBlock
from controller.devices.profile import Profile
from sitefile.model import Uplink

ROCE_DSCP = 26
"""The code point RoCE deployments commonly map to their lossless class; a site may name another."""


@dataclass(slots=True, frozen=True, order=True)
class AttachPoint:
    """One port of one aggregator, written ``as0/4``: where a circuit ends."""

    aggregator: str
    port: int

    def __str__(self) -> str:
        return f"{self.aggregator}/{self.port}"


class AggregatorError(Exception):
    """An aggregator did not do what it was asked.

    ``code``: ``unavailable`` (no session), ``failed`` (it refused; ``str`` names the rule),
    ``timeout`` (the outcome is unknown), ``conflict`` or ``not_found``. ``obj`` is the aggregator.
    """

    def __init__(self, code: str, obj: str, message: str, hint: str) -> None:
        super().__init__(f"{obj}: {message}")
        self.code = code
        self.obj = obj
        self.hint = hint


@dataclass(slots=True, frozen=True)
class AggregatorConnected:
    """An aggregator is connected, its tables are known; ``repaired`` lists what was changed."""

    as_name: str
    repaired: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class AggregatorLost:
    """The session of an aggregator ended. It keeps its tables and forwards as before."""

    as_name: str


@dataclass(slots=True, frozen=True)
class PortStatus:
    """A port gained (``up``) or lost its carrier."""

    as_name: str
    port: int
    up: bool


@dataclass(slots=True, frozen=True)
class AggregatorRefused:
    """``claimant`` claimed to be this aggregator and was refused; nothing was sent to it."""

    as_name: str
    claimant: str
    reason: str


AggregatorEvent = AggregatorConnected | AggregatorLost | PortStatus | AggregatorRefused
"""The events that an implementation posts, on the loop."""


@dataclass(slots=True, frozen=True)
class Forwarding:
    """What all aggregators together must forward: the intent, independent of any protocol."""

    epoch: int
    """Revision of the intent; it grows."""
    attachments: Mapping[str, AttachPoint]
    """Where each lit endpoint is."""
    jobs: Mapping[str, tuple[str, ...]]
    """Endpoints of each job: they reach each other and no other endpoints."""
    held: frozenset[str] = frozenset()
    """Endpoints whose traffic is dropped, and which probes reach."""
    spared: frozenset[str] = frozenset()
    """Endpoints whose forwarding stays as a session found it, although the intent does not name it.
    Does not keep what an earlier ``converge`` made and is known to be there."""
    uplinks: tuple[Uplink, ...] = ()
    """The links between aggregators that carry frames of this epoch."""


@dataclass(slots=True, frozen=True)
class ForwardingChanges:
    """How many table entries a change of forwarding takes."""

    add: int
    delete: int


class Aggregators(Protocol):
    """All aggregators of a site. Called on the loop; every call has a time-out of its own."""

    async def start(self) -> tuple[str, int] | None:
        """Start the sessions; return the address that aggregators connect to, None without one."""

    async def stop(self) -> None:
        """End all sessions; what the aggregators forward stays as it is."""

    def connected(self) -> frozenset[str]:
        """Return the aggregators whose session is up."""

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        """Return the carrier of every port whose carrier is known."""

    async def converge(self, wanted: Forwarding, needed: frozenset[str] = frozenset()) -> None:
        """Make every aggregator forward as ``wanted``; of several callers the latest one wins.

        An aggregator that is away follows when it comes back. Raises AggregatorError when one in
        ``needed`` does not follow.
        """

    def foresee(self, wanted: Forwarding) -> None:
        """Prepare for a ``converge`` to exactly ``wanted``; only a hint."""

    async def changes(self, now: Forwarding, then: Forwarding) -> ForwardingChanges:
        """Count what would change in the tables; changes nothing."""

    async def probe(
        self, as_name: str, port: int, ip: str, mac: str, *, deadline_s: float
    ) -> float | None:
        """Send a probe to an endpoint through a port; return the round trip in seconds, else None.

        Raises AggregatorError.
        """

    async def port_counters(self, as_name: str) -> PortBlock:
        """Read the port counters. Raises AggregatorError."""

    async def profile(self, as_name: str) -> Profile:
        """Measure what the aggregator is and can do; forwarding stays as it is.

        Raises AggregatorError; what is not answered is unknown.
        """

    async def audit(self, as_name: str) -> list[str]:
        """Read the tables from the device; list what differs from what ``converge`` made.

        Raises AggregatorError.
        """
