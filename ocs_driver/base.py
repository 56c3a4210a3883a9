"""Defines the vendor-neutral interface of optical-switch drivers.

A driver handles ports and circuits, never jobs. All calls are idempotent, every write is
read back from the device, and every error is an ``OcsError``. A reply without what it must
hold is an ``OcsBadReply``, never an empty answer. Times are in seconds, powers
in dBm; a power of ``None`` means no reading (dark or not measured).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

GROUP = "lightloom"
"""Default group that marks own circuits."""


class Mode(StrEnum):
    """What ``apply`` may do with circuits that occupy requested ports."""

    SAFE = "safe"
    """A busy port is a conflict; nothing is sent."""
    UPDATE = "update"
    """Own circuits on the ports are displaced; foreign ones are a conflict."""
    OVERWRITE = "overwrite"
    """Any circuit on the ports is displaced, including foreign ones. Other ports do not change."""


class CircuitState(StrEnum):
    """State of a circuit, as the switch reports it."""

    PROVISIONED = "provisioned"
    """Configured on the switch and holding its ports, but its mirrors are not driven."""
    TUNING = "tuning"
    TUNED = "tuned"
    FAILED = "failed"


class PortHealth(StrEnum):
    """State of a port, in SONiC OCS terms."""

    BLOCKED = "blocked"
    """Healthy, but passes no light because it has no circuit."""
    TUNING = "tuning"
    TUNED = "tuned"
    FAILED = "failed"


class Action(StrEnum):
    """An operation on a circuit."""

    MAKE = "make"
    DELETE = "delete"


class CircuitOutcome(StrEnum):
    """Result for one requested circuit, judged by read-back and not by the reply alone."""

    DONE = "done"
    UNCHANGED = "unchanged"
    """The circuit already had the requested state; nothing was sent and its light continued."""
    FAILED = "failed"


class BusyPort(StrEnum):
    """How a switch handles a make on a port in use."""

    REJECT = "reject"
    DISPLACE = "displace"
    UNKNOWN = "unknown"


class EventKind(StrEnum):
    """Kinds of events that a subscription delivers."""

    REPORT = "report"
    ALARM = "alarm"
    CLEAR = "clear"
    """An alarm is no longer active."""
    CIRCUIT = "circuit"
    """Another client made or removed a circuit."""
    POWER = "power"
    """Light changed by more than the noise of the meters."""
    SESSION_LOST = "session_lost"
    SESSION_RESTORED = "session_restored"


Paths = tuple[str, str, bool]
"""Key that is equal for all descriptions of the same light paths."""


def paths_of(a: str, b: str, *, duplex: bool) -> Paths:
    """Return the key of light paths. Duplex has no direction; a duplex loop is one path."""
    return (min(a, b), max(a, b), True) if duplex and a != b else (a, b, False)


@dataclass(slots=True, frozen=True)
class Pair:
    """A one-way light path: in at port ``a``, out at port ``b``."""

    a: str
    b: str


@dataclass(slots=True, frozen=True)
class CircuitRequest:
    """A requested circuit. ``name`` is kept only by devices that can store one."""

    a: str
    b: str
    duplex: bool = True
    name: str = ""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The one-way paths of this circuit."""
        forward = Pair(self.a, self.b)
        return (forward, Pair(self.b, self.a)) if self.duplex else (forward,)

    @property
    def paths(self) -> Paths:
        """The key of its light paths."""
        return paths_of(self.a, self.b, duplex=self.duplex)

    @property
    def within(self) -> tuple[Paths, ...]:
        """The keys of every circuit that this one contains: itself and its halves."""
        whole, forward, back = self.paths, (self.a, self.b, False), (self.b, self.a, False)
        return (whole, forward, back) if whole[2] else (whole,)


@dataclass(slots=True, frozen=True)
class Circuit:
    """A circuit as the switch reports it; ``owner`` is its group, empty when unknown.

    The owner comes from the switch if it stores owners, else from the driver's ledger.
    ``detail`` is the device's own text for the state, for operators.
    """

    a: str
    b: str
    duplex: bool
    state: CircuitState
    name: str
    owner: str
    detail: str = ""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The one-way paths of this circuit."""
        return CircuitRequest(self.a, self.b, self.duplex).pairs

    @property
    def paths(self) -> Paths:
        """The key of its light paths."""
        return paths_of(self.a, self.b, duplex=self.duplex)

    def belongs_to(self, group: str) -> bool:
        """Whether the circuit belongs to this group; without a known owner it has no group."""
        return self.owner == group

    def matches(self, wanted: CircuitRequest | Circuit) -> bool:
        """Whether both describe the same light paths; a duplex circuit has no direction."""
        return self.paths == wanted.paths


@dataclass(slots=True, frozen=True)
class CircuitMap:
    """All circuits of one switch, read from the device at ``taken_at`` (epoch seconds)."""

    circuits: tuple[Circuit, ...]
    taken_at: float
    _by_paths: dict[Paths, list[Circuit]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _by_port: dict[str, list[Circuit]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for circuit in self.circuits:
            self._by_paths.setdefault(circuit.paths, []).append(circuit)
            for port in {circuit.a, circuit.b}:
                self._by_port.setdefault(port, []).append(circuit)

    def find(self, wanted: CircuitRequest | Circuit) -> Circuit | None:
        """Return the circuit with the same light paths, or None."""
        return next(iter(self._by_paths.get(wanted.paths, ())), None)

    def covered(self, request: CircuitRequest) -> tuple[Circuit, ...]:
        """Return the circuits that ``request`` contains: itself, or its halves."""
        return tuple(c for paths in request.within for c in self._by_paths.get(paths, ()))

    def on_port(self, port: str) -> tuple[Circuit, ...]:
        """Return the circuits that use ``port``, as input or output."""
        return tuple(self._by_port.get(port, ()))

    def joining(self, a: str, b: str) -> tuple[Circuit, ...]:
        """Return the circuits between two ports, in either direction."""
        return tuple(c for c in self.on_port(a) if {c.a, c.b} == {a, b})


@dataclass(slots=True, frozen=True)
class Capabilities:
    """Identity and behaviour of a switch; unknown facts are marked as unknown."""

    vendor: str
    model: str
    serial: str
    firmware: str
    duplex: bool
    """One device circuit carries both directions."""
    stores_owner: bool
    """Whether the switch itself stores each circuit's group; else the driver's ledger does."""
    stores_name: bool
    busy_port: BusyPort
    switch_time_s: float
    """Typical time of one circuit from command to light."""
    bulk_time_s: float
    """Longest time of one bulk, independent of its size."""


@dataclass(slots=True, frozen=True)
class PortInfo:
    """One optical port with its health, operator's label and light."""

    port: str
    health: PortHealth
    label: str = ""
    power_in_dbm: float | None = None
    power_out_dbm: float | None = None


@dataclass(slots=True, frozen=True)
class PortPower:
    """Light seen entering and leaving a port."""

    port: str
    in_dbm: float | None
    out_dbm: float | None


@dataclass(slots=True, frozen=True)
class Alarm:
    """An active fault: ``severity`` is critical, major, minor or none."""

    obj: str
    severity: str
    text: str


@dataclass(slots=True, frozen=True)
class OcsEvent:
    """An unsolicited message from the switch or its session."""

    kind: EventKind
    obj: str
    severity: str
    text: str


@dataclass(slots=True, frozen=True)
class PairResult:
    """Result for one circuit; ``code`` and ``message`` give the reason of a failure."""

    action: Action
    a: str
    b: str
    duplex: bool
    outcome: CircuitOutcome
    code: str = ""
    message: str = ""


@dataclass(slots=True, frozen=True)
class ApplyResult:
    """Per-circuit results (requested and displaced ones) and the map read back afterwards."""

    results: tuple[PairResult, ...]
    circuits: CircuitMap

    @property
    def ok(self) -> bool:
        """Whether every requested circuit has the requested state."""
        return all(r.outcome is not CircuitOutcome.FAILED for r in self.results)


class OcsDriver(ABC):
    """One optical switch. Entering the context logs in; leaving it logs out."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def connect(self) -> None:
        """Open the session. Raises OcsUnreachable or OcsLogin on failure."""

    @abstractmethod
    async def close(self) -> None:
        """Log out and close; circuits stay as they are."""

    @abstractmethod
    async def capabilities(self) -> Capabilities:
        """Return the identity and behaviour of the switch."""

    @abstractmethod
    async def inventory(self) -> tuple[PortInfo, ...]:
        """Return all ports. May last a minute on large switches: do not poll it."""

    @abstractmethod
    async def read(self) -> CircuitMap:
        """Return the circuits, always from the device and never from a cache."""

    @abstractmethod
    async def apply(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        """Remove and make circuits, deletes first; read back until tuned or at the deadline.

        Circuits that already have the requested state are not touched. Raises OcsConflict
        before anything is sent when the mode forbids the change, OcsTimeout when the outcome
        cannot be read back within ``deadline_s`` seconds, OcsUnreachable without a session.
        """

    @abstractmethod
    async def check(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
    ) -> None:
        """Raise the OcsConflict that ``apply`` would raise now. Changes nothing."""

    @abstractmethod
    async def power(self, ports: Sequence[str]) -> tuple[PortPower, ...]:
        """Return the light on the given ports, in that order."""

    @abstractmethod
    async def alarms(self) -> tuple[Alarm, ...]:
        """Return the active alarms of the switch."""

    async def adopt(self, circuits: Sequence[CircuitRequest]) -> None:
        """Record lit circuits without a known owner as own; touches no light. Raises OcsError.

        Does nothing on a switch that stores owners, nor for circuits that do not exist.
        """
        del circuits

    async def facts(self) -> Mapping[str, Any]:
        """Return further device facts from the dialect, for a personality file."""
        return {}

    @abstractmethod
    def subscribe(self) -> AsyncIterator[OcsEvent]:
        """Yield events from now until the driver is closed."""
