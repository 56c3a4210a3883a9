"""The checks of ``doctor``: each returns what it found, a verdict and a fix."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from console.cli.doctor.access import which
from console.cli.doctor.finding import CheckResult
from console.cli.doctor.server import examine_server

_DOCKER_SOCKET = Path("/var/run/docker.sock")
_PROGRAMS: Mapping[str, tuple[Sequence[str], str]] = {
    "Open vSwitch": (
        ("ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "ovsdb-tool"),
        "openvswitch-switch",
    ),
    "iproute2": (("ip", "tc"), "iproute2"),
}
_LEAST_DISK_BYTES = 6 * 2**30
_LEAST_MEMORY_BYTES = 4 * 2**30


def examine() -> list[CheckResult]:
    """Run every check. Only reads; needs no root."""
    checks: Sequence[Callable[[], CheckResult]] = (
        _system,
        _python,
        _root,
        *(lambda name=name: _programs(name) for name in _PROGRAMS),
        _docker,
        _image_builder,
        _cgroups,
        _cores,
        _memory,
        _disk,
        _plots,
        _nvml,
        _switches,
    )
    return [*(check() for check in checks), *examine_server()]


def _system() -> CheckResult:
    name = platform.system()
    found = f"{name} {platform.release()} {platform.machine()}"
    if name != "Linux":
        return CheckResult("system", "missing", found, "use Linux: the rack needs its namespaces")
    return CheckResult("system", "ok", found)


def _python() -> CheckResult:
    return CheckResult("Python", "ok", platform.python_version())


def _root() -> CheckResult:
    if os.geteuid() != 0:
        return CheckResult(
            "root", "warning", f"uid {os.geteuid()}", "run `testbed` and `demo` with sudo"
        )
    return CheckResult("root", "ok", "yes")


def _programs(name: str) -> CheckResult:
    programs, package = _PROGRAMS[name]
    missing = [program for program in programs if which(program) is None]
    if missing:
        return CheckResult(
            name, "missing", f"no {', '.join(missing)}", f"apt-get install {package}"
        )
    return CheckResult(name, "ok", ", ".join(programs))


def _docker() -> CheckResult:
    if _DOCKER_SOCKET.exists():
        return CheckResult("Docker Engine", "ok", f"{_DOCKER_SOCKET}")
    if which("dockerd") is None:
        return CheckResult("Docker Engine", "missing", "no dockerd", "apt-get install docker.io")
    return CheckResult("Docker Engine", "ok", "not running; the rack starts a private one")


def _image_builder() -> CheckResult:
    if which("mmdebstrap") is None:
        return CheckResult(
            "image builder",
            "warning",
            "no mmdebstrap; building the image needs a registry",
            "apt-get install mmdebstrap",
        )
    return CheckResult("image builder", "ok", "mmdebstrap")


def _cgroups() -> CheckResult:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return CheckResult("cgroups", "ok", "version 2")
    if (root / "freezer").exists() and (root / "cpu").exists():
        return CheckResult("cgroups", "ok", "version 1 with freezer and cpu")
    return CheckResult(
        "cgroups", "missing", "no freezer or no cpu controller", "mount /sys/fs/cgroup with both"
    )


def _cores() -> CheckResult:
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if count < 2:
        return CheckResult("CPU cores", "warning", str(count), "the demo is designed for 2 or more")
    return CheckResult("CPU cores", "ok", str(count))


def _memory() -> CheckResult:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = f"{total / 2**30:.1f} GiB"
    if total < _LEAST_MEMORY_BYTES:
        return CheckResult("memory", "warning", found, "six training containers need 4 GiB")
    return CheckResult("memory", "ok", found)


def _disk() -> CheckResult:
    place = Path("/var/lib/lightloom")
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / 2**30:.1f} GiB free at {place}"
    if free < _LEAST_DISK_BYTES:
        return CheckResult(
            "disk", "warning", found, "the trainer's image needs 6 GiB under /var/lib"
        )
    return CheckResult("disk", "ok", found)


def _plots() -> CheckResult:
    if find_spec("matplotlib") is None:
        return CheckResult("matplotlib", "warning", "absent", "pip install 'lightloom[testbed]'")
    return CheckResult("matplotlib", "ok", "present")


def _nvml() -> CheckResult:
    library = ctypes.util.find_library("nvidia-ml")
    if library is None:
        return CheckResult(
            "NVML",
            "emulated",
            "no libnvidia-ml.so; no telemetry of GPUs",
            "install the NVIDIA driver, which contains it",
        )
    return CheckResult("NVML", "ok", library)


def _switches() -> CheckResult:
    return CheckResult(
        "optical switch",
        "emulated",
        "the rack starts an emulator that speaks TL1 and forwards packets",
        "for a real one: put its URL into the site file and try `lightloom ocs show URL`",
    )
