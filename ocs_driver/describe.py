"""Builds the JSON documents of ``lightloom ocs`` about one switch."""

from __future__ import annotations

from typing import Any

from ocs_driver import open as open_driver
from ocs_driver.base import GROUP, ApplyResult, Circuit, CircuitMap, CircuitRequest, Mode

Document = dict[str, Any]


async def show(url: str, *, password: str | None = None, group: str = GROUP) -> Document:
    """Return device, ports and circuits of the switch at ``url``. Raises OcsError."""
    async with open_driver(url, password=password, group=group) as driver:
        device = await driver.capabilities()
        ports = await driver.inventory()
        circuits = await driver.read()
    return {
        "device": {
            "vendor": device.vendor,
            "model": device.model,
            "serial": device.serial,
            "firmware": device.firmware,
        },
        "ports": [
            {
                "port": port.port,
                "health": port.health.value,
                "power_in_dbm": port.power_in_dbm,
                "power_out_dbm": port.power_out_dbm,
                "label": port.label,
            }
            for port in ports
        ],
        "circuits": _circuits(circuits),
    }


async def connect(
    url: str,
    a: str,
    b: str,
    *,
    duplex: bool = True,
    mode: Mode = Mode.SAFE,
    password: str | None = None,
    group: str = GROUP,
    deadline_s: float = 10.0,
) -> Document:
    """Make the circuit a-b; return per-pair results and the map read back. Raises OcsError."""
    async with open_driver(url, password=password, group=group) as driver:
        wanted = CircuitRequest(a, b, duplex)
        return _applied(await driver.apply([], [wanted], mode=mode, deadline_s=deadline_s))


async def disconnect(
    url: str,
    a: str,
    b: str,
    *,
    mode: Mode = Mode.SAFE,
    password: str | None = None,
    group: str = GROUP,
    deadline_s: float = 10.0,
) -> Document:
    """Remove the circuits between a and b, in either direction; returns as ``connect``."""
    async with open_driver(url, password=password, group=group) as driver:
        joining = (await driver.read()).joining(a, b)
        doomed = [CircuitRequest(c.a, c.b, c.duplex) for c in joining] or [CircuitRequest(a, b)]
        return _applied(await driver.apply(doomed, [], mode=mode, deadline_s=deadline_s))


def _applied(result: ApplyResult) -> Document:
    return {
        "ok": result.ok,
        "results": [
            {
                "action": pair.action.value,
                "a": pair.a,
                "b": pair.b,
                "duplex": pair.duplex,
                "outcome": pair.outcome.value,
                "code": pair.code,
                "message": pair.message,
            }
            for pair in result.results
        ],
        "circuits": _circuits(result.circuits),
    }


def _circuits(circuits: CircuitMap) -> list[Document]:
    return [_circuit(c) for c in circuits.circuits]


def _circuit(circuit: Circuit) -> Document:
    return {
        "a": circuit.a,
        "b": circuit.b,
        "duplex": circuit.duplex,
        "state": circuit.state.value,
        "name": circuit.name,
        "owner": circuit.owner,
    }
