"""Computes the circuits to remove and make for a request. Pure.

The switch never resolves a conflict itself: the driver deletes conflicting circuits
first (200 ms against 500 ms on a Calient, and undefined elsewhere).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ocs_driver.base import Circuit, CircuitMap, CircuitRequest, CircuitState, Mode
from ocs_driver.errors import OcsConflict

LIGHT = frozenset({CircuitState.TUNING, CircuitState.TUNED})
"""States that need no new command: the circuit is lit or will be soon."""


@dataclass(slots=True, frozen=True)
class CircuitChanges:
    """The changes to send: ``deletes`` first, then ``makes``."""

    deletes: tuple[Circuit, ...]
    makes: tuple[CircuitRequest, ...]

    def __bool__(self) -> bool:
        return bool(self.deletes or self.makes)


def diff(
    before: CircuitMap,
    delete: Sequence[CircuitRequest],
    make: Sequence[CircuitRequest],
    *,
    mode: Mode,
    group: str,
) -> CircuitChanges:
    """Return the minimal changes that remove ``delete`` and produce ``make``.

    ``group`` marks own circuits. Raises OcsConflict when two requests need the same port,
    when a foreign circuit would be touched without ``Mode.OVERWRITE``, or when a port
    is busy under ``Mode.SAFE``.
    """
    _check_request(delete, make)
    doomed: dict[Circuit, None] = {}
    for request in delete:
        _check_shape(before, request)
        for circuit in before.covered(request):
            if circuit not in doomed:
                _check_owner(circuit, mode, group)
                doomed[circuit] = None
    makes: list[CircuitRequest] = []
    for request in make:
        found = before.find(request)
        if found is not None and found not in doomed:
            _check_owner(found, mode, group)
            if found.belongs_to(group) and found.state in LIGHT:
                continue
            # Own but inactive or failed, or taken over from another owner: make it again.
            doomed[found] = None
        # Own halves of a duplex circuit remain from an incomplete make: complete it.
        halves = before.covered(request)
        doomed |= dict.fromkeys(c for c in halves if c.belongs_to(group))
        makes.append(request)
    for circuit in _in_the_way(before.circuits, makes):
        if circuit not in doomed:
            _check_displacement(circuit, mode, group)
            doomed[circuit] = None
    return CircuitChanges(tuple(doomed), tuple(makes))


def _in_the_way(circuits: Iterable[Circuit], makes: Sequence[CircuitRequest]) -> list[Circuit]:
    sources = {pair.a for request in makes for pair in request.pairs}
    sinks = {pair.b for request in makes for pair in request.pairs}
    return [c for c in circuits if any(p.a in sources or p.b in sinks for p in c.pairs)]


def _check_request(delete: Sequence[CircuitRequest], make: Sequence[CircuitRequest]) -> None:
    for request in (*delete, *make):
        if request.a == request.b and request.duplex:
            raise OcsConflict("same_port", request.a, "a circuit needs two different ports")
    sources: set[str] = set()
    sinks: set[str] = set()
    for request in make:
        for pair in request.pairs:
            if pair.a in sources or pair.b in sinks:
                port = pair.a if pair.a in sources else pair.b
                raise OcsConflict("port_twice", port, "two requested circuits need this port")
            sources.add(pair.a)
            sinks.add(pair.b)


def _check_shape(before: CircuitMap, request: CircuitRequest) -> None:
    for circuit in before.joining(request.a, request.b):
        if not request.duplex and circuit.duplex:
            raise OcsConflict(
                "duplex_circuit", circuit.name, "it carries both directions: delete it as duplex"
            )


def _check_owner(circuit: Circuit, mode: Mode, group: str) -> None:
    if not circuit.belongs_to(group) and mode is not Mode.OVERWRITE:
        raise OcsConflict(
            "foreign_circuit",
            circuit.name,
            f"it belongs to {circuit.owner or 'an unknown owner'}, not to {group}; "
            "agree with its owner, or use mode overwrite",
        )


def _check_displacement(circuit: Circuit, mode: Mode, group: str) -> None:
    _check_owner(circuit, mode, group)
    if mode is Mode.SAFE:
        raise OcsConflict(
            "port_busy",
            circuit.name,
            "it holds a requested port; delete it in the same request, or use mode update",
        )
