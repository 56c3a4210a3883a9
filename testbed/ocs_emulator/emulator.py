"""Combines model, data plane and front ends into one emulated switch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from testbed.ocs_emulator.calient import CalientDialect
from testbed.ocs_emulator.dataplane import DataPlane, NoDataPlane
from testbed.ocs_emulator.glimmerglass import GlimmerglassDialect
from testbed.ocs_emulator.matrix import MatrixSwitch
from testbed.ocs_emulator.model import OpticalModel
from testbed.ocs_emulator.netconf_server import NetconfServer
from testbed.ocs_emulator.personality import Personality
from testbed.ocs_emulator.polatis_tl1 import PolatisTl1Dialect
from testbed.ocs_emulator.scpi_server import ScpiServer
from testbed.ocs_emulator.switch import EmulatedSwitch
from testbed.ocs_emulator.tl1_server import Tl1Server

Address = tuple[str, int]


class FrontEnd(Protocol):
    """One protocol on one listening socket."""

    async def start(self, host: str, port: int) -> Address:
        """Listen; return the address bound. May be started again after ``stop``."""

    async def stop(self) -> None:
        """Close the socket and end all sessions."""


FRONT_ENDS: Mapping[str, Callable[[EmulatedSwitch, str | None], FrontEnd]] = {
    "calient-tl1-raw": lambda switch, password: Tl1Server(
        CalientDialect(switch), switch, prompting=False, password=password
    ),
    "calient-tl1-prompt": lambda switch, password: Tl1Server(
        CalientDialect(switch), switch, prompting=True, password=password
    ),
    "polatis-tl1": lambda switch, password: Tl1Server(
        PolatisTl1Dialect(MatrixSwitch(switch)), switch, prompting=False, password=password
    ),
    # No sample of Polatis SCPI shows a login.
    "polatis-scpi": lambda switch, password: ScpiServer(MatrixSwitch(switch)),
    "polatis-netconf": lambda switch, password: NetconfServer(
        MatrixSwitch(switch), password=password
    ),
    "glimmerglass-tl1": lambda switch, password: Tl1Server(
        GlimmerglassDialect(MatrixSwitch(switch)), switch, prompting=True, password=password
    ),
}
"""Front end by its name in personalities."""

USUAL_PORTS: Mapping[int, str] = {
    3083: "calient-tl1-prompt",
    5025: "polatis-scpi",
    830: "polatis-netconf",
}
"""Usual ports: an address with one of them gets that front end if the personality has it."""


def assign(
    personality: Personality, listen: Sequence[Address], named: Mapping[int, str] | None = None
) -> list[str]:
    """Return the front end of each address: by name, by usual port, else in order.

    ``named`` maps indices in ``listen`` to front ends. Raises ValueError for an unknown one.
    """
    if not 1 <= len(listen) <= len(personality.front_ends):
        raise ValueError(
            f"{personality.name} has 1 to {len(personality.front_ends)} addresses, "
            f"for {', '.join(personality.front_ends)}"
        )
    left = list(personality.front_ends)
    chosen: dict[int, str] = {}
    for number, name in (named or {}).items():
        if name not in left:
            raise ValueError(f"{personality.name} has no (second) front end {name}")
        left.remove(name)
        chosen[number] = name
    for number, (_, port) in enumerate(listen):
        usual = USUAL_PORTS.get(port)
        if usual in left and number not in chosen:
            left.remove(usual)
            chosen[number] = usual
    return [chosen.get(number) or left.pop(0) for number in range(len(listen))]


class Emulator:
    """One emulated switch. Entering the context starts it; leaving it is a power failure.

    ``listen`` has at most one address per front end of the personality, in its order; port 0
    selects a free port; ``named`` selects front ends, see ``assign``. ``password`` None
    accepts every user.
    """

    def __init__(
        self,
        personality: Personality,
        listen: Sequence[Address],
        *,
        dataplane: DataPlane | None = None,
        password: str | None = None,
        named: Mapping[int, str] | None = None,
    ) -> None:
        self.front_ends = assign(personality, listen, named)
        self.personality = personality
        self.model = OpticalModel(personality)
        self.addresses: tuple[Address, ...] = ()
        """The bound addresses, once started."""
        self.switch = EmulatedSwitch(self.model, dataplane or NoDataPlane())
        self._listen = tuple(listen)
        self.servers = [FRONT_ENDS[name](self.switch, password) for name in self.front_ends]

    async def start(self) -> None:
        """Make all ports dark and listen. Raises OSError without an address or the namespace."""
        await self.switch.start()
        try:
            bound = []
            for server, (host, port) in zip(self.servers, self._listen, strict=True):
                bound.append(await server.start(host, port))
        except OSError:
            await self.stop()
            raise
        self.addresses = tuple(bound)

    async def stop(self) -> None:
        """End all sessions; every port goes dark."""
        for server in self.servers:
            await server.stop()
        await self.switch.stop()

    async def reboot(self, *, preserve: bool) -> None:
        """Restart the switch: sessions end; ``preserve`` keeps the circuits."""
        for server in self.servers:
            await server.stop()
        self.model.restart(self.switch.now(), preserve=preserve)
        await self.switch.refresh()
        await asyncio.sleep(self.personality.timing.boot_s)
        for server, (host, port) in zip(self.servers, self.addresses, strict=True):
            await server.start(host, port)
        self.switch.poke()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
