"""Controls optical circuit switches: ports, circuits and light. Jobs are unknown here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

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

Factory = Callable[[OcsAddress, str | None, str], OcsDriver]

DRIVERS: Mapping[str, Factory] = {
    "calient+tl1": CalientTl1Driver.from_address,
    "glimmerglass+tl1": GlimmerglassTl1Driver.from_address,
    "polatis+netconf": PolatisNetconfDriver.from_address,
    "polatis+scpi": PolatisScpiDriver.from_address,
    "polatis+tl1": PolatisTl1Driver.from_address,
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
    factory = DRIVERS.get(address.scheme)
    if factory is None:
        raise OcsError(
            "unknown_scheme", str(address), f"known switches: {', '.join(sorted(DRIVERS))}"
        )
    address = dataclasses.replace(address, state_dir=state_dir, older_state_dir=older_state_dir)
    driver = factory(address, password, group)
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
