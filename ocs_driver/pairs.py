"""Merges the port pairs of a matrix switch into circuits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ocs_driver.base import Circuit, CircuitState, Pair
from ocs_driver.ports import MatrixPorts

_WORST = (CircuitState.FAILED, CircuitState.TUNING, CircuitState.PROVISIONED, CircuitState.TUNED)


@dataclass(slots=True, frozen=True)
class WirePair:
    """A pair as the device reports it."""

    pair: Pair
    state: CircuitState = CircuitState.TUNED
    detail: str = ""


def key(pair: Pair) -> str:
    """Return the ledger's key of a pair."""
    return f"{pair.a},{pair.b}"


def merge(
    ports: MatrixPorts, found: Iterable[WirePair], owners: Mapping[str, str]
) -> list[Circuit]:
    """Merge pairs into circuits: two opposite pairs with the same owner are one circuit."""
    by_pair = {ports.from_wire(w.pair): w for w in found}
    circuits: list[Circuit] = []
    for pair, wire in by_pair.items():
        owner = owners.get(key(wire.pair), "")
        if ports.reciprocal:
            circuits.append(
                Circuit(pair.a, pair.b, True, wire.state, key(wire.pair), owner, wire.detail)
            )
            continue
        other = by_pair.get(Pair(pair.b, pair.a))
        facing = other is not None and other is not wire
        if other is None or not facing or owners.get(key(other.pair), "") != owner:
            circuits.append(
                Circuit(pair.a, pair.b, False, wire.state, key(wire.pair), owner, wire.detail)
            )
        elif int(pair.a) < int(pair.b):
            worse = min((wire, other), key=lambda w: _WORST.index(w.state))
            name = f"{key(wire.pair)}&{key(other.pair)}"
            circuits.append(Circuit(pair.a, pair.b, True, worse.state, name, owner, worse.detail))
    return circuits
