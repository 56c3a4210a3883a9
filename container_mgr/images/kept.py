"""Removes images that this agent pulled and that no job has used for long.

What the agent pulled is a file in its state directory. Without the file the agent has pulled
nothing, so it removes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from base import clock
from container_mgr import atomic_file
from container_mgr.docker.engine import DockerHost, EngineFailure

LOOK_EVERY_S = 60.0
YOUNGEST_S = 3600.0
"""An image used within this time stays: a job may be about to start with it."""
MAX_KEPT = 4096
"""Images in the file. Beyond it the agent drops those that it has not used for longest."""

_log = structlog.get_logger("container_mgr.images.kept")


@dataclass(slots=True, frozen=True)
class KeepPolicy:
    """When pulled images go. None means never for that reason."""

    space_bytes: int | None = None
    """Most bytes of all pulled images; layers that images share count for each of them."""
    unused_s: float | None = None
    """Longest time without use."""


@dataclass(slots=True, frozen=True)
class PulledImage:
    """An image that this agent pulled. ``used_at`` is in seconds since 1970."""

    id: str
    size_bytes: int
    used_at: float


def to_remove(
    pulled: Mapping[str, PulledImage], in_use: Collection[str], policy: KeepPolicy, now: float
) -> list[str]:
    """Return the names to remove, least recently used first. Pure.

    ``in_use`` has the ids of images that a container uses; they count for the space but stay.
    """
    total = sum({image.id: image.size_bytes for image in pulled.values()}.values())
    gone = []
    for name, image in sorted(pulled.items(), key=lambda item: (item[1].used_at, item[0])):
        unused_s = now - image.used_at
        if image.id in in_use or unused_s < YOUNGEST_S:
            continue
        old = policy.unused_s is not None and unused_s > policy.unused_s
        full = policy.space_bytes is not None and total > policy.space_bytes
        if old or full:
            gone.append(name)
            others = {n for n, other in pulled.items() if other.id == image.id} - set(gone)
            total -= 0 if others else image.size_bytes
    return gone


class KeptImages:
    """The images that this agent pulled, and their removal by policy."""

    def __init__(
        self,
        engine: DockerHost,
        file: Path,
        policy: KeepPolicy,
        clock: Callable[[], float] = clock.time,
    ) -> None:
        """``file`` holds the list; its directory must exist once :meth:`load` is called."""
        self._engine = engine
        self._file = file
        self._policy = policy
        self._clock = clock
        self._pulled: dict[str, PulledImage] = {}
        self._lock = asyncio.Lock()
        """One removal or write at a time."""

    async def load(self) -> None:
        """Read the file. One that cannot be read counts as empty: its images stay."""
        try:
            text = await asyncio.to_thread(self._file.read_text, encoding="utf-8")
            self._pulled = {name: PulledImage(**one) for name, one in json.loads(text).items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _log.error("the list of pulled images is lost", file=str(self._file), reason=str(error))

    async def pulled(self, name: str, image_id: str, size_bytes: int) -> None:
        """Note that this agent has pulled an image, before anyone relies on it."""
        async with self._lock:
            self._pulled[name] = PulledImage(image_id, size_bytes, self._clock())
            await self._write()

    def used(self, image_id: str) -> None:
        """Note that a job is about to use an image; the next check writes it."""
        self._mark({image_id})

    def used_at(self, image_id: str) -> float | None:
        """Return when an image that this agent pulled was last used, in seconds since 1970."""
        times = [image.used_at for image in self._pulled.values() if image.id == image_id]
        return max(times, default=None)

    async def run(self) -> None:
        """Check every minute, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(LOOK_EVERY_S)

    async def check(self) -> None:
        """Note what containers use, and remove images by the policy."""
        if not self._pulled:
            return
        try:
            in_use = await self._engine.images_in_use()
        except EngineFailure as error:
            _log.warning("images not looked at", reason=str(error))
            return
        async with self._lock:
            self._mark(in_use)
            for name in to_remove(self._pulled, in_use, self._policy, self._clock()):
                await self._remove(name)
            await self._write()

    def _mark(self, ids: Collection[str]) -> None:
        now = self._clock()
        for name, image in self._pulled.items():
            if image.id in ids:
                self._pulled[name] = replace(image, used_at=now)

    async def _remove(self, name: str) -> None:
        image = self._pulled[name]
        if self._clock() - image.used_at < YOUNGEST_S:
            return  # used since the decision
        try:
            found = await self._engine.image(name)
            if found is not None and found.id == image.id:
                await self._engine.remove_image(name)
        except EngineFailure as error:  # perhaps a new container uses it: the next check decides
            _log.warning("image not removed", image=name, reason=str(error))
            return
        del self._pulled[name]
        _log.info("image removed", image=name, bytes=image.size_bytes)

    async def _write(self) -> None:
        newest = sorted(self._pulled.items(), key=lambda item: item[1].used_at)[-MAX_KEPT:]
        self._pulled = dict(newest)
        text = json.dumps({name: asdict(image) for name, image in newest})
        try:
            await asyncio.to_thread(atomic_file.write, self._file, text, mode=0o600)
        except OSError as error:
            _log.error("pulled images not written", file=str(self._file), reason=str(error))
