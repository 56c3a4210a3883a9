"""Implements scripts without this package: send a command, wait for the response, poll, repeat.

They are the rivals of ``benchmarks.ocs_bulk``, one per dialect, in the style of published drivers
and scripts: a blocking socket, no diff, no pipelining. They poll for light without a pause; most
published scripts sleep for a fixed second instead.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

from ncclient import manager

_DARK_DBM = -35.0
_LIMIT_S = 30.0
_POLATIS = 'xmlns="http://www.polatis.com/yang/optical-switch"'
_CONFIG = (
    '<nc:config xmlns:nc="urn:ietf:params:xml:ns:netconf:base:1.0">'
    f"<cross-connects {_POLATIS}><pair><ingress>{{0}}</ingress><egress>{{1}}</egress></pair>"
    "</cross-connects></nc:config>"
)
_POWER = f"<opm-power {_POLATIS}><port><port-id>{{0}}</port-id></port></opm-power>"


class Script(Protocol):
    """A logged-in script."""

    def connect(self, a: str, b: str) -> None:
        """Make one circuit and return when its light arrives."""

    def close(self) -> None:
        """Close the connection."""


class _Line:
    """A blocking connection that reads until the end of a response."""

    def __init__(self, address: tuple[str, int], end: bytes) -> None:
        self._socket = socket.create_connection(address, timeout=_LIMIT_S)
        self._end = end

    def ask(self, command: str) -> str:
        self._socket.sendall(command.encode())
        answer = b""
        while not answer.rstrip(b" ").endswith(self._end):
            answer += self._socket.recv(65536)
        if b"DENY" in answer:
            raise RuntimeError(f"{command}: {answer!r}")
        return answer.decode("latin-1")

    def close(self) -> None:
        self._socket.close()


class Calient:
    """ENT-CRS, ACT-CRS, and the port's summary until it shows light."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._line = _Line(address, b";")
        self._line.ask("ACT-USER::naive:1::x;")

    def connect(self, a: str, b: str) -> None:
        """See ``Script``."""
        self._line.ask(f"ENT-CRS::{a},{b}:1::naive,2WAY;")
        self._line.ask(f"ACT-CRS::{a},{b}:1::{a}-{b},naive;")
        while "OUTPWR=NONE" in self._line.ask(f"RTRV-PORT-SUM::{b}:1;"):
            pass

    def close(self) -> None:
        """See ``Script``."""
        self._line.close()


class PolatisTl1:
    """ENT-PATCH, and the power meter."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._line = _Line(address, b";")
        self._line.ask("ACT-USER::naive:1::x;")

    def connect(self, a: str, b: str) -> None:
        """See ``Script``."""
        self._line.ask(f"ENT-PATCH::{a},{b}:1:;")
        while _dark(self._line.ask(f"RTRV-PORT-POWER::{b}:1:;"), rf'"{b}:(-?[\d.]+)"'):
            pass

    def close(self) -> None:
        """See ``Script``."""
        self._line.close()


class PolatisScpi:
    """CONNect:ADD, then *OPC?, because there are no power meters."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._line = _Line(address, b"\n")

    def connect(self, a: str, b: str) -> None:
        """See ``Script``."""
        self._line.ask(f":OXC:SWIT:CONN:ADD (@{a}),(@{b});*OPC?\r\n")

    def close(self) -> None:
        """See ``Script``."""
        self._line.close()


class PolatisNetconf:
    """One edit-config, and the power meter, with unmodified ncclient."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._manager = manager.connect(
            host=address[0], port=address[1], username="naive", password="x",  # noqa: S106
            hostkey_verify=False, allow_agent=False, look_for_keys=False,
        )  # fmt: skip

    def connect(self, a: str, b: str) -> None:
        """See ``Script``."""
        self._manager.edit_config(target="running", config=_CONFIG.format(a, b))
        while _dark(self._power(b), r"power>(-?[\d.]+)<"):
            pass

    def _power(self, port: str) -> str:
        return str(self._manager.get(filter=("subtree", _POWER.format(port))))

    def close(self) -> None:
        """See ``Script``."""
        self._manager.close_session()


class Glimmerglass:
    """ent-crs-fiber with both pairs of a duplex circuit, and the power meter."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._line = _Line(address, b"\n;\r\n")
        self._line.ask("ACT-USER::naive:1::x;")

    def connect(self, a: str, b: str) -> None:
        """See ``Script``."""
        out_a, out_b = str(int(a) + 10000), str(int(b) + 10000)
        self._line.ask(f"ent-crs-fiber::{a}&{b},{out_b}&{out_a}:1;")
        while _dark(self._line.ask(f"rtrv-port-power::{out_a}:1;"), r"PORTPOWER=(-?[\d.]+)"):
            pass

    def close(self) -> None:
        """See ``Script``."""
        self._line.close()


SCRIPTS: Mapping[str, Callable[[tuple[str, int]], Script]] = {
    "calient+tl1": Calient,
    "polatis+tl1": PolatisTl1,
    "polatis+scpi": PolatisScpi,
    "polatis+netconf": PolatisNetconf,
    "glimmerglass+tl1": Glimmerglass,
}
"""Scripts by URL scheme."""


def _dark(answer: str, pattern: str) -> bool:
    power = re.search(pattern, answer)
    return power is None or float(power[1]) < _DARK_DBM
