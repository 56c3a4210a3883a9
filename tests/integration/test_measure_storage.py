"""The probes of volumes on a real disk: ext4 on a loop device, fio, and the kernel's limits of I/O.

A limit is a cgroup around the probe, as the engine makes one around a container.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from measure.envelope import Body
from measure.kinds import Line, MeasuredEndpoint, MeasuredSite, MeasurementKind, RunEnd
from measure.loading.kind import INPUT
from measure.storage.kind import STORAGE

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
FABRIC = MeasuredSite([MeasuredEndpoint("gpu0", "s0", "as0")])
LIMIT_BPS = 20_000_000
V1, V2 = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")


def run(*argv: str) -> str:
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


class Disk:
    """An ext4 on a loop device that passes the page cache by, mounted at ``at``."""

    def __init__(self, folder: Path) -> None:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(256 * 2**20)
        self.at = folder / "volume"
        self.at.mkdir()
        run("mkfs.ext4", "-q", str(image))
        self.device = run("losetup", "--direct-io=on", "--find", "--show", str(image))
        run("mount", self.device, str(self.at))

    @property
    def number(self) -> str:
        found = Path(self.device).stat().st_rdev
        return f"{os.major(found)}:{os.minor(found)}"

    def remove(self) -> None:
        run("umount", "--lazy", str(self.at))
        run("losetup", "--detach", self.device)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def limited(disk: Disk) -> Iterator[Path]:
    """A cgroup that limits this disk; yields the file that takes its processes."""
    version_1 = V1.is_dir()
    group = (V1 if version_1 else V2) / f"ll-measure-{os.getpid()}"
    if not version_1:
        (V2 / "cgroup.subtree_control").write_text("+io")
    group.mkdir()
    try:
        if version_1:
            for name in ("read", "write"):
                limit = group / f"blkio.throttle.{name}_bps_device"
                limit.write_text(f"{disk.number} {LIMIT_BPS}")
        else:
            (group / "io.max").write_text(f"{disk.number} rbps={LIMIT_BPS} wbps={LIMIT_BPS}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def start(argv: Sequence[str], group: Path | None = None) -> subprocess.Popen[str]:
    """Start a probe as rank 0 of a job; the shell enters the group before it becomes the probe."""
    enter = f"echo $$ > {group}; " if group else ""
    return subprocess.Popen(
        ["sh", "-c", f'{enter}exec "$@"', "sh", sys.executable, *argv[1:]],
        cwd=ROOT,
        env={
            **os.environ,
            "LIGHTLOOM_JOB": "measure-m1",
            "LIGHTLOOM_RANK": "0",
            "LIGHTLOOM_ADDRESSES": "127.0.0.1",
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def command(kind: MeasurementKind, given: dict[str, Any], volume: Path) -> Sequence[str]:
    """Return a run's command, with the volume where it is on this machine."""
    (first,) = kind.runs(kind.settings(given, FABRIC), FABRIC, 1)
    plan = {**json.loads(first.command[-1]), "directory": str(volume)}
    return [*first.command[:-1], json.dumps(plan)]


def measured(
    kind: MeasurementKind, given: dict[str, Any], volume: Path, group: Path | None = None
) -> Body:
    probe = start(command(kind, given, volume), group)
    try:
        output, _ = probe.communicate(timeout=60)
    finally:
        probe.kill()
    lines = [Line(0, 0, json.loads(line)) for line in output.splitlines()]
    end = RunEnd(completed=probe.returncode == 0)
    return kind.body(kind.settings(given, FABRIC), FABRIC, 1, lines, [end])


SMALL = {"volume": "results", "size": "32m", "workers": 4, "io_bytes": "64k", "rw": "read"}


def test_a_limit_shows_in_the_rows_and_the_disk_answered(disk: Disk, limited: Path) -> None:
    given = {**SMALL, "rw": "randread,randwrite", "runtime_s": 4, "ramp_s": 1, "repetitions": 4}
    result = measured(STORAGE, given, disk.at, limited)
    assert result.invalid_because == []
    for row in result.rows:
        # A disk without the limit is many times as fast; a busy machine may not use all of it.
        assert LIMIT_BPS / 2 < row["bytes_per_s"] < LIMIT_BPS * 1.03
        assert row["cached_share"] <= 0.01
        assert row["latency_s"]["p99"] > 0
    assert result.tool.version
    assert [path.name for path in disk.at.iterdir()] == ["lost+found"]


def test_memory_is_refused_with_the_reason() -> None:
    result = measured(STORAGE, SMALL, Path("/dev/shm"))
    assert "tmpfs has no block device" in result.invalid_because[0]
    assert {row["bytes_per_s"] for row in result.rows} == {None}


def test_what_a_killed_probe_left_is_removed_by_the_next(disk: Disk) -> None:
    probe = start(command(STORAGE, {**SMALL, "runtime_s": 60}, disk.at))
    assert probe.stdout is not None
    made = disk.at / "ll-fio-measure-m1-0" / "data"
    fio = ""
    deadline = threading.Event()
    for _ in range(300):
        children = Path(f"/proc/{probe.pid}/task/{probe.pid}/children").read_text().split()
        if children and (made.exists() and made.stat().st_size == 32 * 2**20):
            fio = children[0]
            break
        deadline.wait(0.1)
    assert fio, "fio runs"
    probe.send_signal(signal.SIGKILL)
    os.killpg(int(fio), signal.SIGKILL)  # the kernel ends a container's other processes as well
    with probe:
        probe.wait(20)
    assert made.exists()
    given = {**SMALL, "runtime_s": 0.4, "ramp_s": 0, "repetitions": 2}
    assert measured(STORAGE, given, disk.at).rows[0]["bytes_per_s"] > 0
    assert [path.name for path in disk.at.iterdir()] == ["lost+found"]


def test_a_full_disk_is_the_reason_and_nothing_is_left(disk: Disk) -> None:
    result = measured(STORAGE, {**SMALL, "size": "1g"}, disk.at)
    assert "No space left on device" in result.invalid_because[0]
    assert [path.name for path in disk.at.iterdir()] == ["lost+found"]


def test_a_slow_disk_starves_a_training(disk: Disk, limited: Path) -> None:
    given = {
        **{"volume": "results", "data": "16m", "sample": "128k", "batch": 8, "step_ms": 10},
        **{"decode_ms": 0, "seconds": 1, "blocks": 2},
    }
    result = measured(INPUT, given, disk.at, limited)
    (row,) = result.rows
    assert row["limit"] == "input"
    assert row["ceiling_bytes_per_s"] < 2 * LIMIT_BPS
    assert row["cached_share"] <= 0.01
    assert "MB/s" in row["remedy"]
    assert [path.name for path in disk.at.iterdir()] == ["lost+found"]
