"""Sets project quotas, with which the kernel limits what a directory holds (ext4, XFS).

The number of a directory's project is its inode number: no other directory of the same file
system has it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Sequence

from container_mgr.volumes.mounts import MountPoint

_GET, _SET = 0x801C581F, 0x401C5820
"""FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR of linux/fs.h, for _FSXATTR's 28 bytes."""
_FSXATTR = struct.Struct("=IIIII8s")
_INHERIT = 0x200
"""FS_XFLAG_PROJINHERIT: new files and directories belong to the same project."""
_TIMEOUT_S = 4
MAX_PROJECT = 2**31 - 1
LEAST_FILES, MOST_FILES = 100_000, 10_000_000
_PER_FILE = 4096


def most_files(quota_bytes: int) -> int:
    """Return how many entries a quota of bytes allows: empty files use none, but time to count."""
    return min(MOST_FILES, max(LEAST_FILES, quota_bytes // _PER_FILE))


def attributes(old: bytes, project: int) -> bytes:
    """Return ``struct fsxattr`` with another project, which new entries inherit."""
    flags, extent, count, _, copy, pad = _FSXATTR.unpack(old)
    return _FSXATTR.pack(flags | _INHERIT, extent, count, project, copy, pad)


def limit_command(
    mount: MountPoint, project: int, quota_bytes: int, files: int = 0
) -> Sequence[str]:
    """Return the command that limits a project; the limit is whole KiB, 0 removes it."""
    blocks = max(1, quota_bytes // 1024) if quota_bytes else 0
    return ("setquota", "-P", str(project), "0", str(blocks), "0", str(files), mount.path)


def limit(
    descriptor: int, mount: MountPoint, quota_bytes: int | None, files: int | None = None
) -> None:
    """Limit an owner's open directory, its entries as well; None for no limit. Raises OSError."""
    project = os.fstat(descriptor).st_ino
    if project > MAX_PROJECT:
        raise OSError(f"inode {project} is too large for the number of a project")
    old = bytearray(_FSXATTR.size)
    fcntl.ioctl(descriptor, _GET, old)
    fcntl.ioctl(descriptor, _SET, attributes(bytes(old), project))
    command = limit_command(mount, project, quota_bytes or 0, files or 0)
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
    except (subprocess.SubprocessError, OSError) as error:
        raise OSError(f"setquota failed, is it installed? {error}") from error
