"""Reads a container's CPU time and memory from its cgroup, at a cost that allows 1 Hz.

Both versions are supported: cgroup v1 (cpuacct.usage in ns, memory.usage_in_bytes) and
v2 (cpu.stat usage_usec, memory.current). Page cache that the kernel would drop first
(inactive_file) is not counted as memory, as `docker stats` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNIFIED = ""
"""The name of the single hierarchy of cgroup v2, as the kernel writes it."""
FREEZER = "freezer"
"""The name of the freezer of cgroup v1."""


@dataclass(slots=True, frozen=True)
class CgroupUsage:
    """The CPU time used since the cgroup was made, and the memory in use now."""

    cpu_ns: int
    memory_bytes: int


@dataclass(slots=True, frozen=True)
class Gauge:
    """The directories of one cgroup's figures. ``version`` is 1 or 2."""

    version: int
    cpu: Path
    memory: Path

    def read(self) -> CgroupUsage:
        """Return the current figures. OSError when the cgroup is gone."""
        if self.version == 1:
            cpu_ns = int((self.cpu / "cpuacct.usage").read_text(encoding="ascii"))
            used = int((self.memory / "memory.usage_in_bytes").read_text(encoding="ascii"))
            cache = _field(self.memory / "memory.stat", "total_inactive_file")
        else:
            cpu_ns = _field(self.cpu / "cpu.stat", "usage_usec") * 1000
            used = int((self.memory / "memory.current").read_text(encoding="ascii"))
            cache = _field(self.memory / "memory.stat", "inactive_file")
        return CgroupUsage(cpu_ns, max(0, used - cache))

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel killed for lack of memory. OSError."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return _field(self.memory / name, "oom_kill")


def locate(pid: int, proc: Path = Path("/proc")) -> Gauge:
    """Find the cgroup of ``pid``. OSError when the process is gone, LookupError when unmounted."""
    groups = Groups(pid, proc)
    if groups.has("cpuacct"):
        return Gauge(1, groups.directory("cpuacct"), groups.directory("memory"))
    unified = groups.directory(UNIFIED)
    return Gauge(2, unified, unified)


class Groups:
    """The cgroups of one process, as the kernel reports them; nothing is guessed."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        """Read them. OSError when the process is gone."""
        self._paths: dict[str, str] = {}
        for line in (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            self._paths.update(dict.fromkeys(controllers.split(","), path))
        self._mounts = list(_mounts(proc))

    def has(self, controller: str) -> bool:
        """Return whether a hierarchy of this controller is mounted and holds the process."""
        return controller in self._paths and any(name == controller for name, _ in self._mounts)

    def path(self, controller: str) -> str:
        """Return the path of the process's cgroup in a hierarchy. LookupError."""
        return self._paths[controller]

    def directory(self, controller: str, path: str | None = None) -> Path:
        """Return the directory of the process's cgroup, or of ``path``. LookupError."""
        wanted = PurePosixPath(self._paths[controller] if path is None else path)
        for name, (point, root) in self._mounts:
            if name == controller and wanted.is_relative_to(root) and ".." not in wanted.parts:
                return point / wanted.relative_to(root)
        raise LookupError(f"no mount shows cgroup {wanted}")


def freezer_mount(proc: Path = Path("/proc")) -> Path:
    """Return the mount of this machine's freezer. LookupError without a writable one."""
    mounts = {name: (point, writable) for name, (point, _), writable in _all_mounts(proc)}
    # Engines use the freezer of v1 where it is mounted.
    found = mounts.get(FREEZER) or mounts.get(UNIFIED)
    if found is None:
        raise LookupError("no hierarchy with a freezer is mounted")
    point, writable = found
    if not writable:
        raise LookupError(f"{point} is mounted read-only")
    return point


def freezer_hierarchies(proc: Path = Path("/proc")) -> list[tuple[int, Path]]:
    """Return version and mount of each hierarchy with a freezer that can be written.

    Of several mounts the one that shows most, and of those the first.
    """
    found: dict[int, tuple[Path, str]] = {}
    for name, (point, root), writable in _all_mounts(proc):
        version = {FREEZER: 1, UNIFIED: 2}.get(name)
        if version is None or not writable:
            continue
        if version not in found or len(root) < len(found[version][1]):
            found[version] = (point, root)
    return [(version, point) for version, (point, _) in sorted(found.items())]


def below(parent: str, container_id: str, proc: Path = Path("/proc")) -> list[Path]:
    """Return the cgroups of a container by its id, in the freezer's hierarchy and in v2's.

    ``parent`` is the path of the cgroup above it, or the name of a slice: ``a-b.slice`` is in
    ``a.slice`` (systemd.slice(5)). OSError.
    """
    words = parent.removesuffix(".slice").split("-") if parent.endswith(".slice") else []
    slices = ["-".join(words[: n + 1]) + ".slice" for n in range(len(words))]
    place = "/".join(slices) or parent.strip("/")
    found = []
    for name, (point, _) in _mounts(proc):
        if name in (FREEZER, UNIFIED) and (point / place).is_dir():
            found += [path for path in (point / place).iterdir() if container_id in path.name]
    return found


def _mounts(proc: Path) -> Iterator[tuple[str, tuple[Path, str]]]:
    """Yield (controller, (mount point, root of the mount)) of every mount."""
    for name, place, _ in _all_mounts(proc):
        yield name, place


def _all_mounts(proc: Path) -> Iterator[tuple[str, tuple[Path, str], bool]]:
    """Yield (controller, (mount point, root of the mount), whether it is writable)."""
    for line in (proc / "self" / "mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        root, point, flags = before.split(" ")[3:6]
        kind, _, options = after.split(" ", 2)
        names = [UNIFIED] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            yield name, (Path(point), root), "ro" not in flags.split(",")


def _field(path: Path, name: str) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
