"""Emulates a switch whose circuits are plain port pairs, without names or owners.

Polatis and Glimmerglass dialects share it for connecting, disconnecting and reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.ocs_emulator.model import Crosspoint, Fault, ModelError, OpticalModel
from testbed.ocs_emulator.switch import EmulatedSwitch

Pair = tuple[str, str]


class MatrixSwitch:
    """The optical model as the pair-wise dialects see it."""

    def __init__(self, switch: EmulatedSwitch) -> None:
        self.switch = switch
        self.model: OpticalModel = switch.model

    @property
    def size(self) -> str:
        """The size: ``24x24``, or ``48xCC`` if any port connects to any port."""
        shape = self.model.personality.shape
        if "any" in shape:
            return f"{shape['any']}xCC"
        return f"{shape['inputs']}x{shape['outputs']}"

    def pairs(self) -> list[Pair]:
        """Return all pairs; a path that carries light both ways has its lower port first."""
        return [self._ordered(c) for c in self.model.circuits.values()]

    def circuits(self) -> Iterable[Crosspoint]:
        """Return all circuits."""
        return self.model.circuits.values()

    def connect(self, pairs: Sequence[Pair], user: str) -> None:
        """Make all pairs atomically, or raise ModelError and make no new pair."""
        now = self.switch.now()
        made: list[Crosspoint] = []
        for a, b in pairs:
            if self.find(a, b) is not None:
                continue
            try:
                made.append(self.model.connect(a, b, "", now))
            except ModelError:
                for undone in made:
                    self.model.drop(undone.name)
                raise
        for circuit in made:
            self.switch.changed(circuit.name, user)

    async def disconnect(self, ports: Sequence[str], user: str) -> None:
        """Remove the circuits that use any of ``ports``. Raises ModelError when one is idle."""
        doomed: dict[str, Crosspoint] = {}
        for port in ports:
            found = self.model.on_port(port)
            if not found:
                raise ModelError(Fault.NO_SUCH_CIRCUIT, port)
            doomed.update({c.name: c for c in found})
        await self._drop(list(doomed.values()), user)

    async def remove(self, pairs: Sequence[Pair], user: str) -> None:
        """Remove exactly these pairs. Raises ModelError when one does not exist."""
        wanted = [(pair, self.find(*pair)) for pair in pairs]
        for pair, circuit in wanted:
            if circuit is None:
                raise ModelError(Fault.NO_SUCH_CIRCUIT, ",".join(pair))
        await self._drop([c for _, c in wanted if c is not None], user)

    async def clear(self, user: str) -> None:
        """Remove all circuits."""
        await self._drop(list(self.model.circuits.values()), user)

    def find(self, a: str, b: str) -> Crosspoint | None:
        """Return the circuit that carries light from ``a`` to ``b``."""
        return self.model.carrying(a, b)

    def reading(self, port: str) -> float:
        """Return the power monitor reading of a port, in dBm.

        The monitor of an input measures the light that enters, all others the light that leaves.
        """
        sided = bool(self.model.personality.partner)
        entering = sided and port not in self.model.personality.partner
        true = self.model.power_in_dbm(port) if entering else self.model.power_out_dbm(port)
        return self.model.light.reading(port, true, self.switch.now())

    def _ordered(self, circuit: Crosspoint) -> Pair:
        if circuit.duplex and int(circuit.a) > int(circuit.b):
            return circuit.b, circuit.a
        return circuit.a, circuit.b

    async def _drop(self, circuits: Sequence[Crosspoint], user: str) -> None:
        for circuit in circuits:
            if circuit.name in self.model.circuits:
                self.model.drop(circuit.name)
                self.switch.changed(circuit.name, user)
        await self.switch.refresh()
