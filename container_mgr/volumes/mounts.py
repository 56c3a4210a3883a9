"""Finds the file system of a path in the kernel's table of mounts (proc_pid_mountinfo(5)). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPE = re.compile(r"\\([0-7]{3})")
_PROJECT_QUOTA = frozenset({"prjquota", "pquota"})


@dataclass(slots=True, frozen=True)
class MountPoint:
    """One mounted file system. ``source`` is its device, for example ``/dev/sdb1``."""

    path: str
    filesystem: str
    source: str
    options: frozenset[str] = frozenset()
    """Options of the file system, not of this mount."""

    @property
    def project_quota(self) -> bool:
        """Whether the kernel enforces project quotas on it."""
        return self.filesystem in ("ext4", "xfs") and bool(self.options & _PROJECT_QUOTA)


def find(mountinfo: str, path: str) -> MountPoint | None:
    """Return the mount that shows ``path``, an absolute path without links; None without one."""
    best: MountPoint | None = None
    for line in mountinfo.splitlines():
        mount = _read(line)
        if mount is None or not _covers(mount.path, path):
            continue
        # Of mounts on the same path the last one is on top.
        if best is None or len(mount.path) >= len(best.path):
            best = mount
    return best


def _covers(mount: str, path: str) -> bool:
    return mount in ("/", path) or path.startswith(f"{mount}/")


def _read(line: str) -> MountPoint | None:
    before, separator, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not separator or len(left) < 6 or len(right) < 3:
        return None
    return MountPoint(
        path=_plain(left[4]),
        filesystem=right[0],
        source=_plain(right[1]),
        options=frozenset(right[2].split(",")),
    )


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)
