"""Models the optics of a switch: ports, mirrors, light. Pure; the time is an argument.

The front ends of all protocols change and read this one model, and the data plane
follows its light.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from testbed.ocs_emulator.light import EmulatedLight
from testbed.ocs_emulator.personality import Busy, Personality


class Fault(StrEnum):
    """Why the model refuses a change."""

    NO_SUCH_PORT = "no such port"
    SAME_PORT = "a port cannot face itself"
    BUSY = "port in use"
    NO_SUCH_CIRCUIT = "no such connection"
    ACTIVE = "connection is active"
    NOT_ACTIVE = "connection is not active"


class ModelError(Exception):
    """The optics cannot make a change."""

    def __init__(self, fault: Fault, obj: str) -> None:
        super().__init__(f"{obj}: {fault.value}")
        self.fault = fault
        self.obj = obj


class Mirrors(StrEnum):
    """State of the mirrors of one circuit."""

    IDLE = "idle"
    TUNING = "tuning"
    TUNED = "tuned"
    FAILED = "failed"
    """Tuned without light: a port has failed, its transmitter is dark, or a mirror missed."""


@dataclass(slots=True)
class Crosspoint:
    """A configured circuit; ``ready_at`` is set once it is activated."""

    name: str
    a: str
    b: str
    duplex: bool
    group: str
    ready_at: float | None = None
    tuned: bool = False
    strays: dict[str, str] = field(default_factory=dict)
    """Wrong destination of the light from a port, by port."""

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the configured one-way light paths (in port, out port)."""
        yield (self.a, self.b)
        if self.duplex:
            yield (self.b, self.a)

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield the actual one-way light paths (in port, out port)."""
        for source, sink in self.pairs():
            yield source, self.strays.get(source, sink)


@dataclass(slots=True)
class TuningFaults:
    """Faults of the next circuits to be activated; counters decrease."""

    extra_s: float = 0.0
    slow: int = 0
    stuck: int = 0
    stray_to: str = ""
    stray: int = 0


class OpticalModel:
    """Tunes circuits one after the other at mirror speed; a bulk never exceeds the bulk time."""

    def __init__(self, personality: Personality) -> None:
        self.personality = personality
        self.ports = frozenset(personality.ports)
        self.circuits: dict[str, Crosspoint] = {}
        self.light = EmulatedLight(personality)
        self.tuning = TuningFaults()
        self.on_change: Callable[[], None] = lambda: None
        """Callback after every change of the map; it must not change the map."""
        self._unplugged: frozenset[str] = frozenset()
        self._by_source: dict[str, Crosspoint] = {}
        self._by_sink: dict[str, Crosspoint] = {}
        self._astray: set[str] = set()
        """Names of circuits with stray paths."""
        self._bulk_began = float("-inf")
        self._bulk_ends = float("-inf")
        self._bulk_size = 0
        self._bulk_limit = personality.timing.bulk_s

    # -- changes -------------------------------------------------------------------

    def enter(self, name: str, a: str, b: str, *, duplex: bool, group: str) -> Crosspoint:
        """Provision a circuit: it holds its ports, but no mirror moves yet."""
        for port in (a, b):
            if port not in self.ports:
                raise ModelError(Fault.NO_SUCH_PORT, port)
        if a == b:
            raise ModelError(Fault.SAME_PORT, a)
        outputs = self.personality.partner
        if outputs and (a in outputs or b not in outputs):
            raise ModelError(Fault.NO_SUCH_PORT, a if a in outputs else b)
        entered = Crosspoint(name, a, b, duplex or self.personality.reciprocal, group)
        in_the_way = self._in_the_way(entered)
        if in_the_way and self.personality.behaviour.busy is Busy.REJECT:
            sources = {p[0] for c in in_the_way for p in c.pairs()}
            sinks = {p[1] for c in in_the_way for p in c.pairs()}
            port = next(x for s, d in entered.pairs() for x in (s, d) if x in sources | sinks)
            raise ModelError(Fault.BUSY, port)
        for circuit in in_the_way:
            self._forget(circuit)
            self._bulk_limit = self.personality.timing.conflict_bulk_s
        self.circuits[name] = entered
        for source, sink in entered.pairs():
            self._by_source[source] = self._by_sink[sink] = entered
        self.on_change()
        return entered

    def activate(self, name: str, now: float) -> None:
        """Start to drive a circuit's mirrors."""
        circuit = self.circuit(name)
        if circuit.ready_at is not None:
            raise ModelError(Fault.ACTIVE, name)
        timing = self.personality.timing
        if now >= self._bulk_ends:
            self._bulk_began, self._bulk_size, self._bulk_limit = now, 0, timing.bulk_s
        self._bulk_size += 1
        in_turn = self._bulk_began + min(self._bulk_size * timing.mirror_s, self._bulk_limit)
        circuit.ready_at = max(in_turn, now + timing.mirror_s)
        self._bulk_ends = max(self._bulk_ends, circuit.ready_at)
        self._misbehave(circuit)
        self.on_change()

    def connect(self, a: str, b: str, group: str, now: float) -> Crosspoint:
        """Enter and activate in one step; an identical circuit does not change."""
        name = f"{a},{b}"
        standing = self.carrying(a, b)
        if standing is not None and standing.ready_at is not None:
            return standing
        entered = self.enter(name, a, b, duplex=False, group=group)
        self.activate(name, now)
        return entered

    def deactivate(self, name: str) -> None:
        """Remove a circuit's light; it stays provisioned."""
        circuit = self.circuit(name)
        if circuit.ready_at is None:
            raise ModelError(Fault.NOT_ACTIVE, name)
        circuit.ready_at, circuit.tuned = None, False
        self._straighten(circuit)
        self.on_change()

    def delete(self, name: str) -> None:
        """Delete an inactive circuit and free its ports."""
        if self.circuit(name).ready_at is not None:
            raise ModelError(Fault.ACTIVE, name)
        self._forget(self.circuit(name))
        self.on_change()

    def drop(self, name: str) -> None:
        """Remove a circuit's light and delete it."""
        self._forget(self.circuit(name))
        self.on_change()

    def restart(self, now: float, *, preserve: bool) -> None:
        """Restart after a power failure; with ``preserve`` mirrors are driven again afterwards."""
        if not preserve:
            for circuit in list(self.circuits.values()):
                self._forget(circuit)
        for circuit in self.circuits.values():
            if circuit.ready_at is not None:
                timing = self.personality.timing
                circuit.ready_at, circuit.tuned = now + timing.boot_s + timing.mirror_s, False
                self._straighten(circuit)
        self.on_change()

    def set_failed(self, fibers: Collection[str]) -> frozenset[str]:
        """Set the missing fibers; return the newly failed ports."""
        before = self.failed
        self._unplugged = frozenset(fibers)
        return self.failed - before

    def set_tuned(self, now: float) -> None:
        """Record that all circuits that are ready at ``now`` pass light."""
        for circuit in self.ready(now):
            circuit.tuned = True

    def _in_the_way(self, entered: Crosspoint) -> list[Crosspoint]:
        found: dict[str, Crosspoint] = {}
        for source, sink in entered.pairs():
            for circuit in (self._by_source.get(source), self._by_sink.get(sink)):
                if circuit is not None:
                    found[circuit.name] = circuit
        return list(found.values())

    def _forget(self, circuit: Crosspoint) -> None:
        del self.circuits[circuit.name]
        self._astray.discard(circuit.name)
        for source, sink in circuit.pairs():
            self._by_source.pop(source, None)
            self._by_sink.pop(sink, None)

    def _straighten(self, circuit: Crosspoint) -> None:
        circuit.strays.clear()
        self._astray.discard(circuit.name)

    def _misbehave(self, circuit: Crosspoint) -> None:
        faults = self.tuning
        if circuit.ready_at is not None and faults.slow:
            faults.slow -= 1
            circuit.ready_at += faults.extra_s
        if faults.stuck:
            faults.stuck -= 1
            circuit.ready_at = float("inf")
        if faults.stray:
            faults.stray -= 1
            circuit.strays[circuit.a] = faults.stray_to
            self._astray.add(circuit.name)

    # -- readings ------------------------------------------------------------------

    @property
    def failed(self) -> frozenset[str]:
        """The ports that pass no light: broken, or without a fiber."""
        if not self._unplugged and not self.light.broken:
            return frozenset()
        fiber = self.personality.fiber
        return frozenset(
            p for p in self.ports if p in self.light.broken or fiber(p) in self._unplugged
        )

    def carrying(self, a: str, b: str) -> Crosspoint | None:
        """Return the circuit configured to carry light from ``a`` to ``b``."""
        circuit = self._by_source.get(a)
        return circuit if circuit is not None and (a, b) in circuit.pairs() else None

    def circuit(self, name: str) -> Crosspoint:
        """Return the circuit of that name or raise ModelError."""
        try:
            return self.circuits[name]
        except KeyError:
            raise ModelError(Fault.NO_SUCH_CIRCUIT, name) from None

    def state(self, circuit: Crosspoint) -> Mirrors:
        """Return the state of a circuit's mirrors."""
        if circuit.ready_at is None:
            return Mirrors.IDLE
        if not circuit.tuned:
            return Mirrors.TUNING
        failed = self.failed
        lit = all(
            source not in failed
            and sink not in failed
            and source not in circuit.strays
            and self.light.out_dbm(source, sink) > self.personality.light.los_dbm
            for source, sink in circuit.pairs()
        )
        return Mirrors.TUNED if lit else Mirrors.FAILED

    def ready(self, now: float) -> list[Crosspoint]:
        """Return the circuits whose mirrors are in position."""
        return [c for c in self.circuits.values() if c.ready_at is not None and c.ready_at <= now]

    def forward(self, port: str, now: float) -> str | None:
        """Return the port where light or a frame from ``port`` leaves, or None."""
        failed = self.failed
        for circuit in self.ready(now):
            for source, sink in circuit.paths():
                if source == port:
                    return None if source in failed or sink in failed else sink
        return None

    def carrier(self, now: float) -> frozenset[str]:
        """Return the ports whose far ends have had light long enough for a carrier."""
        link_up_s = self.personality.timing.link_up_s
        return frozenset(p for c in self.ready(now - link_up_s) for p in (c.a, c.b))

    def next_event(self, now: float) -> float | None:
        """Return when the next mirrors are in position, or the next carrier rises."""
        link_up_s = self.personality.timing.link_up_s
        moments = [
            moment
            for c in self.circuits.values()
            if c.ready_at is not None
            for moment in (c.ready_at, c.ready_at + link_up_s)
            if moment > now or (moment == c.ready_at and not c.tuned)
        ]
        return min(moments, default=None)

    def on_port(self, port: str) -> list[Crosspoint]:
        """Return the circuits that use a port."""
        both = (self._by_source.get(port), self._by_sink.get(port))
        return list({c.name: c for c in both if c is not None}.values())

    def power_in_dbm(self, port: str) -> float:
        """Return the light that enters a port from its fiber."""
        if port in self.failed or port in self.personality.partner:
            return self.personality.light.floor_dbm
        return self.light.launch_dbm(port)

    def power_out_dbm(self, port: str) -> float:
        """Return the light that leaves a port into its fiber."""
        failed = self.failed
        if port not in failed:
            aimed = self._by_sink.get(port)
            # A stray path may end anywhere, so check all circuits then.
            candidates = self.circuits.values() if self._astray else [aimed] if aimed else []
            for circuit in candidates:
                if circuit.tuned:
                    for source, sink in circuit.paths():
                        if sink == port and source not in failed:
                            return self.light.out_dbm(source, sink)
        return self.personality.light.floor_dbm

    def loss_db(self, a: str, b: str) -> float:
        """Return the insertion loss of a path, which is constant for each path."""
        return self.light.loss_db(a, b)
