"""Parses the rows of Glimmerglass responses, based on a transcript of 2016. Pure.

Rows are read by key: the same row had 12 fields in 2005 and 18 in 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocs_driver.base import CircuitState, Pair
from ocs_driver.errors import OcsBadReply, OcsError
from ocs_driver.light import finite, lit
from ocs_driver.pairs import WirePair
from ocs_driver.ports import MatrixPorts, is_number
from ocs_driver.tl1.fields import ReplyRow, parse_row

_STATES = {
    "steady": CircuitState.TUNED,
    "single": CircuitState.TUNING,
    "fault": CircuitState.FAILED,
}
_FIRST_INPUT, _FIRST_OUTPUT = 10001, 20001


def parse_circuits(rows: Sequence[str]) -> list[WirePair]:
    """Parse the rows of rtrv-crs-fiber. Raises OcsBadReply for a row without two ports."""
    return [_circuit(parse_row(row)) for row in rows]


def parse_powers(rows: Sequence[str]) -> tuple[Mapping[str, float | None], frozenset[str]]:
    """Parse rtrv-port-power: light by port (None: dark), and the unhealthy ports. OcsBadReply."""
    light: dict[str, float | None] = {}
    bad = set()
    for row in map(parse_row, rows):
        port = _port(row, "PORTID")
        light[port] = lit(finite(row.need("PORTPOWER")))
        if row.get("PORTHEALTH", "good").lower() == "bad":
            bad.add(port)
    return light, frozenset(bad)


def parse_system(rows: Sequence[str]) -> tuple[ReplyRow, MatrixPorts]:
    """Parse rtrv-system-info and the port numbering. Raises OcsError for another vendor."""
    row = parse_row((rows or ("",))[0])
    first, _, second = row.get("LICENSEDPORTMATRIX").lower().partition("x")
    if not is_number(first) or not is_number(second):
        shown = (rows or ("no response",))[0][:60]
        raise OcsError("wrong_dialect", shown, "this is not a Glimmerglass: no LicensedPortMatrix")
    return row, MatrixPorts(int(first), int(second), _FIRST_INPUT, _FIRST_OUTPUT)


def _circuit(row: ReplyRow) -> WirePair:
    a, b = _port(row, "IPORTID"), _port(row, "OPORTID")
    # An unknown state does not prove light: the caller's deadline decides.
    state = _STATES.get(row.get("CONNSTATE").lower(), CircuitState.TUNING)
    keys = ("CONNSTATE", "CONNCAUSE", "INPWR", "OUTPWR", "PWRLOSS")
    return WirePair(Pair(a, b), state, ",".join(f"{k}={row.get(k)}" for k in keys))


def _port(row: ReplyRow, key: str) -> str:
    port = row.need(key)
    if not is_number(port):
        raise OcsBadReply(row.aid[:60] or "a row", f"{key} {port[:20]!r} is not a port number")
    return port
