"""Puts model, data plane and front ends together into one emulated switch."""

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
from testbed.ocs_emulator.switch import Switch
from testbed.ocs_emulator.tl1_server import Tl1Server

Address = tuple[str, int]


class FrontEnd(Protocol):
    """One protocol on one listening socket."""

    async def start(self, host: str, port: int) -> Address:
        """Listen; return the address bound. May be started again after ``stop``."""

    async def stop(self) -> None:
        """Close the socket and end all sessions."""


FRONT_ENDS: Mapping[str, Callable[[Switch, str | None], FrontEnd]] = {
    "calient-tl1-raw": lambda switch, password: Tl1Server(
        CalientDialect(switch), switch, prompting=False, password=password
    ),
    "calient-tl1-prompt": lambda switch, password: Tl1Server(
        CalientDialect(switch), switch, prompting=True, password=password
    ),
    "polatis-tl1": lambda switch, password: Tl1Server(
        PolatisTl1Dialect(MatrixSwitch(switch)), switch, prompting=False, password=password
    ),
    # There is no login in any sample of Polatis' SCPI.
    "polatis-scpi": lambda switch, password: ScpiServer(MatrixSwitch(switch)),
    "polatis-netconf": lambda switch, password: NetconfServer(
        MatrixSwitch(switch), password=password
    ),
    "glimmerglass-tl1": lambda switch, password: Tl1Server(
        GlimmerglassDialect(MatrixSwitch(switch)), switch, prompting=True, password=password
    ),
}
"""Front end by the name that personalities use."""

USUAL_PORTS: Mapping[int, str] = {
    3083: "calient-tl1-prompt",
    5025: "polatis-scpi",
    830: "polatis-netconf",
}
"""An address with one of these ports gets that front end, where the personality has it."""


def assign(
    personality: Personality, listen: Sequence[Address], named: Mapping[int, str] | None = None
) -> list[str]:
    """Return the front end of each address: as named, by its usual port, else in order.

    ``named`` maps places in ``listen`` to front ends. ValueError when one is not there.
    """
    if not 1 <= len(listen) <= len(personality.front_ends):
        raise ValueError(
            f"{personality.name} takes 1 to {len(personality.front_ends)} addresses, "
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
    """One emulated switch. Enter it to start it; leaving it is a power failure.

    ``listen`` has one address per front end of the personality, in its order; fewer are
    fine, port 0 takes a free one; ``named`` says which, see ``assign``. ``password`` None
    lets every user in.
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
        """The addresses bound, once started."""
        self.switch = Switch(self.model, dataplane or NoDataPlane())
        self._listen = tuple(listen)
        self.servers = [FRONT_ENDS[name](self.switch, password) for name in self.front_ends]

    async def start(self) -> None:
        """Make all ports dark and listen. OSError when an address or the namespace is not there."""
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
        """Restart the switch: sessions end, and the map survives or does not."""
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
