"""Controls optical circuit switches: ports, circuits and light. Jobs are unknown here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from ocs_driver.address import OcsAddress
from ocs_driver.base import (
    GROUP,
    Action,
    Alarm,
    ApplyResult,
    BusyPort,
    Capabilities,
    Circuit,
    CircuitMap,
    CircuitOutcome,
    CircuitRequest,
    CircuitState,
    EventKind,
    Mode,
    OcsDriver,
    OcsEvent,
    Pair,
    PairResult,
    PortHealth,
    PortInfo,
    PortPower,
)
from ocs_driver.calient.driver import CalientTl1Driver
from ocs_driver.errors import (
    OcsBadReply,
    OcsConflict,
    OcsDenied,
    OcsError,
    OcsLogin,
    OcsTimeout,
    OcsUnreachable,
)
from ocs_driver.glimmerglass.driver import GlimmerglassTl1Driver
from ocs_driver.grid import Grid, GridDriver
from ocs_driver.polatis.netconf import PolatisNetconfDriver
from ocs_driver.polatis.scpi import PolatisScpiDriver
from ocs_driver.polatis.tl1 import PolatisTl1Driver


class AddressedDriver(Protocol):
    """A driver that a URL names."""

    default_port: ClassVar[int]
    """Where its switches listen, if the URL does not say it."""

    @classmethod
    def from_address(cls, address: OcsAddress, password: str | None, group: str) -> OcsDriver:
        """Return an unconnected driver."""


DRIVERS: Mapping[str, type[AddressedDriver]] = {
    "calient+tl1": CalientTl1Driver,
    "glimmerglass+tl1": GlimmerglassTl1Driver,
    "polatis+netconf": PolatisNetconfDriver,
    "polatis+scpi": PolatisScpiDriver,
    "polatis+tl1": PolatisTl1Driver,
}
"""Maps a URL scheme to its driver."""


def open(
    url: str,
    *,
    password: str | None = None,
    group: str = GROUP,
    state_dir: Path | None = None,
    older_state_dir: Path | None = None,
) -> OcsDriver:
    """Return an unconnected driver for ``url``; entering its context logs in.

    ``group`` marks own circuits. If a switch cannot store it, a file under ``state_dir`` does
    (default: ``LIGHTLOOM_OCS_STATE_DIR``, else the user's state folder). A file found under
    ``older_state_dir`` is moved to ``state_dir``.
    Raises OcsError for an unknown scheme, a malformed URL or a URL that contains a password.
    """
    address = OcsAddress.parse(url)
    kind = DRIVERS.get(address.scheme)
    if kind is None:
        raise OcsError(
            "unknown_scheme", str(address), f"known switches: {', '.join(sorted(DRIVERS))}"
        )
    address = dataclasses.replace(address, state_dir=state_dir, older_state_dir=older_state_dir)
    driver = kind.from_address(address, password, group)
    grid = address.options.get("ports")
    return driver if grid is None else GridDriver(driver, Grid.parse(grid))


__all__ = [
    "DRIVERS",
    "GROUP",
    "Action",
    "Alarm",
    "ApplyResult",
    "BusyPort",
    "Capabilities",
    "Circuit",
    "CircuitMap",
    "CircuitOutcome",
    "CircuitRequest",
    "CircuitState",
    "EventKind",
    "Mode",
    "OcsAddress",
    "OcsBadReply",
    "OcsConflict",
    "OcsDenied",
    "OcsDriver",
    "OcsError",
    "OcsEvent",
    "OcsLogin",
    "OcsTimeout",
    "OcsUnreachable",
    "Pair",
    "PairResult",
    "PortHealth",
    "PortInfo",
    "PortPower",
    "open",
]
