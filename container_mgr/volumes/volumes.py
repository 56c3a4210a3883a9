"""The volumes that an agent offers, and the ranks that use them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog

from agentlink.ranks import RankSpec
from agentlink.values import DataKey, Scope, VolumeMount
from base import clock
from container_mgr.users import RankUser
from container_mgr.values import AgentError, BoundVolume, Container
from container_mgr.volumes import rules
from container_mgr.volumes.offers import Offer
from container_mgr.volumes.records import DirectoryRecord
from container_mgr.volumes.volume import ServerVolume, Status

MAX_DATA = 4096
"""Directories of one volume in a report, the last used ones."""
MIN_BPS = 64 * 1024
MIN_QUOTA_BYTES = 4096
"""An empty directory has a block of its own."""

_log = structlog.get_logger("container_mgr.volumes")


@dataclass(slots=True, frozen=True)
class DataFacts:
    """What an owner's directory holds, and the jobs whose containers use it now."""

    record: DirectoryRecord
    jobs: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class VolumeFacts:
    """A volume, its file system, and the directories of owners in it."""

    name: str
    read_only: bool
    status: Status
    data: tuple[DataFacts, ...] = ()


class Volumes:
    """All volumes of one agent. Belongs to one event loop."""

    def __init__(
        self,
        offers: Mapping[str, Offer],
        *,
        remapped: RankUser | None = None,
        clock: Callable[[], float] = clock.time,
    ) -> None:
        """``remapped`` is what the user 0 of containers is outside them, with ``userns-remap``."""
        self._volumes = {name: ServerVolume(offer) for name, offer in offers.items()}
        self._remapped = remapped
        self._clock = clock
        self._binding: Counter[DataKey] = Counter()
        self._removing: set[DataKey] = set()
        self._chores: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """End the volumes' threads."""
        for chore in self._chores:
            chore.cancel()
        for volume in self._volumes.values():
            volume.close()

    async def recover(self) -> None:
        """Read which owners have directories; go on with removals that were interrupted.

        Done at the start and again from time to time. A volume that fails keeps its last state.
        """

        async def one(volume: ServerVolume) -> None:
            try:
                await volume.load()
                self._finish_removals(volume)
            except AgentError as error:
                _log.warning("volume not read", volume=volume.offer.name, reason=str(error))

        await asyncio.gather(*(one(v) for v in self._volumes.values() if v.offer.writable))

    @contextmanager
    def reserved(self, spec: RankSpec) -> Iterator[None]:
        """Keep a rank's data from removal until its container exists.

        Raises AgentError(conflict) while some of it is being removed.
        """
        keys = [key for mount in spec.volumes if (key := key_of(mount)) is not None]
        for key in keys:
            if key in self._removing:
                raise AgentError(
                    "conflict", spec.key.container,
                    f"the data of {key.owner} in volume {key.volume} is being removed",
                    "start it again",
                )  # fmt: skip
        self._binding.update(keys)
        try:
            yield
        finally:
            self._binding.subtract(keys)
            self._binding += Counter()

    async def bind(
        self, spec: RankSpec, user: RankUser, *, remapped: bool = True
    ) -> tuple[BoundVolume, ...]:
        """Check a rank's volumes and make its owners' directories. Raises AgentError.

        ``remapped`` False: the rank's container stays in the initial user namespace.
        """
        obj, base = spec.key.container, self._remapped if remapped else None
        outside = RankUser(user.uid + base.uid, user.gid + base.gid) if base else user
        rules.check_mounts([(mount.volume, mount.path) for mount in spec.volumes], obj)
        chosen = [(self._allowed(mount, obj), mount) for mount in spec.volumes]
        # One after the other: two paths of one rank may show the same directory.
        bound = [await v.bind(m, outside, obj, self._clock()) for v, m in chosen]
        for one in bound:
            limited = one.mount.read_bps is not None or one.mount.write_bps is not None
            if limited and not one.disk:
                raise AgentError(
                    "invalid", obj,
                    f"volume {one.mount.volume} is on no disk of this server to limit",
                    "remove its read and write limits from the site file",
                )  # fmt: skip
        return tuple(bound)

    async def directory(self, mount: VolumeMount, user: RankUser, obj: str) -> str:
        """Check a volume and return the directory that a mount of it would show. AgentError.

        An owner's directory is made for ``user``, as the volume sees it, unless it is there.
        """
        volume = self._allowed(mount, obj)
        key = mount.scope, mount.owner
        if mount.scope is not Scope.SITE and key not in volume.owned:
            await volume.load()  # another server may have made it
        known = volume.owned.get(key)
        owner = user if known is None else RankUser(known.uid, user.gid)
        return (await volume.bind(mount, owner, obj, self._clock())).source

    async def facts(self, containers: Sequence[Container]) -> list[VolumeFacts]:
        """Report all volumes and their data; ``containers`` are all of this server's."""
        used = in_use(containers)
        states = await asyncio.gather(*(v.status() for v in self._volumes.values()))
        return [
            VolumeFacts(
                name=name,
                read_only=not volume.offer.writable,
                status=status,
                data=self._data(volume, used),
            )
            for (name, volume), status in zip(self._volumes.items(), states, strict=True)
        ]

    async def measure(self, key: DataKey, *, used: bool) -> DirectoryRecord | None:
        """Measure one owner's directory; None without a directory. Raises AgentError."""
        volume = self._volumes.get(key.volume)
        if volume is None:
            return None
        return await volume.measure((key.scope, key.owner), now=self._clock(), in_use=used)

    def owned(self) -> list[DataKey]:
        """Return every owner's directory, the one that was measured longest ago first."""
        found = [
            (record.measured_at or 0.0, DataKey(name, *key))
            for name, volume in self._volumes.items()
            for key, record in volume.owned.items()
        ]
        return [key for _, key in sorted(found, key=lambda one: one[0])]

    async def remove(
        self, key: DataKey, containers: Callable[[], Awaitable[Sequence[Container]]]
    ) -> bool:
        """Remove an owner's data; return whether it existed. Raises AgentError.

        ``containers`` returns this server's. The data is out of reach when this returns;
        what it holds is deleted in the background, after a restart too.
        """
        obj = f"{key.volume}/{key.owner}"
        volume = self._owned(key, obj)
        if key in self._removing or self._binding[key]:
            raise AgentError(
                "conflict", obj, "its data is being removed, or a rank of its starts",
                "try again later",
            )  # fmt: skip
        self._removing.add(key)
        try:
            jobs = in_use(await containers()).get(key, ())
            if jobs:
                raise AgentError(
                    "conflict", obj, f"job {jobs[0]} uses the data of {key.owner}",
                    f"cancel job {jobs[0]}, or wait for it",
                )  # fmt: skip
            removed = await volume.remove((key.scope, key.owner))
        finally:
            self._removing.discard(key)
        self._finish_removals(volume)
        return removed

    def _allowed(self, mount: VolumeMount, obj: str) -> ServerVolume:
        volume = self._volumes.get(mount.volume)
        if volume is None:
            raise AgentError(
                "not_found", obj, f"this server has no volume {mount.volume}",
                "give its agent --volume, or choose other servers",
            )  # fmt: skip
        if not volume.offer.writable and not (mount.read_only and mount.scope is Scope.SITE):
            raise AgentError(
                "forbidden", obj, f"volume {mount.volume} is offered read-only",
                "ask for it read-only, or give the agent --volume with rw",
            )  # fmt: skip
        if mount.scope is not Scope.SITE:
            rules.check_owner(mount.owner, obj)
        elif mount.owner or mount.quota_bytes is not None:
            raise AgentError(
                "invalid", obj, f"volume {mount.volume} as a whole has no owner and no quota"
            )
        if mount.quota_bytes is not None and mount.quota_bytes < MIN_QUOTA_BYTES:
            raise AgentError("invalid", obj, f"a quota must be at least {MIN_QUOTA_BYTES} bytes")
        rates = [bps for bps in (mount.read_bps, mount.write_bps) if bps is not None]
        if any(bps < MIN_BPS for bps in rates):
            raise AgentError("invalid", obj, f"an I/O limit must be at least {MIN_BPS} bytes/s")
        return volume

    def _owned(self, key: DataKey, obj: str) -> ServerVolume:
        rules.check_name(key.volume, obj)
        volume = self._volumes.get(key.volume)
        if volume is None or not volume.offer.writable:
            raise AgentError("not_found", obj, f"this server has no writable volume {key.volume}")
        if key.scope is Scope.SITE:
            raise AgentError("invalid", obj, "a volume as a whole is never removed")
        rules.check_owner(key.owner, obj)
        return volume

    def _data(
        self, volume: ServerVolume, used: Mapping[DataKey, tuple[str, ...]]
    ) -> tuple[DataFacts, ...]:
        now, found = self._clock(), []
        for (scope, owner), record in volume.owned.items():
            jobs = used.get(DataKey(volume.offer.name, scope, owner), ())
            found.append(DataFacts(replace(record, used_at=now) if jobs else record, jobs))
        return tuple(sorted(found, key=lambda one: -one.record.used_at)[:MAX_DATA])

    def _finish_removals(self, volume: ServerVolume) -> None:
        async def finish() -> None:
            try:
                await volume.finish_removals()
            except AgentError as error:
                _log.error("data not removed", volume=volume.offer.name, reason=str(error))

        chore = asyncio.get_running_loop().create_task(finish())
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)


def key_of(mount: VolumeMount) -> DataKey | None:
    """Return the owner's directory that is mounted; None for the volume as a whole."""
    return None if mount.scope is Scope.SITE else DataKey(mount.volume, mount.scope, mount.owner)


def in_use(containers: Sequence[Container]) -> dict[DataKey, tuple[str, ...]]:
    """Return the jobs, sorted, whose containers use each directory or are about to."""
    found: dict[DataKey, set[str]] = {}
    for container in containers:
        if container.alive or container.state == "created":
            for mount in container.volumes:
                if (key := key_of(mount)) is not None:
                    found.setdefault(key, set()).add(container.key.job)
    return {key: tuple(sorted(jobs)) for key, jobs in found.items()}
