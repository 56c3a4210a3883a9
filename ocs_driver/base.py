"""The contract every optical-switch driver fulfils, whatever the vendor.

A driver knows ports and circuits, never jobs. All calls are idempotent, every
write is read back from the device, and every error is an ``OcsError``. Times are
seconds, powers dBm; ``None`` as a power means no reading (dark or not measured).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

GROUP = "lightloom"
"""Marks circuits that are ours, unless a caller names another group."""


class Mode(StrEnum):
    """What ``apply`` may do with circuits that stand in the way of a make."""

    SAFE = "safe"
    """Busy ports are a conflict; nothing is sent."""
    UPDATE = "update"
    """Own circuits on the ports are displaced; foreign ones are a conflict."""
    OVERWRITE = "overwrite"
    """Any circuit on the ports is displaced, foreign ones included. Other ports are left alone."""


class CircuitState(StrEnum):
    """How far a circuit has come, as the switch reports it."""

    PROVISIONED = "provisioned"
    """Known to the switch and holding its ports, but its mirrors are not driven."""
    TUNING = "tuning"
    TUNED = "tuned"
    FAILED = "failed"


class PortHealth(StrEnum):
    """State of a port, in the words of SONiC OCS."""

    BLOCKED = "blocked"
    """Sound, and passes no light: no circuit on it."""
    TUNING = "tuning"
    TUNED = "tuned"
    FAILED = "failed"


class Action(StrEnum):
    """The two things that can be done with a circuit."""

    MAKE = "make"
    DELETE = "delete"


class Outcome(StrEnum):
    """What became of one requested circuit, judged by read-back and not by the reply alone."""

    DONE = "done"
    UNCHANGED = "unchanged"
    """It already was as asked; nothing was sent, so its light was not disturbed."""
    FAILED = "failed"


class BusyPort(StrEnum):
    """What a switch does with a make on a port in use."""

    REJECT = "reject"
    DISPLACE = "displace"
    UNKNOWN = "unknown"


class EventKind(StrEnum):
    """Kinds of event a subscription delivers."""

    REPORT = "report"
    ALARM = "alarm"
    CLEAR = "clear"
    """An alarm stands no longer."""
    CIRCUIT = "circuit"
    """Somebody else made or removed a circuit."""
    POWER = "power"
    """Light changed by more than the meters' noise."""
    SESSION_LOST = "session_lost"
    SESSION_RESTORED = "session_restored"


Paths = tuple[str, str, bool]
"""What all descriptions of the same light paths have in common."""


def paths_of(a: str, b: str, *, duplex: bool) -> Paths:
    """Name light paths: a duplex circuit has no direction, and onto its own port it is one path."""
    return (min(a, b), max(a, b), True) if duplex and a != b else (a, b, False)


@dataclass(slots=True, frozen=True)
class Pair:
    """A one-way light path: in at port ``a``, out at port ``b``."""

    a: str
    b: str


@dataclass(slots=True, frozen=True)
class CircuitRequest:
    """A circuit as asked for. ``name`` is kept only by devices that can store one."""

    a: str
    b: str
    duplex: bool = True
    name: str = ""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The one-way paths this circuit consists of."""
        forward = Pair(self.a, self.b)
        return (forward, Pair(self.b, self.a)) if self.duplex else (forward,)

    @property
    def paths(self) -> Paths:
        """Its light paths, as a key."""
        return paths_of(self.a, self.b, duplex=self.duplex)

    @property
    def within(self) -> tuple[Paths, ...]:
        """The paths of every circuit that lies wholly within this one: itself, and its halves."""
        whole, forward, back = self.paths, (self.a, self.b, False), (self.b, self.a, False)
        return (whole, forward, back) if whole[2] else (whole,)


@dataclass(slots=True, frozen=True)
class Circuit:
    """A circuit as the switch reports it; ``owner`` is its group, empty when not known.

    A switch that stores owners says it; for the others the driver's own list does.

    ``detail`` holds the device's own words for the state, for operators.
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
        """The one-way paths this circuit consists of."""
        return CircuitRequest(self.a, self.b, self.duplex).pairs

    @property
    def paths(self) -> Paths:
        """Its light paths, as a key."""
        return paths_of(self.a, self.b, duplex=self.duplex)

    def belongs_to(self, group: str) -> bool:
        """Whether the circuit is of this group; one whose owner is not known is of no group."""
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
        """Return the circuits that lie wholly within ``request``: itself, or its halves."""
        return tuple(c for paths in request.within for c in self._by_paths.get(paths, ()))

    def on_port(self, port: str) -> tuple[Circuit, ...]:
        """Return the circuits that touch ``port``, on either side of it."""
        return tuple(self._by_port.get(port, ()))

    def joining(self, a: str, b: str) -> tuple[Circuit, ...]:
        """Return the circuits between two ports, in whatever direction."""
        return tuple(c for c in self.on_port(a) if {c.a, c.b} == {a, b})


@dataclass(slots=True, frozen=True)
class Capabilities:
    """What a switch is and how it behaves; unknown facts say so."""

    vendor: str
    model: str
    serial: str
    firmware: str
    duplex: bool
    """One device circuit carries both directions."""
    stores_owner: bool
    """Whether the switch itself keeps each circuit's group; else a list on our side does."""
    stores_name: bool
    busy_port: BusyPort
    switch_time_s: float
    """Typical time of one circuit from command to light."""
    bulk_time_s: float
    """Longest time of one bulk, whatever its size."""


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
    """A standing fault: ``severity`` is critical, major, minor or none."""

    obj: str
    severity: str
    text: str


@dataclass(slots=True, frozen=True)
class OcsEvent:
    """Something the switch, or the session with it, told unasked."""

    kind: EventKind
    obj: str
    severity: str
    text: str


@dataclass(slots=True, frozen=True)
class PairResult:
    """What became of one circuit; ``code`` and ``message`` say why it failed."""

    action: Action
    a: str
    b: str
    duplex: bool
    outcome: Outcome
    code: str = ""
    message: str = ""


@dataclass(slots=True, frozen=True)
class ApplyResult:
    """Per-circuit results (requested and displaced ones) and the map read back afterwards."""

    results: tuple[PairResult, ...]
    circuits: CircuitMap

    @property
    def ok(self) -> bool:
        """Whether everything asked for is so."""
        return all(r.outcome is not Outcome.FAILED for r in self.results)


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
        """Open the session. OcsUnreachable or OcsLogin when that fails."""

    @abstractmethod
    async def close(self) -> None:
        """Log out and close; circuits stay as they are."""

    @abstractmethod
    async def capabilities(self) -> Capabilities:
        """Return what the switch says it is."""

    @abstractmethod
    async def inventory(self) -> tuple[PortInfo, ...]:
        """Return all ports. May take a minute on large switches: do not poll it."""

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
        """Remove and make circuits, deletes first, and read back until tuned or out of time.

        Circuits already as asked are not touched. Raises OcsConflict before anything
        is sent when the mode forbids the change, OcsTimeout when the outcome could
        not be read back within ``deadline_s`` seconds, OcsUnreachable without a session.
        """

    @abstractmethod
    async def check(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
    ) -> None:
        """Raise the OcsConflict that ``apply`` would raise as things are now; changes nothing."""

    @abstractmethod
    async def power(self, ports: Sequence[str]) -> tuple[PortPower, ...]:
        """Return the light on the given ports, in that order."""

    @abstractmethod
    async def alarms(self) -> tuple[Alarm, ...]:
        """Return what the switch holds to be wrong now."""

    async def adopt(self, circuits: Sequence[CircuitRequest]) -> None:
        """Note lit circuits without a known owner as ours; touches no light. OcsError.

        Does nothing on a switch that stores owners, nor for circuits that are not there.
        """
        del circuits

    async def facts(self) -> Mapping[str, Any]:
        """Return what else the device's dialect shows: what a personality file needs."""
        return {}

    @abstractmethod
    def subscribe(self) -> AsyncIterator[OcsEvent]:
        """Yield events from now on, until the driver is closed."""
