"""One volume: checks it, makes and removes directories of owners in it, and measures them.

Below the volume's directory are ``projects/NAME`` and ``jobs/NAME``, and ``.lightloom`` with
the records and with what is being removed. All calls on it run in the volume's own thread.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from agentlink.values import Scope, VolumeMount
from base import clock
from container_mgr.hardware.sysfs import SYSFS, whole_disk
from container_mgr.users import RankUser
from container_mgr.values import AgentError, BoundVolume
from container_mgr.volumes import mounts, quota, records, tree
from container_mgr.volumes.mounts import MountPoint
from container_mgr.volumes.offers import Offer
from container_mgr.volumes.records import DirectoryRecord
from container_mgr.volumes.tree import Measure
from container_mgr.volumes.worker import VolumeThread

ANSWER_S = 10.0
"""How long a call may take before the volume counts as one that does not answer."""
_SLICE_S = 0.02
_PAUSE_S = 0.08
"""Long work runs for a slice, then pauses: it uses a fifth of a core and of a disk at most."""
_OWN, _RECORDS, _REMOVED = ".lightloom", "records", "removed"
_PARENTS: Mapping[Scope, str] = {Scope.PROJECT: "projects", Scope.JOB: "jobs"}

_T = TypeVar("_T")

_log = structlog.get_logger("container_mgr.volumes")
Key = tuple[Scope, str]


@dataclass(slots=True, frozen=True)
class Status:
    """The file system of a volume, or the ``problem`` for which no rank can use it. In bytes."""

    problem: str = ""
    filesystem: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None
    kernel_quota: bool = False


class ServerVolume:
    """A volume that this agent offers. Belongs to one event loop.

    The coroutines belong to the loop; the other private methods run in the volume's thread.
    """

    def __init__(
        self,
        offer: Offer,
        *,
        mountinfo: Path = Path("/proc/self/mountinfo"),
        sysfs: Path = SYSFS,
    ) -> None:
        self.offer = offer
        self._mountinfo = mountinfo
        self._sysfs = sysfs
        self._worker = VolumeThread(f"volume-{offer.name}")
        # Replaced in the volume's thread, never changed: the loop may be reading it.
        self._records: Mapping[Key, DirectoryRecord] = {}
        self._loaded = False
        self._removal = asyncio.Lock()
        self._turn = asyncio.Lock()
        """Held for one slice of long work, and the pause after it."""

    @property
    def owned(self) -> Mapping[Key, DirectoryRecord]:
        """The owners' directories, as of the last :meth:`load` and the changes since."""
        return self._records

    def close(self) -> None:
        """End its thread, without waiting for a file system that does not answer."""
        self._worker.close()

    async def bind(self, mount: VolumeMount, user: RankUser, obj: str, now: float) -> BoundVolume:
        """Check the volume and make the owner's directory; return what the engine mounts.

        ``user`` is the rank's, as the volume sees it. Raises AgentError.
        """
        return await self._run(partial(self._bind, mount, user, obj, now), obj)

    async def status(self) -> Status:
        """Return the state of its file system; a problem is part of it."""
        try:
            return await self._run(self._status, self.offer.name)
        except AgentError as error:
            return Status(problem=error.message)

    async def load(self) -> None:
        """Read which owners' directories there are. Raises AgentError."""
        await self._run(self._load, self.offer.name)

    async def measure(self, key: Key, *, now: float, in_use: bool) -> DirectoryRecord | None:
        """Measure an owner's directory and return its record; None without a directory.

        Raises AgentError.
        """
        if key not in self._records:
            return None
        result = await self._pump(self._measuring(key))
        if result is None:
            return None
        return await self._run(partial(self._note, key, result, now, in_use), self.offer.name)

    async def remove(self, key: Key) -> bool:
        """Move an owner's directory out of reach; return whether it existed. Raises AgentError.

        Afterwards its name is free. :meth:`finish_removals` deletes what it holds.
        """
        return await self._run(partial(self._remove, key), self.offer.name)

    async def finish_removals(self) -> None:
        """Delete the data that was moved out of reach, also after a crash. Raises AgentError."""
        async with self._removal:
            await self._pump(self._emptying())

    def _usable(self, obj: str) -> MountPoint:
        """Return the volume's mount. AgentError when it must have one of its own and has none."""
        name, path = self.offer.name, str(self.offer.path)
        found = mounts.find(self._mountinfo.read_text(encoding="utf-8"), path)
        if found is None or (self.offer.mount and found.path != path):
            raise AgentError(
                "unavailable", obj, f"nothing is mounted at volume {name}",
                f"mount its file system at {path} on the server",
            )  # fmt: skip
        return found

    def _bind(self, mount: VolumeMount, user: RankUser, obj: str, now: float) -> BoundVolume:
        found, path = self._usable(obj), self.offer.path
        with tree.opened(path) as root:
            if mount.scope is not Scope.SITE:
                tree.require_own(root, f"volume {mount.volume}", obj)
                quotas = found if found.project_quota else None
                record = self._prepare(root, mount, user, quotas, obj)
                self._write_at(root, replace(record, used_at=now))
                path = path / _PARENTS[mount.scope] / mount.owner
        return BoundVolume(mount, str(path), whole_disk(self.offer.path, self._sysfs))

    def _prepare(
        self, root: int, mount: VolumeMount, user: RankUser, quotas: MountPoint | None, obj: str
    ) -> DirectoryRecord:
        """Make the owner's directory; return its record. ``quotas``: a mount that has them."""
        with self._own(root, _RECORDS) as at:
            old = records.read(at, mount.scope, mount.owner)
        with tree.own(root, _PARENTS[mount.scope], 0o711, obj) as parent:
            new = tree.make_for(parent, mount.owner, user, obj)
            with tree.opened_in(parent, mount.owner) as directory:
                limited = mount.quota_bytes is not None or (old is not None and old.quota_bytes)
                most = _most_files(mount, None if new else old)
                if quotas is not None and limited:
                    quota.limit(directory, quotas, mount.quota_bytes, most)
                made_at = os.fstat(directory).st_ctime
        if old is None or new:
            old = DirectoryRecord(mount.scope, mount.owner, user.uid, made_at, made_at)
        return replace(old, uid=user.uid, quota_bytes=mount.quota_bytes, most_files=most)

    def _status(self) -> Status:
        place = self._usable(self.offer.name)
        if self.offer.writable and not self._loaded:
            self._load()
        with tree.opened(self.offer.path) as root:
            disk = os.fstatvfs(root)
        return Status(
            filesystem=place.filesystem,
            total_bytes=disk.f_frsize * disk.f_blocks,
            free_bytes=disk.f_frsize * disk.f_bavail,
            kernel_quota=place.project_quota,
        )

    def _load(self) -> None:
        self._usable(self.offer.name)
        with tree.opened(self.offer.path) as root:
            try:
                with tree.opened_in(root, _OWN, _RECORDS) as at:
                    known = {(r.scope, r.owner): r for r in records.read_all(at)}
            except FileNotFoundError:
                known = {}
            self._records = {
                key: known.get(key) or record
                for scope, parent in _PARENTS.items()
                for key, record in _directories(root, parent, scope)
            }
            self._loaded = True

    def _measuring(self, key: Key) -> Iterator[Measure]:
        try:
            with (
                tree.opened(self.offer.path) as root,
                tree.opened_in(root, _PARENTS[key[0]], key[1]) as at,
            ):
                for found in tree.measure(at):
                    yield found
                    most = self._records[key].most_files if key in self._records else None
                    if most is not None and found.files > most:
                        return
        except FileNotFoundError:
            return

    def _remove(self, key: Key) -> bool:
        scope, owner = key
        with tree.opened(self.offer.path) as root:
            self._usable(self.offer.name)
            there = True
            with self._own(root, _REMOVED) as removed:
                try:
                    with tree.opened_in(root, _PARENTS[scope]) as parent:
                        tree.move_away(parent, owner, removed)
                        os.fsync(parent)
                except FileNotFoundError:
                    there = False
            with self._own(root, _RECORDS) as at:
                records.delete(at, scope, owner)
        self._records = {k: record for k, record in self._records.items() if k != key}
        return there

    def _emptying(self) -> Iterator[None]:
        try:
            with (
                tree.opened(self.offer.path) as root,
                tree.opened_in(root, _OWN, _REMOVED) as removed,
            ):
                yield from tree.empty(removed)
        except FileNotFoundError:
            return

    def _note(self, key: Key, result: Measure, now: float, in_use: bool) -> DirectoryRecord | None:
        """Keep a measurement; None when the directory was removed meanwhile."""
        old = self._records.get(key)
        if old is None:
            return None
        record = replace(
            old,
            bytes=result.bytes,
            files=result.files,
            too_deep=result.too_deep,
            measured_at=now,
            used_at=now if in_use else old.used_at,
        )
        with tree.opened(self.offer.path) as root:
            self._write_at(root, record)
        return record

    def _write_at(self, root: int, record: DirectoryRecord) -> None:
        with self._own(root, _RECORDS) as at:
            records.write(at, record)
        self._records = {**self._records, (record.scope, record.owner): record}

    @contextmanager
    def _own(self, root: int, name: str) -> Iterator[int]:
        with (
            tree.own(root, _OWN, 0o700, self.offer.name) as own,
            tree.own(own, name, 0o700, self.offer.name) as at,
        ):
            yield at

    async def _pump(self, work: Iterator[_T]) -> _T | None:
        """Run long work in slices; return its last value. Several take turns."""
        last: _T | None = None
        while True:
            async with self._turn:
                values = await self._run(partial(_slice, work), self.offer.name)
                if not values:
                    return last
                last = values[-1]
                await asyncio.sleep(_PAUSE_S)

    async def _run(self, work: Callable[[], _T], obj: str) -> _T:
        name = self.offer.name
        try:
            return await self._worker.run(work, ANSWER_S)
        except TimeoutError:
            raise AgentError(
                "unavailable", obj, f"volume {name} does not answer within {ANSWER_S:g} s",
                "is its file server up?",
            ) from None  # fmt: skip
        except OSError as error:
            raise self._failure(error, obj) from error

    def _failure(self, error: OSError, obj: str) -> AgentError:
        name, path = self.offer.name, self.offer.path
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return AgentError(
                "unavailable", obj, f"volume {name} is behind a link, or is not a directory",
                f"give the agent the real path of {path}",
            )  # fmt: skip
        if error.errno == errno.ENOENT:
            return AgentError(
                "unavailable", obj, f"the directory of volume {name} does not exist",
                f"make {path} on the server, or remove the volume from its agent",
            )  # fmt: skip
        reason = error.strerror or str(error)
        return AgentError(
            "unavailable", obj, f"volume {name} cannot be used: {reason}",
            f"does its file server map root to another user? Export {path} with no_root_squash"
            if error.errno in (errno.EACCES, errno.EPERM)
            else "",
        )  # fmt: skip


def _directories(root: int, parent: str, scope: Scope) -> Iterator[tuple[Key, DirectoryRecord]]:
    """Yield a record made from each owner's directory itself: its own may be lost."""
    try:
        with tree.opened_in(root, parent) as at, os.scandir(at) as entries:
            for entry, _ in zip(entries, range(records.MAX_RECORDS), strict=False):
                if entry.is_dir(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    yield (
                        (scope, entry.name),
                        DirectoryRecord(
                            scope, entry.name, found.st_uid, found.st_ctime, found.st_ctime
                        ),
                    )
    except FileNotFoundError:
        return


def _most_files(mount: VolumeMount, old: DirectoryRecord | None) -> int | None:
    """Return the limit of entries. Data that has more already keeps what it has."""
    if mount.quota_bytes is None:
        return None
    most = quota.most_files(mount.quota_bytes)
    kept = (old.files if old.most_files is None else old.most_files) if old is not None else None
    if kept is not None and kept > most:
        _log.warning("data keeps entries above the limit", owner=mount.owner, has=kept, most=most)
    return max(most, kept or 0)


def _slice(work: Iterator[_T]) -> list[_T]:
    """Iterate for one slice of time; return the last value, None when the work is done."""
    until = clock.monotonic() + _SLICE_S
    last: list[_T] = []
    for value in work:
        last = [value]
        if clock.monotonic() >= until:
            break
    return last
