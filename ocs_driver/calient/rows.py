"""Parses the rows of Calient responses. Pure.

Vocabulary: CALIENT OCS WebGUI Quick Start Guide p. 53 (AS, OS, OC) and replies
recorded from an S162 with software 6.0-3.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocs_driver.base import Circuit, CircuitState, PortHealth
from ocs_driver.errors import OcsBadReply
from ocs_driver.tl1.fields import ReplyRow, parse_row

_OPERATIONAL = {
    "OK": CircuitState.TUNED,
    "FAIL": CircuitState.FAILED,
    "NOHW": CircuitState.FAILED,
    "INIT": CircuitState.TUNING,
}


def circuits(rows: Sequence[str]) -> tuple[Circuit, ...]:
    """Parse the rows of RTRV-CRS. Raises OcsBadReply for a row that is not a circuit.

    Older releases end the list with a row that counts the mirrors in use.
    """
    return tuple(circuit(parse_row(row)) for row in rows if not row.startswith("MATRIXUSED="))


def circuit(row: ReplyRow) -> Circuit:
    """Parse one RTRV-CRS row. Raises OcsBadReply unless it names two ports and the group.

    A circuit that is entered but not activated has operational state OOS. An unknown OC
    counts as tuning: it does not prove light, so the caller's deadline decides.
    """
    a, b = row.need("SRCPORT"), row.need("DSTPORT")
    if not a or not b:
        raise OcsBadReply(row.aid[:60] or "a row", "the circuit lacks a port")
    state = _OPERATIONAL.get(row.get("OC"), CircuitState.TUNING)
    if row.get("OS").startswith("OOS"):
        state = CircuitState.PROVISIONED
    return Circuit(
        a=a,
        b=b,
        duplex=row.get("CONNTYPE", "2WAY") != "1WAY",
        state=state,
        name=row.get("CONNNAME") or row.aid,
        owner=row.need("GRPNAME"),
        detail=",".join(f"{key}={row.get(key)}" for key in ("AS", "OS", "OC", "AL")),
    )


def health(row: ReplyRow) -> PortHealth:
    """Parse the health of a port from its RTRV-PORT row; the worse of in and out counts."""
    sides = ("IN", "OUT")
    if any(row.get(f"{side}OC") in ("FAIL", "NOHW") for side in sides):
        return PortHealth.FAILED
    if any(row.get(f"{side}OC") == "INIT" for side in sides):
        return PortHealth.TUNING
    if any(row.get(f"{side}AS") == "IS" and row.get(f"{side}OS") == "IS" for side in sides):
        return PortHealth.TUNED
    return PortHealth.BLOCKED


def label(row: ReplyRow) -> str:
    """Parse the operator's alias of a port from its RTRV-PORT-SUM row."""
    alias = row.get("ALIAS")
    return "" if alias == "NONE" else alias


def grid(ports: Sequence[str]) -> dict[str, int]:
    """Return banks, rows and columns of ports named bank.row.column; empty for other names."""
    places = [port.split(".") for port in ports]
    if not places or not all(len(p) == 3 and all(x.isdigit() for x in p) for p in places):
        return {}
    banks, rows, columns = (max(int(p[i]) for p in places) for i in range(3))
    return {"banks": banks, "rows": rows, "columns": columns}
