"""Checkpoints of one server without an engine: programs write, containers are values."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentlink.checkpoints import Folder, Holding, HoldingKind
from agentlink.ranks import RankCheckpoint, RankKey, RankSpec
from agentlink.values import NicSpec, Where
from base import clock
from checkpoints.ledger import Key
from checkpoints.manifest import FileSums, Manifest, measure
from container_mgr.checkpoints.holder import Begun, DiskHolder
from container_mgr.users import RankUser
from container_mgr.values import Container
from testbed.simulated.loop import settled
from tests.unit.container_mgr.specs import GOOD

ME = RankUser(os.geteuid(), os.getegid())
FOLDER = "red.0123abcd"
SECRET = bytes(range(32))
SIZE = 64 << 20
LIMIT_S = 60.0


class PlainSpace:
    """A directory without a limit of the kernel's, also for memory: mounting needs root."""

    def prepare(self, path: Path, folder: Folder) -> bool:
        return False

    def release(self, path: Path) -> None:
        pass


def asked(**fields: object) -> RankCheckpoint:
    base = RankCheckpoint(
        folder=FOLDER, ranks=2, rule="rename", where=Where.DISK, size_bytes=SIZE, key=SECRET
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def rank(number: int = 0, epoch: int = 1, **fields: object) -> RankSpec:
    return replace(
        GOOD,
        key=RankKey("red", number, epoch),
        endpoint=f"gpu{number}",
        checkpoint=asked(**fields),
    )


def container(spec: RankSpec) -> Container:
    return Container(
        id=spec.key.container,
        key=spec.key,
        endpoint=spec.endpoint,
        digest=spec.digest(),
        nic=NicSpec("e0", "10.0.0.1", 24, "02:00:00:00:00:01"),
        share=None,
        state="running",
        folder=spec.checkpoint.folder if spec.checkpoint else "",
    )


@dataclass
class Server:
    """One agent's checkpoints, and what it tells."""

    held: DiskHolder
    told: list[Holding] = field(default_factory=list)
    caught_up: bool = False

    async def start(self, spec: RankSpec) -> Begun:
        with self.held.reserved(spec):
            begun = await self.held.begin(spec, ME)
        assert begun is not None
        self.held.watch(container(spec))
        return begun

    async def listen(self) -> None:
        async for news in self.held.news():
            self.told += news.holdings
            self.caught_up |= news.caught_up

    async def until(self, true: Callable[[Holding], bool]) -> Holding:
        """Wait until something is told."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for one in reversed(self.told):
                    if true(one):
                        return one
                await settled()

    async def whole(self, step: int, number: int = 0, epoch: int = 1) -> Holding:
        key = Key(step, epoch)
        return await self.until(lambda h: (h.kind, h.key, h.rank) == (HoldingKind.OWN, key, number))

    async def kind(self, kind: HoldingKind) -> Holding:
        return await self.until(lambda h: h.kind is kind)


@asynccontextmanager
async def server(root: Path) -> AsyncIterator[Server]:
    one = Server(DiskHolder(root / "checkpoints", space=PlainSpace()))
    await one.held.recover()
    listening = asyncio.create_task(one.listen())
    try:
        yield one
    finally:
        await one.held.close()
        await listening


async def inventory(held: DiskHolder) -> list[Holding]:
    """Return all that is told to a new reader."""
    told: list[Holding] = []
    async for news in held.news():
        told += news.holdings
        if news.caught_up:
            break
    return told


def overwrite(live: Path, files: Mapping[str, bytes]) -> None:
    """Write files in place, as a program with the rule ``keras`` does."""
    for name, content in files.items():
        path = live / name
        path.write_bytes(content)
        now = clock.time()
        os.utime(path, (now, now))


def write_step(live: Path, step: int, content: bytes = b"weights") -> None:
    """Write a step as a program with the rule ``rename`` does."""
    temporary = live / f"step-{step}.tmp"
    temporary.mkdir()
    (temporary / "model.bin").write_bytes(content + str(step).encode())
    temporary.rename(live / f"step-{step}")


def manifest_of(root: Path, number: int, key: Key, ranks: int = 2) -> Manifest:
    """Return the manifest of the files below ``root``."""
    files = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            files[str(path.relative_to(root))] = measure(file)
    return Manifest(FOLDER, key.epoch, key.step, number, ranks, "rename", FileSums(files))
