"""A Holder in a temporary directory, and parts to hold."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from agentlink.checkpoints import Folder, GetPart, Holding, HoldingKind, Verified
from agentlink.values import Where
from checkpoints.ledger import Key
from checkpoints.manifest import FileSums, Manifest, Sum
from container_mgr.checkpoints.contract import News
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.transfers import parts
from container_mgr.users import RankUser
from container_mgr.values import AgentError

FOLDER = Folder("red.0badcafe", bytes(range(32)), Where.DISK, 1 << 30)
KEY = Key(100, 3)


def content(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def fill(root: Path, files: Mapping[str, bytes]) -> None:
    for path, block in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(block)


def manifest_of(rank: int, files: Mapping[str, bytes], key: Key = KEY) -> Manifest:
    from crc32c import crc32c

    sums = {path: Sum(len(block), crc32c(block)) for path, block in sorted(files.items())}
    return Manifest(FOLDER.name, key.epoch, key.step, rank, 8, "rename", FileSums(sums))


def files_of(rank: int, size: int = 300_000) -> dict[str, bytes]:
    return {
        "model.bin": content(rank, size + 7919 * rank),
        "empty": b"",
        "deep/er/optimizer.bin": content(rank + 1000, size // 3),
    }


@dataclass
class FakeReceiving:
    holder: FakeHolder
    directory: Path
    place: PartPlace | None
    get: GetPart | None = None
    root: int = -1
    kept: bool = False

    def keep(self, part: HeldPart | Manifest) -> None:
        manifest = part.manifest if isinstance(part, HeldPart) else part
        if parts.damages(self.directory, manifest):
            raise AgentError("failed", "part", "differs")
        self.kept = True
        place = self.place
        if place is None:
            assert self.get is not None
            self.holder.restored[self.get.rank] = self.directory, manifest
            return
        covers, manifests = (
            (part.covers, part.manifests) if isinstance(part, HeldPart) else ((), ())
        )
        self.holder.parts[place] = HeldPart(place, self.directory, manifest, covers, manifests)
        self.holder.report(
            Holding(
                folder=place.folder, key=place.key, rank=place.rank, endpoint=place.endpoint,
                kind=place.kind, digest=manifest.digest, bytes=manifest.bytes, covers=covers,
            )
        )  # fmt: skip

    def give_up(self) -> None:
        if self.root >= 0:
            os.close(self.root)
            self.root = -1
        if not self.kept:
            shutil.rmtree(self.directory, ignore_errors=True)


@dataclass
class FakeHolder:
    """What ``Checkpoints`` does, without a program's folder to watch."""

    directory: Path
    folders: dict[str, Folder] = field(default_factory=lambda: {FOLDER.name: FOLDER})
    parts: dict[PartPlace, HeldPart] = field(default_factory=dict)
    restored: dict[int, tuple[Path, Manifest]] = field(default_factory=dict)
    told: list[Holding] = field(default_factory=list)
    damages: list[tuple[PartPlace, str]] = field(default_factory=list)
    expected: dict[str, Collection[str]] = field(default_factory=dict)
    limit: int = 1 << 40
    count: int = 0

    def own(self, endpoint: str, rank: int, files: Mapping[str, bytes], key: Key = KEY) -> HeldPart:
        root = self._new()
        fill(root, files)
        place = PartPlace(FOLDER.name, endpoint, HoldingKind.OWN, rank, key)
        self.parts[place] = HeldPart(place, root, manifest_of(rank, files, key))
        return self.parts[place]

    def news(self) -> AsyncIterator[News]:
        raise NotImplementedError

    def folder(self, name: str) -> Folder | None:
        return self.folders.get(name)

    async def make(self, folder: Folder) -> None:
        known = self.folders.setdefault(folder.name, folder)
        if known.key != folder.key:
            raise AgentError("conflict", folder.name, "another key")

    async def expect(self, folder: str, endpoints: Collection[str]) -> None:
        self.expected[folder] = endpoints

    def find(self, place: PartPlace) -> HeldPart | None:
        return self.parts.get(place)

    def owner(self, folder: str, endpoint: str) -> RankUser:
        return RankUser(os.geteuid(), os.getegid())

    def receive(self, place: PartPlace, size_bytes: int) -> FakeReceiving:
        if size_bytes > self.limit:
            raise AgentError("failed", place.folder, "the folder is full")
        directory = self._new()
        return FakeReceiving(self, directory, place, root=os.open(directory, os.O_RDONLY))

    def came(self, folder: str, key: Key, get: GetPart) -> bool:
        root, manifest = self.restored.get(get.rank, (None, None))
        if root is None or manifest is None or manifest.digest != get.digest:
            return False
        return not parts.damages(root, manifest)

    def receive_restore(self, folder: str, key: Key, get: GetPart) -> FakeReceiving:
        if get.bytes > self.limit:
            raise AgentError("failed", folder, "the folder is full")
        directory = self._new()
        return FakeReceiving(self, directory, None, get, os.open(directory, os.O_RDONLY))

    def restore_from(self, part: HeldPart, get: GetPart) -> None:
        if parts.damages(part.root, part.manifest):
            raise AgentError("failed", part.place.folder, "differs")
        self.restored[get.rank] = part.root, part.manifest

    def report(self, holding: Holding) -> None:
        self.told.append(holding)

    def damaged(self, place: PartPlace, why: str) -> None:
        self.parts.pop(place, None)
        self.damages.append((place, why))

    async def close_step(self, folder: str, key: Key) -> None:
        raise NotImplementedError

    async def drop(self, folder: str, keys: Collection[Key]) -> None:
        raise NotImplementedError

    def verify(self, folder: str, key: Key | None) -> AsyncIterator[tuple[Verified, ...]]:
        raise NotImplementedError

    async def forget(self, folder: str) -> bool:
        raise NotImplementedError

    def _new(self) -> Path:
        self.count += 1
        root = self.directory / str(self.count)
        root.mkdir(parents=True)
        return root


def content_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def flip(path: Path, at: int = 1000) -> None:
    """Change one byte of a file, whose length stays."""
    block = bytearray(path.read_bytes())
    block[at] ^= 1
    path.write_bytes(block)


def other(folder: Folder = FOLDER) -> Folder:
    return replace(folder, key=bytes(32))
