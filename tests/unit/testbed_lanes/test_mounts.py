"""What is mounted is read from the kernel's lines."""

from __future__ import annotations

from pathlib import Path

from testbed.lanes.mounts import Hierarchy, foreign, hierarchies, parse

VERSION_1 = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset,clone_children
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
42 27 254:0 /run/netns /run/netns rw shared:1 - ext4 /dev/vda rw
43 42 0:4 net:[4026532] /run/netns/ll-fab rw - nsfs nsfs rw
44 27 0:4 net:[4026533] /srv/kept\040net rw - nsfs nsfs rw
45 27 0:50 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw,lowerdir=a:b
""".strip()


def test_every_hierarchy_is_found_with_its_controllers_only() -> None:
    top = Path("/sys/fs/cgroup")
    assert hierarchies(parse(VERSION_1)) == (
        Hierarchy(top / "cpu,cpuacct", ("cpu", "cpuacct")),
        Hierarchy(top / "cpuset", ("cpuset",)),
        Hierarchy(top / "systemd", ("name=systemd",)),
        Hierarchy(top / "unified", ()),
    )


def test_a_hierarchy_that_is_mounted_twice_counts_once() -> None:
    twice = (
        "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate\n"
        "2 0 0:1 / /mnt/cgroup rw - cgroup2 cgroup rw\n"
    )
    (found,) = hierarchies(parse(twice))
    assert found.target == Path("/sys/fs/cgroup")
    assert found.unified


def test_foreign_mounts_are_those_of_racks_and_containers_deepest_first() -> None:
    found = foreign(parse(VERSION_1), [Path("/run")])
    assert found[0] == Path("/var/lib/docker/overlay2/x/merged")
    assert set(found[1:]) == {
        Path("/run/netns/ll-fab"),
        Path("/run/netns"),
        Path("/srv/kept net"),
    }
    assert found.index(Path("/run/netns/ll-fab")) < found.index(Path("/run/netns"))


def test_a_root_that_is_an_overlay_is_kept() -> None:
    assert foreign(parse("1 0 0:1 / / rw - overlay overlay rw"), [Path("/run")]) == ()
