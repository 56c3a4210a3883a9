"""Lanes hold racks apart, and go without a trace however they end."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from testbed import lanes
from testbed.demo import PAPER_SITE
from testbed.lanes import RackLane, cgroups, clone, record
from testbed.rack import RUN_DIR, remains
from tests.integration import waiting

pytestmark = pytest.mark.root

NAME = f"t{os.getpid()}"
UP_S = 240
LIGHTLOOM = str(Path(sys.executable).with_name("lightloom"))


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    lanes.end(NAME)


@pytest.fixture
def lane() -> RackLane:
    return lanes.create(NAME, ports=[8470])


def inside(*argv: str, name: str = NAME) -> str:
    done = subprocess.run(
        lanes.command(name, argv), capture_output=True, text=True, timeout=UP_S, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def start_inside(script: str) -> int:
    """Start a shell that outlives its starter; return its pid inside."""
    return int(inside("sh", "-c", f"({script}) >/dev/null 2>&1 & echo $!"))


def groups_inside() -> list[Path]:
    """The roots of the hierarchies, which the lane has at the same places."""
    return [hierarchy.target for hierarchy in cgroups.mounted()]


def traces() -> list[str]:
    """What the machine shows of the lane, found without the lane's own code."""
    found = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"ll-lane-{NAME}")]
    found += [str(path) for path in (record.folder(NAME), clone.folder(NAME)) if path.exists()]
    found += [
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if str(clone.folder(NAME)) in line
    ]
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if f"ll-lane-{NAME}" in (entry / "cgroup").read_text() and not is_dead(entry):
                    found.append(f"process {(entry / 'cmdline').read_bytes()!r}")
    return found


def is_dead(entry: Path) -> bool:
    """Whether only its parent has not looked yet."""
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"


def gone(condition: Callable[[], object]) -> None:
    waiting.until(lambda: not condition(), bool, limit_s=30, pause_s=0.05)


def test_a_lane_has_its_own_system(lane: RackLane) -> None:
    assert inside("cat", "/proc/1/comm") == Path(f"/proc/{lane.first}/comm").read_text()
    links = inside("sh", "-c", "ls /sys/class/net; ls /run").split()
    assert links == ["lo", "lock"]
    assert not [line for line in inside("cat", "/proc/self/cgroup").split() if "ll-lane" in line]
    for kind in ("mnt", "net", "pid", "ipc", "uts", "cgroup"):
        assert inside("readlink", f"/proc/self/ns/{kind}").strip() != str(
            Path(f"/proc/self/ns/{kind}").readlink()
        )


def test_a_program_in_a_lane_ends_as_it_would_outside(lane: RackLane, tmp_path: Path) -> None:
    def status(*argv: str) -> int:
        done = subprocess.run(
            lanes.command(NAME, argv), cwd=tmp_path, check=False, stderr=subprocess.PIPE
        )
        return done.returncode

    assert status("sh", "-c", "exit 3") == 3
    assert status("sh", "-c", "kill -9 $$") == -9
    assert status("no-such-program") == 127
    assert status("sh", "-c", f"test $PWD = {tmp_path}") == 0


def test_the_port_of_a_lane_reaches_its_loopback(lane: RackLane, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("inside")
    words = [sys.executable, "-m", "http.server", "8470", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        lanes.command(NAME, words), cwd=tmp_path, stderr=subprocess.DEVNULL
    ) as server:
        url = f"http://127.0.0.1:{lane.ports[8470]}/"

        def read() -> str:
            with suppress(httpx.HTTPError):
                return httpx.get(url, trust_env=False).text
            return ""

        waiting.until(read, lambda text: text == "inside", limit_s=30, pause_s=0.1)
        server.terminate()


def freeze(pid: int) -> None:
    """Freeze a process in a group of its own inside, as an agent freezes containers."""
    script = """
    if [ -d /sys/fs/cgroup/freezer ]; then group=/sys/fs/cgroup/freezer/ll-c-x file=freezer.state
    else group=/sys/fs/cgroup/ll-c-x file=cgroup.freeze; fi
    mkdir -p $group && echo $1 > $group/cgroup.procs
    [ $file = freezer.state ] && echo FROZEN > $group/$file || echo 1 > $group/$file
    """
    inside("sh", "-c", script, "sh", str(pid))


@pytest.mark.parametrize(
    ("killed", "frozen"),
    [
        ("nobody", False),
        ("both", True),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in itertools.product(("nobody", "keeper", "first", "both"), (False, True))
            if case not in (("nobody", False), ("both", True))
        ),
    ],
)
def test_a_lane_goes_without_a_trace(killed: str, frozen: bool) -> None:
    made = lanes.create(NAME)
    inside("sh", "-c", "ip netns add ll-x && ip link add ll-y type veth peer name ll-z netns ll-x")
    sleeper = start_inside("sleep 600")
    if frozen:
        freeze(sleeper)
    assert traces()
    for which, pid in (("keeper", made.keeper), ("first", made.first)):
        if killed in (which, "both"):
            os.kill(pid, signal.SIGKILL)
    if killed == "nobody":
        lanes.end(NAME)
    elif killed == "first":
        gone(lambda: record.folder(NAME).exists())
    else:
        gone(lambda: record.holds(made.keeper, NAME))
        assert NAME in lanes.sweep()
    assert traces() == []
    assert not lanes.sweep()


def test_what_has_no_record_is_removed(lane: RackLane) -> None:
    """As after a start of the machine, which empties /run."""
    os.kill(lane.keeper, signal.SIGKILL)
    gone(lambda: record.holds(lane.keeper, NAME))
    record.forget(NAME)
    assert traces()
    assert lanes.sweep() == (NAME,)
    assert traces() == []


def test_a_lane_ends_with_its_owner() -> None:
    owner = subprocess.Popen(["sleep", "600"])
    lanes.create(NAME, owner=owner.pid)
    owner.kill()
    owner.wait()
    gone(traces)


def test_a_name_is_given_once(lane: RackLane) -> None:
    with pytest.raises(lanes.LaneError) as caught:
        lanes.create(NAME)
    assert caught.value.code == "conflict"
    assert lanes.find(NAME) == lane


def test_another_racks_clean_up_leaves_a_lane_alone(lane: RackLane) -> None:
    """A rack in a lane has the same names, marker and control groups as the one outside."""
    groups = [f"{top}/ll-rack" for top in groups_inside()]
    inside("mkdir", *groups)
    inside("ip", "netns", "add", "ll-srv0")
    pid = start_inside(f"LIGHTLOOM_RACK={RUN_DIR} exec sleep 600")
    assert remains.find(RUN_DIR).empty
    remains.end_processes(RUN_DIR, grace_s=1)
    remains.remove_kernel_objects(RUN_DIR)
    inside("test", "-d", f"/proc/{pid}")
    inside("ip", "netns", "exec", "ll-srv0", "true")
    inside("ls", *groups)


def test_two_racks_run_side_by_side(lane: RackLane) -> None:
    other = f"{NAME}b"
    lanes.create(other)
    try:
        words = [LIGHTLOOM, "testbed", "up", "--site", str(PAPER_SITE)]
        starts = [
            subprocess.Popen(lanes.command(name, words), stdout=subprocess.DEVNULL)
            for name in (NAME, other)
        ]
        assert [start.wait(UP_S) for start in starts] == [0, 0]
        for name in (NAME, other):
            job = [LIGHTLOOM, "submit", "-n", "2", "--name", f"on-{name}", "--wait"]
            inside(*job, "--", "true", name=name)
            assert f"on-{name}" in inside(LIGHTLOOM, "get", "jobs", name=name)
        lanes.end(other)
        assert f"on-{NAME}" in inside(LIGHTLOOM, "get", "jobs")
    finally:
        lanes.end(other)
    began = time.monotonic()
    lanes.end(NAME)
    assert time.monotonic() - began < 60
    assert traces() == []
