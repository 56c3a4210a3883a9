from __future__ import annotations

from pathlib import Path

import pytest

from probe.volume import disk

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /volume rw,nosuid - tmpfs tmpfs rw
31 22 7:3 /sub /volume/disk rw,nosuid shared:3 master:2 - ext4 /dev/loop3 rw
32 22 0:44 / /data\\040set rw - nfs4 server:/data rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "filesystem", "number", "refused"),
    [
        ("/volume", "tmpfs", "0:30", True),
        ("/volume/other", "tmpfs", "0:30", True),
        ("/volume/disk/x", "ext4", "7:3", False),
        ("/volumes", "ext4", "254:0", False),
        ("/data set/x", "nfs4", "0:44", False),
    ],
)
def test_the_mount_with_the_longest_path_counts(
    tmp_path: Path, path: str, filesystem: str, number: str, refused: bool
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS, encoding="utf-8")
    found = disk.device(Path(path), mounts=mounts)
    assert (found.filesystem, found.number) == (filesystem, number)
    assert bool(found.refusal) == refused


def test_what_is_not_known_is_not_refused(tmp_path: Path) -> None:
    found = disk.device(tmp_path, mounts=tmp_path / "absent")
    assert (found.filesystem, found.number, found.refusal) == ("", "", "")


def test_cores_are_the_difference_over_the_time() -> None:
    before = disk.Spent(10.0, 1.0, None, 0, 0)
    after = disk.Spent(12.0, 4.0, 9.0, 0, 0)
    assert disk.usage(before, after) == {"container": 1.5, "server": None}


def test_this_machines_counters_only_grow() -> None:
    before, after = disk.spent(), disk.spent()
    assert after.at >= before.at
    assert after.read_bytes >= before.read_bytes
