"""Checks of the container engine and of the CDI files that give its containers GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from console.cli.doctor.access import MachineAccess
from console.cli.doctor.finding import Duty, Judged
from container_mgr.hardware.gpu_binding import CDI_KIND

CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
SOCKET = "/var/run/docker.sock"
OLDEST, NEWEST = (20, 10), 29
"""Versions of the Docker Engine whose interface the agent uses."""
CDI_SINCE, CDI_ON_SINCE = (25, 0), (28, 2)
_DRIVER = re.compile(r"\b\d{3,4}\.\d+(?:\.\d+)?\b")
_LIBRARY = re.compile(r"/lib(?:cuda|nvidia-)[^/]*\.so\.(\d{3,4}\.\d+(?:\.\d+)?)$")


@dataclass(slots=True, frozen=True)
class CdiFile:
    """A file that describes GPUs to the engine. ``paths`` are of this machine."""

    path: str
    names: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()

    @property
    def drivers(self) -> frozenset[str]:
        """The versions of the driver whose libraries it names."""
        return frozenset(m[1] for path in self.paths if (m := _LIBRARY.search(path)))


@dataclass(slots=True, frozen=True)
class EngineReport:
    """What the engine answers; ``problem`` when it does not.

    ``silent``: whether an engine is there is unknown.
    """

    problem: str = ""
    silent: bool = False
    version: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[CdiFile, ...] = ()
    absent: tuple[str, ...] = ()
    """Paths that a CDI file names and this machine lacks."""
    driver: str = ""

    @property
    def number(self) -> tuple[int, int] | None:
        """The engine's version; None when it is not said."""
        match = re.match(r"(\d+)\.(\d+)", str(self.version.get("Version", "")))
        return (int(match[1]), int(match[2])) if match else None

    @property
    def options(self) -> tuple[str, ...]:
        """The security options, each without what follows its name."""
        given = _list(self.info.get("SecurityOptions"))
        return tuple(str(option).partition(",")[0].removeprefix("name=") for option in given)

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of CDI files that the engine reads; none where CDI is off."""
        return tuple(map(str, _list(self.info.get("CDISpecDirs"))))

    @property
    def has_nvidia_runtime(self) -> bool:
        """Whether the engine can start containers by NVIDIA's runtime."""
        runtimes = self.info.get("Runtimes")
        return isinstance(runtimes, dict) and "nvidia" in runtimes


def read_engine(machine: MachineAccess, duty: Duty) -> EngineReport:
    """Ask the engine, and read the CDI files that it reads."""
    url = duty.options.get("--docker-host", "")
    place = url.removeprefix("unix://") if url.startswith("unix://") else SOCKET
    driver = driver_version(machine)
    if url and not url.startswith("unix://"):
        return EngineReport(f"the agent uses {url}, which is not asked", silent=True, driver=driver)
    version: Mapping[str, Any] = {}
    info: Mapping[str, Any] = {}
    problem, silent = "", False
    try:
        version = machine.engine(machine.at(place), "/version")
        info = machine.engine(machine.at(place), "/info")
    except (FileNotFoundError, ConnectionRefusedError):
        problem = f"none listens at {place}"
    except PermissionError:
        problem, silent = f"{place} cannot be opened by this user", True
    except OSError as error:
        problem, silent = f"{place}: {error}", True
    report = EngineReport(problem, silent, version, info, driver=driver)
    files = tuple(_read_cdi(machine, report.directories or CDI_DIRECTORIES))
    paths = dict.fromkeys(path for file in files for path in file.paths)
    absent = tuple(path for path in paths if not machine.at(path).exists())
    return replace(report, files=files, absent=absent)


def driver_version(machine: MachineAccess) -> str:
    """Return the version of the loaded NVIDIA driver; empty without one."""
    line = machine.text("proc/driver/nvidia/version").partition("\n")[0]
    match = _DRIVER.search(line)
    return match[0] if match else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _read_cdi(machine: MachineAccess, directories: Sequence[str]) -> Iterator[CdiFile]:
    for directory in directories:
        for name in machine.names(directory):
            if not name.endswith((".json", ".yaml", ".yml")):
                continue
            path = f"{directory}/{name}"
            text = machine.text(path)
            with suppress(ValueError, yaml.YAMLError, AttributeError, TypeError, KeyError):
                spec = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
                if spec.get("kind") == CDI_KIND:
                    yield _cdi_file(path, spec)


def _cdi_file(path: str, spec: Mapping[str, Any]) -> CdiFile:
    devices = spec.get("devices") or ()
    edits = [spec.get("containerEdits") or {}, *(d.get("containerEdits") or {} for d in devices)]
    mounts = [str(m["hostPath"]) for e in edits for m in e.get("mounts") or ()]
    nodes = [str(n.get("hostPath") or n["path"]) for e in edits for n in e.get("deviceNodes") or ()]
    return CdiFile(path, frozenset(str(d["name"]) for d in devices), (*mounts, *nodes))


def judge_engine(report: EngineReport, _: Duty) -> Iterator[Judged]:
    """Docker Engine answers, and not another engine behind its socket."""
    if report.problem:
        yield Judged(None if report.silent else False, report.problem)
        return
    components = _list(report.version.get("Components"))
    parts = [str(part.get("Name")) for part in components if isinstance(part, dict)]
    said = report.version.get("Version", "?")
    if any("podman" in part.lower() for part in parts):
        yield Judged(False, f"Podman {said} answers at Docker's socket")
    elif "Engine" in parts:
        api, least = report.version.get("ApiVersion"), report.version.get("MinAPIVersion")
        yield Judged(True, f"Docker Engine {said}, API {api} (least {least})")
    else:
        yield Judged(None, f"it does not say what it is: {', '.join(parts) or 'no components'}")


def judge_version(report: EngineReport, _: Duty) -> Iterator[Judged]:
    """The agent uses what this version of the engine offers."""
    number, said = report.number, str(report.version.get("Version"))
    if number is None:
        yield Judged(None, "the engine does not say its version")
    elif number[0] > NEWEST:
        yield Judged(
            None, f"{said} is newer than {NEWEST}, the newest whose interface was compared"
        )
    else:
        yield Judged(number >= OLDEST, said)


def judge_rootless(report: EngineReport, _: Duty) -> Iterator[Judged]:
    """The engine runs as root: the agent moves NICs into its containers."""
    if not report.info:
        yield Judged(None, "the engine does not say it")
    else:
        rootless = "rootless" in report.options
        yield Judged(not rootless, "rootless" if rootless else "the engine runs as root")


def judge_cgroup_driver(report: EngineReport, _: Duty) -> Iterator[Judged]:
    """The engine puts containers into control groups."""
    driver = report.info.get("CgroupDriver")
    known = driver in ("systemd", "cgroupfs")
    if not driver:
        yield Judged(None, "the engine does not say it")
    else:
        yield Judged(known, f"{driver}, cgroup version {report.info.get('CgroupVersion', '?')}")


def judge_image_store(report: EngineReport, _: Duty) -> Iterator[Judged]:
    """Says where images are kept; ids of images differ between the two kinds."""
    if not report.info:
        yield Judged(None, "the engine does not say it")
        return
    status = [str(pair) for pair in _list(report.info.get("DriverStatus"))]
    if any("driver-type" in pair and "io.containerd" in pair for pair in status):
        kind = "containerd: an image's id is the digest of its manifest"
    else:
        kind = f"{report.info.get('Driver')}: an image's id is the digest of its configuration"
    yield Judged(True, kind)


def judge_cdi(report: EngineReport, duty: Duty) -> Iterator[Judged]:
    """The engine can give a container one GPU."""
    if not any(e.gpu_uuid for e in duty.endpoints):
        return
    if not report.info:
        yield Judged(None, "the engine does not say it")
    elif report.directories:
        yield Judged(True, f"CDI, from {', '.join(report.directories)}")
    elif report.has_nvidia_runtime:
        yield Judged(True, "the nvidia runtime")
    else:
        yield Judged(False, "neither CDI nor the nvidia runtime", fix=_cdi_fix(report.number))


def judge_cdi_on(report: EngineReport, duty: Duty) -> Iterator[Judged]:
    """CDI is on: device nodes that the runtime's hook adds are lost when systemd reloads."""
    if any(e.gpu_uuid for e in duty.endpoints) and report.has_nvidia_runtime:
        is_on = bool(report.directories)
        yield Judged(is_on, "on" if is_on else "off", fix=_cdi_fix(report.number))


def _cdi_fix(number: tuple[int, int] | None) -> str:
    if number is not None and number < CDI_SINCE:
        return "Docker 25 or newer, or: nvidia-ctk runtime configure --runtime=docker"
    if number is not None and number < CDI_ON_SINCE:
        return '"features": {"cdi": true} in /etc/docker/daemon.json, then restart Docker'
    return 'remove "features": {"cdi": false} from /etc/docker/daemon.json, then restart Docker'


def judge_cdi_names(report: EngineReport, duty: Duty) -> Iterator[Judged]:
    """CDI files name each GPU of the site by its UUID."""
    if not report.directories:
        return
    names = frozenset[str]().union(*(file.names for file in report.files))
    for endpoint in duty.endpoints:
        if endpoint.gpu_uuid:
            is_named = endpoint.gpu_uuid in names
            said = "in a CDI file" if is_named else f"in none of {len(report.files)} CDI files"
            yield Judged(is_named, f"{endpoint.gpu_uuid} {said}", endpoint.name)


def judge_cdi_age(report: EngineReport, _: Duty) -> Iterator[Judged]:
    """CDI files are of the driver that is loaded."""
    for file in report.files:
        if not report.driver or not file.drivers:
            yield Judged(None, "names no library with a driver's version", file.path)
        else:
            said = f"of driver {', '.join(sorted(file.drivers))}; loaded: {report.driver}"
            yield Judged(file.drivers == {report.driver}, said, file.path)


def judge_cdi_paths(report: EngineReport, _: Duty) -> Iterator[Judged]:
    """All that the CDI files mount exists."""
    if report.files:
        few = ", ".join(report.absent[:3])
        count = sum(len(file.paths) for file in report.files)
        said = f"{len(report.absent)} of {count} absent: {few}" if report.absent else f"all {count}"
        yield Judged(not report.absent, said)


def judge_engine_proxy(report: EngineReport, _: Duty) -> Iterator[Judged]:
    """The engine's proxy has exceptions: a registry of the site is not behind it."""
    if not report.info:
        yield Judged(None, "the engine does not say it")
        return
    proxy = report.info.get("HttpsProxy") or report.info.get("HttpProxy")
    spared = report.info.get("NoProxy")
    if not proxy:
        yield Judged(True, "none")
    else:
        yield Judged(bool(spared), f"{proxy}, except for {spared or 'nothing'}")
