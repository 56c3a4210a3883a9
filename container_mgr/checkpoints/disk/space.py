"""The file systems of checkpoints: a tmpfs for each endpoint, or a quota on the server's disk."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Protocol

from agentlink.checkpoints import Folder
from agentlink.values import Where
from container_mgr.values import AgentError
from container_mgr.volumes import mounts, quota, tree

INODES = 1 << 17
"""Entries of one endpoint's folder. In memory the kernel counts files, on disk the agent counts
names of files."""
FOR_COPIES = "; with copies a folder must hold 2 x (keep + 1) parts: its own and other ranks'"
FOR_ALL = "; a folder must hold all that its rank resumes from, with dcp the parts of all ranks"
MUCH = 1.25
"""Share of its size: a folder on disk beyond it ends the rank. What lies between is not held."""
HOLES = 64 << 20
"""Bytes of holes that every step may have."""
_TIMEOUT_S = 20
_MOUNTINFO = Path("/proc/self/mountinfo")


class Space(Protocol):
    """Limits what an endpoint's folder holds. All methods block."""

    def prepare(self, path: Path, folder: Folder) -> bool:
        """Limit an empty or known directory; return whether the kernel keeps the limit.

        Idempotent. Raises OSError, AgentError.
        """
        ...

    def release(self, path: Path) -> None:
        """Unmount a directory's file system, with all that is in it. Raises OSError."""
        ...


class ServerSpace:
    """The space of a real server: mounts, and project quotas where the disk has them."""

    def prepare(self, path: Path, folder: Folder) -> bool:
        """See :class:`Space`."""
        table = _MOUNTINFO.read_text(encoding="utf-8")
        found = mounts.find(table, str(path))
        if folder.where is Where.MEMORY:
            if found is not None and found.path == str(path) and found.filesystem == "tmpfs":
                return True
            _run(
                "mount", "-t", "tmpfs", "-o",
                f"size={folder.size_bytes},nr_inodes={INODES},mode=0700,nosuid,nodev",
                "ll-checkpoints", str(path),
            )  # fmt: skip
            return True
        if found is None or not found.project_quota:
            return False
        with tree.opened(path) as directory:
            quota.limit(directory, found, folder.size_bytes)
        return True

    def release(self, path: Path) -> None:
        """See :class:`Space`."""
        while (found := self._mounted(path)) is not None and found.path == str(path):
            try:
                _run("umount", str(path))
            except OSError:  # a reader of it ends later
                _run("umount", "--lazy", str(path))

    def _mounted(self, path: Path) -> mounts.MountPoint | None:
        return mounts.find(_MOUNTINFO.read_text(encoding="utf-8"), str(path))


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()[-200:]
        raise OSError(f"{command[0]} failed: {reason}") from error
    except subprocess.SubprocessError as error:
        raise OSError(f"{command[0]} failed: {error}") from error


def used(at: int) -> tree.Measure:
    """Return the bytes of disk that all below an open directory uses, and its entries.

    It stops counting beyond ``INODES`` entries.
    """
    result = tree.Measure()
    for result in tree.measure(at):
        if result.files > INODES:
            break
    return result


def too_long(folder: Folder, length: int, disk: int) -> str:
    """Return the error of a step whose files are longer than a folder may be; empty if none is.

    ``length`` are bytes as the files' names list them: a sparse file takes less of the disk.
    ``disk`` is the size of its file system.
    """
    most = min(folder.size_bytes, disk)
    if length <= most:
        return ""
    return f"its files have {length} bytes, the folder's limit is {most}"


def too_hollow(length: int, stored: int) -> str:
    """Return the error of a step with more bytes in holes than data; empty for another one.

    A hole takes no disk and no time to make, but as much time to read as data.
    """
    if length - stored <= stored + HOLES:
        return ""
    return f"of the {length} bytes of its files only {stored} are data, the rest are holes"


def total(at: int) -> int:
    """Return the bytes of the file system of an open directory. OSError."""
    disk = os.fstatvfs(at)
    return disk.f_frsize * disk.f_blocks


def require(at: int, folder: Folder, size_bytes: int, *, kernel: bool, rule: str = "") -> None:
    """Raise AgentError(failed) unless so many bytes more fit into an endpoint's folder.

    ``rule`` ends the message: how much a folder must hold.
    """
    disk = os.fstatvfs(at)
    free = disk.f_frsize * disk.f_bavail
    if not kernel:
        free = min(free, folder.size_bytes - used(at).bytes)
    if size_bytes > free:
        raise AgentError("failed", folder.name, full(folder, size_bytes, max(0, free)) + rule)


def full(folder: Folder, needed: int, free: int) -> str:
    """Return the message for a part that does not fit."""
    return (
        f"the folder is full: {needed} bytes are needed and {free} of {folder.size_bytes} are free"
    )


def is_full(at: int, folder: Folder, *, kernel: bool) -> str:
    """Return the message for an endpoint's folder without room; empty when it has room."""
    disk = os.fstatvfs(at)
    free = disk.f_frsize * disk.f_bavail
    if kernel:
        least = min(1 << 16, folder.size_bytes // 64)
        if free < least:
            return f"the folder is full: {free} of {folder.size_bytes} bytes are free"
        return ""
    taken = used(at).bytes
    if taken > folder.size_bytes:
        return f"the folder is full: it has {taken} bytes, its limit is {folder.size_bytes}"
    return ""


def excess(at: int, folder: Folder) -> str:
    """Return the message for a folder on disk far beyond its size, or that cannot be measured."""
    found = used(at)
    if found.files > INODES:
        return f"its checkpoints have more than {INODES} entries"
    if found.too_deep:
        return f"its checkpoints are more than {tree.MAX_DEPTH} folders deep"
    if found.bytes <= folder.size_bytes * MUCH:
        return ""
    return f"its checkpoints take {found.bytes} bytes, their limit is {folder.size_bytes}"
