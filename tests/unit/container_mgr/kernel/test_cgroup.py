from __future__ import annotations

from pathlib import Path

import pytest

from container_mgr.kernel.cgroup import freezer_hierarchies, locate


def proc(tmp_path: Path, cgroup: str, mountinfo: str) -> Path:
    base = tmp_path / "proc"
    (base / "42").mkdir(parents=True)
    (base / "self").mkdir()
    (base / "42" / "cgroup").write_text(cgroup)
    (base / "self" / "mountinfo").write_text(mountinfo)
    return base


def test_version_1_with_separate_controllers(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpuacct/ll/x", tmp_path / "memory/ll/x"
    cpu.mkdir(parents=True)
    memory.mkdir(parents=True)
    (cpu / "cpuacct.usage").write_text("5000\n")
    (memory / "memory.usage_in_bytes").write_text("900\n")
    (memory / "memory.stat").write_text("cache 1\ntotal_inactive_file 200\n")
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    base = proc(
        tmp_path,
        "4:memory:/ll/x\n3:cpuacct:/ll/x\n2:cpu:/ll/x\n0::/\n",
        f"30 25 0:26 / {tmp_path}/cpuacct rw - cgroup cgroup rw,cpuacct\n"
        f"31 25 0:27 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n",
    )
    gauge = locate(42, base)
    assert gauge.version == 1
    assert (gauge.read().cpu_ns, gauge.read().memory_bytes) == (5000, 700)
    assert gauge.oom_kills() == 2


def test_version_1_with_joined_controllers_and_a_mount_root(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu,cpuacct/x", tmp_path / "memory/x"
    cpu.mkdir(parents=True)
    memory.mkdir(parents=True)
    base = proc(
        tmp_path,
        "3:cpu,cpuacct:/docker/outer/x\n4:memory:/docker/outer/x\n",
        f"30 25 0:26 /docker/outer {tmp_path}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"31 25 0:27 /docker/outer {tmp_path}/memory rw - cgroup cgroup rw,memory\n",
    )
    gauge = locate(42, base)
    assert (gauge.cpu, gauge.memory) == (cpu, memory)


def test_version_2(tmp_path: Path) -> None:
    group = tmp_path / "cgroup/ll-rack.slice/x"
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text("usage_usec 7\nuser_usec 3\n")
    (group / "memory.current").write_text("900\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 1000\n")
    (group / "memory.events").write_text("max 4\noom 1\noom_kill 1\n")
    base = proc(
        tmp_path,
        "0::/ll-rack.slice/x\n",
        f"30 25 0:26 / {tmp_path}/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
    )
    gauge = locate(42, base)
    assert gauge.version == 2
    assert (gauge.read().cpu_ns, gauge.read().memory_bytes) == (7000, 0)
    assert gauge.oom_kills() == 1


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cgroup"):
        locate(42, tmp_path)


def test_hierarchies_with_a_freezer(tmp_path: Path) -> None:
    base = proc(
        tmp_path,
        "0::/\n",
        "30 25 0:26 /docker /chroot/freezer rw - cgroup cgroup rw,freezer\n"
        "31 25 0:26 / /sys/fs/cgroup/freezer rw,nosuid - cgroup cgroup rw,freezer\n"
        "32 25 0:26 / /later/freezer rw - cgroup cgroup rw,freezer\n"
        "33 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "34 25 0:28 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n"
        "35 25 0:28 /x /seen rw - cgroup2 cgroup2 rw\n",
    )
    found = [(1, Path("/sys/fs/cgroup/freezer")), (2, Path("/seen"))]
    assert freezer_hierarchies(base) == found
