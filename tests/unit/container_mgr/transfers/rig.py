"""Two agents' halves on loopback: one gives parts in the clear, as on e0, the other takes them."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentlink.checkpoints import Holding, Source
from container_mgr.checkpoints.values import HeldPart
from container_mgr.transfers import wire
from container_mgr.transfers.channel import Channel
from container_mgr.transfers.gate import SendGate
from container_mgr.transfers.keeping import Keeper
from container_mgr.transfers.part_sources import PeerRoutes
from container_mgr.transfers.pulling import Stop
from container_mgr.transfers.serving import PartListener, Serving
from container_mgr.transfers.threads import Held
from container_mgr.transfers.wire import PeerSession
from tests.unit.container_mgr.transfers.fakes import FOLDER, KEY, FakeHolder, files_of


@dataclass
class OverLoopback:
    """Dials an address of loopback without TLS; ``before`` may change the connection."""

    key: bytes = FOLDER.key
    gate: SendGate = field(default_factory=SendGate)
    dialled: int = 0
    before: Callable[[socket.socket], socket.socket] = lambda one: one

    def __call__(self, source: Source, stop: Stop) -> tuple[Channel, PeerSession]:
        self.dialled += 1
        host, _, port = source.address.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=5)
        channel = Channel(self.before(plain), self.gate)
        try:
            with stop.over(channel):
                deadline = channel.deadline(5)
                nonce = os.urandom(32)
                return channel, wire.greet(channel, FOLDER.name, self.key, nonce, deadline)
        except BaseException:
            channel.close()
            raise


@dataclass
class Rig:
    """What the tests of one file share."""

    giver: FakeHolder
    taker: FakeHolder
    held: Held
    taker_held: Held
    serving: Serving
    gate: SendGate
    port: int
    dial: OverLoopback = field(default_factory=OverLoopback)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def source(self, part: HeldPart, server: str = "srv1") -> Source:
        place, found = part.place, part.manifest
        return Source(place.rank, found.digest, found.bytes, place.endpoint, server, self.address)

    def part(self, rank: int, size: int = 300_000) -> HeldPart:
        return self.giver.own(f"gpu{rank}", rank, files_of(rank, size), KEY)

    def keeper(self, pace: int = 0, store: Path | None = None) -> Keeper:
        reach = PeerRoutes(self.taker_held, "srv0", FOLDER.name, self.dial, pace)
        return Keeper(self.taker, reach, "gpu0", store)

    def last(self) -> Holding:
        return self.taker.told[-1]


@contextmanager
def rig(directory: Path, folder: str = FOLDER.name, gate: SendGate | None = None) -> Iterator[Rig]:
    loop = asyncio.SelectorEventLoop()  # in a thread of its own, where no time passes
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    giver, taker = FakeHolder(directory / "giver"), FakeHolder(directory / "taker")
    held = Held(giver, loop)
    serving = Serving(held, None)
    one = socket.create_server(("127.0.0.1", 0))
    gate = gate or SendGate()
    listener = PartListener(one, folder, gate)
    port = one.getsockname()[1]
    serving.add(listener)
    try:
        yield Rig(giver, taker, held, Held(taker, loop), serving, gate, port)
    finally:
        serving.remove(listener)
        serving.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
