from __future__ import annotations

import pytest

from container_mgr.volumes import quota
from container_mgr.volumes.mounts import MountPoint, find

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 8:17 / /srv/scratch rw,relatime shared:2 - ext4 /dev/sdb1 rw,prjquota
31 22 0:50 / /srv/data\\040set ro - nfs4 files:/export/data ro,vers=4.2
32 22 0:51 / /srv/twice rw - tmpfs below rw
33 32 0:52 / /srv/twice rw - xfs /dev/sdc rw,prjquota
torn
"""


@pytest.mark.parametrize(
    ("path", "mount", "filesystem"),
    [
        ("/srv/other", "/", "ext4"),
        ("/srv/scratch", "/srv/scratch", "ext4"),
        ("/srv/scratch/deep", "/srv/scratch", "ext4"),
        ("/srv/scratched", "/", "ext4"),
        ("/srv/data set", "/srv/data set", "nfs4"),
        ("/srv/twice", "/srv/twice", "xfs"),
    ],
)
def test_the_file_system_of_a_path(path: str, mount: str, filesystem: str) -> None:
    found = find(TABLE, path)
    assert found is not None
    assert (found.path, found.filesystem) == (mount, filesystem)
    assert found.project_quota == (mount in {"/srv/scratch", "/srv/twice"})


def test_nothing_is_found_in_an_empty_table() -> None:
    assert find("", "/srv") is None


def test_the_arguments_of_a_project_quota() -> None:
    mount = MountPoint("/srv/scratch", "ext4", "/dev/sdb1", frozenset({"prjquota"}))
    limited = quota.limit_command(mount, 12, 10 << 20)
    assert limited == ("setquota", "-P", "12", "0", "10240", "0", "0", "/srv/scratch")
    assert quota.limit_command(mount, 12, 10 << 20, 500)[4:] == (
        "10240",
        "0",
        "500",
        "/srv/scratch",
    )
    assert quota.limit_command(mount, 12, 0)[4] == "0"
    assert quota.limit_command(mount, 12, 1)[4] == "1"


def test_a_directory_keeps_its_other_attributes() -> None:
    old = bytes(range(28))
    new = quota.attributes(old, 77)
    assert new[12:16] == (77).to_bytes(4, "little")
    assert new[:4] == (int.from_bytes(old[:4], "little") | 0x200).to_bytes(4, "little")
    assert (new[4:12], new[16:]) == (old[4:12], old[16:])
