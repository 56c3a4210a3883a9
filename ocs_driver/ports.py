"""Models the port numbering and the duplex circuits of a matrix switch. Pure.

A two-sided switch (MxN) has inputs and outputs; a duplex fiber uses an input and its
paired output, and has the name of the input. On a switch that connects any port to any
other ("CC") one path carries light both ways, so a path is a duplex circuit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ocs_driver.base import Circuit, CircuitRequest, Pair
from ocs_driver.errors import OcsConflict, OcsError

MOST_PORTS = 4096
"""Maximum ports per side. A device that reports more is not an optical switch."""
_PORT = re.compile(r"[0-9]{1,6}\Z")


def is_number(text: str) -> bool:
    """Whether a device's text is a plausible port number in ASCII digits."""
    return _PORT.match(text) is not None


@dataclass(slots=True, frozen=True)
class MatrixPorts:
    """``outputs`` 0: any port connects to any other. Raises OcsError for too many ports."""

    inputs: int
    outputs: int
    first_input: int = 1
    first_output: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.inputs <= MOST_PORTS or self.outputs > MOST_PORTS:
            shown = f"{self.inputs}x{self.outputs or 'CC'}"
            raise OcsError("bad_size", shown, f"a side has 1 to {MOST_PORTS} ports")

    @property
    def reciprocal(self) -> bool:
        """Whether one path carries light both ways."""
        return self.outputs == 0

    @property
    def all(self) -> tuple[str, ...]:
        """All ports, inputs first."""
        inputs = range(self.first_input, self.first_input + self.inputs)
        outputs = range(self.first_output, self.first_output + self.outputs)
        return tuple(str(n) for n in (*inputs, *outputs))

    def beside(self, port: str) -> str:
        """Return the paired output of an input; empty without one."""
        offset = int(port) - self.first_input
        there = not self.reciprocal and 0 <= offset < min(self.inputs, self.outputs)
        return str(self.first_output + offset) if there else ""

    def is_output(self, port: str) -> bool:
        """Whether light can only leave at this port."""
        return 0 <= int(port) - self.first_output < self.outputs

    def fiber(self, port: str) -> str:
        """Return the name of a port's duplex fiber, which is the name of its input."""
        offset = int(port) - self.first_output
        if self.is_output(port) and offset < self.inputs:
            return str(self.first_input + offset)
        return port

    def inward(self, request: CircuitRequest) -> CircuitRequest:
        """Return a request with duplex fiber names. Raises OcsError or OcsConflict if malformed.

        A request may name outputs by their own number. A one-way path is duplex on a switch
        where light passes both ways; a duplex loop from an input to its paired output is one
        pair.
        """
        for port in (request.a, request.b):
            if not port.isascii() or not port.isdigit() or len(port) > 6:
                raise OcsError("bad_port", port, f"ports are numbers, {self._span()}")
        if request.a == request.b:
            raise OcsConflict("same_port", request.a, "a circuit needs two different ports")
        if self.reciprocal:
            return CircuitRequest(request.a, request.b, True, request.name)
        a, b = self.fiber(request.a), self.fiber(request.b)
        if request.duplex and a != b:
            return CircuitRequest(a, b, True, request.name)
        if self.is_output(request.a):
            raise OcsError("bad_port", request.a, "light can only enter at an input")
        return CircuitRequest(request.a, b, False, request.name)

    def wire(self, item: CircuitRequest | Circuit) -> tuple[Pair, ...]:
        """Return the device's pairs for a circuit with duplex fiber names."""
        if self.reciprocal:
            return (Pair(*sorted((item.a, item.b), key=int)),)
        return tuple(Pair(p.a, self._sink(p.b)) for p in item.pairs)

    def from_wire(self, pair: Pair) -> Pair:
        """Return a device's pair with duplex fiber names."""
        if self.reciprocal:
            return Pair(*sorted((pair.a, pair.b), key=int))
        return Pair(pair.a, self.fiber(pair.b))

    def outward(self, a: str, b: str, *, duplex: bool) -> tuple[str, str]:
        """Return the operator's port names; the output of a one-way path has its own number."""
        return (a, b) if duplex or self.reciprocal else (a, self._sink(b))

    def _sink(self, port: str) -> str:
        return port if self.is_output(port) else self.beside(port) or port

    def _span(self) -> str:
        if self.reciprocal:
            return f"1 to {self.inputs}"
        last = self.first_output + self.outputs - 1
        return (
            f"inputs {self.first_input} to {self.first_input + self.inputs - 1}, "
            f"outputs {self.first_output} to {last}"
        )


def parse_size(text: str) -> MatrixPorts:
    """Parse a Polatis size: ``24x24`` or ``48xCC`` (TL1), ``24,24`` (SCPI). Raises OcsError."""
    first, _, second = text.strip().strip('"').replace(",", "x").partition("x")
    first, second = first.strip(), second.strip()
    if is_number(first) and second.upper() == "CC":
        return MatrixPorts(int(first), 0)
    if is_number(first) and is_number(second):
        return MatrixPorts(int(first), int(second), 1, int(first) + 1)
    raise OcsError("bad_size", text[:60] or "nothing", "the switch's size is like 24x24 or 48xCC")
