"""The controller's side of the OpenFlow rack, here or as a process that a test can kill.

``python -m tests.integration.openflow_control CERTIFICATE`` installs the flows, says so, and stays.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from controller.daemon.relay import relayed
from controller.devices.aggregators import AggregatorEvent
from controller.devices.openflow.aggregators import OpenFlowAggregators
from controller.devices.openflow.rules import compiler
from controller.devices.openflow.rules.program import FlowProgram
from controller.devices.openflow.session.listen import listening_socket
from controller.devices.openflow.session.tls import read_speech
from tests.integration.openflow_rack import FABRIC
from tests.integration.waiting import eventually
from tests.parts.openflow.sites import attach, make_site
from tests.parts.openflow.tls import tls_site

DEADLINE_S = 60.0
PORT = 6653
SITE = tls_site(make_site(listen=f"127.0.0.1:{PORT}", netns=FABRIC))
PLACES = attach(
    ("gpu0", "as0", 1),
    ("gpu1", "as0", 2),
    ("gpu2", "as0", 3),
    ("gpu3", "as1", 1),
    ("gpu4", "as1", 2),
    ("gpu5", "as1", 3),
)
JOBS = {"red": ("gpu0", "gpu1", "gpu4"), "blue": ("gpu2", "gpu3")}


def programs(epoch: int = 1, held: frozenset[str] = frozenset()) -> Mapping[str, FlowProgram]:
    """Return the flows of both jobs; held endpoints are cut off."""
    return compiler.compile(SITE, epoch, PLACES, JOBS, held)


class Control:
    """A running controller and what it posted. ``tls`` has its certificate."""

    def __init__(self, tls: Path) -> None:
        self.events: list[AggregatorEvent] = []
        self._relay = ExitStack()
        tcp = self._relay.enter_context(listening_socket(SITE.openflow_listen, FABRIC))
        listener = self._relay.enter_context(relayed(tcp, read_speech(SITE, tls)))
        self.aggregators = OpenFlowAggregators(SITE, self.events.append, listener)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds."""
        await eventually(condition, limit_s=DEADLINE_S)

    async def start(self) -> None:
        """Begin to serve, and wait until all aggregators are connected."""
        await self.aggregators.start()
        await self.until(lambda: len(self.aggregators.connected()) == len(SITE.aggregators))

    async def stop(self) -> None:
        """Serve no more."""
        await self.aggregators.stop()
        self._relay.close()


async def main(certificate: Path) -> None:
    """Install the flows and stay."""
    control = Control(certificate)
    await control.start()
    await control.aggregators.install(programs(), deadline_s=DEADLINE_S)
    print("installed", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
