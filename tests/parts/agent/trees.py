"""Cgroups of Slurm as plain files, and a /proc beside them."""

from __future__ import annotations

from pathlib import Path

from container_mgr.kernel.freezer import Freezer, FreezerState
from container_mgr.scopes.slurm import SlurmGroups

ROOT_NET, AGENT_NET = "net:[1]", "net:[2]"


class Tree:
    """One hierarchy; ``version`` is 1 or 2."""

    def __init__(self, directory: Path, version: int) -> None:
        self.version = version
        self.root = directory / f"cgroup{version}"
        self.proc = directory / "proc"
        self.sysfs = directory / "sys"
        self.root.mkdir(parents=True)
        for name, net in (("1", ROOT_NET), ("self", AGENT_NET)):
            self._process(name, net)

    def groups(self, *nodes: str) -> SlurmGroups:
        return SlurmGroups([(self.version, self.root)], nodes, self.proc)

    def top(self, node: str = "") -> Path:
        """Return the directory that has a node's jobs; slurmd makes it when it starts."""
        if self.version == 1:
            path = self.root / (f"slurm_{node}" if node else "slurm") / "uid_1000"
        else:
            name = f"{node}_slurmstepd.scope" if node else "slurmstepd.scope"
            path = self.root / "system.slice" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def step(self, job: int, step: str = "0", node: str = "") -> Freezer:
        """Begin a step; return the cgroup of its processes."""
        directory = self.top(node) / f"job_{job}" / f"step_{step}"
        group = directory if self.version == 1 else directory / "user"
        group.mkdir(parents=True)
        if self.version == 2:
            (directory / "slurm").mkdir()
        return freezable(group, self.version)

    def process(self, pid: int, net: str, group: Path | None = None) -> None:
        """Add a process of this network namespace to a cgroup."""
        self._process(str(pid), net)
        (self.proc / str(pid) / "net").mkdir()
        (self.proc / str(pid) / "net" / "sockstat").write_text("TCP: inuse 0\n")
        if group is not None:
            with (group / "cgroup.procs").open("a") as procs:
                procs.write(f"{pid}\n")

    def stepd(self, pid: int, title: str, cgroup: str) -> None:
        """Add a slurmstepd, with its command line and the path of its cgroup."""
        self.process(pid, ROOT_NET)
        (self.proc / str(pid) / "cmdline").write_bytes(title.encode() + b"\0\0")
        name = "7:freezer" if self.version == 1 else "0:"
        (self.proc / str(pid) / "cgroup").write_text(f"{name}:{cgroup}\n4:memory:/slurm/job_7\n")

    def _process(self, name: str, net: str) -> None:
        ns = self.proc / name / "ns"
        ns.mkdir(parents=True)
        (ns / "net").symlink_to(net)
        if name == "self":
            kind = "cgroup cgroup rw,freezer" if self.version == 1 else "cgroup2 cgroup2 rw"
            (self.proc / "self" / "mountinfo").write_text(f"30 25 0:26 / {self.root} rw - {kind}\n")


def freezable(group: Path, version: int) -> Freezer:
    """Give a directory the files of a thawed cgroup; the kernel is played by :func:`obey`."""
    if version == 1:
        (group / "freezer.state").write_text("THAWED\n")
    else:
        (group / "cgroup.freeze").write_text("0\n")
        (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (group / "cgroup.procs").write_text("")
    return Freezer(version, group)


def obey(*freezers: Freezer) -> None:
    """Do as the kernel with cgroup v2: report what was asked for. v1 has one file for both."""
    for one in freezers:
        if one.version == 2:
            asked = (one.group / "cgroup.freeze").read_text()[0]
            (one.group / "cgroup.events").write_text(f"populated 1\nfrozen {asked}\n")


def asked(one: Freezer) -> bool:
    """Return whether the kernel was asked to freeze."""
    if one.version == 1:
        return (one.group / "freezer.state").read_text().strip() == FreezerState.FROZEN
    return (one.group / "cgroup.freeze").read_text().startswith("1")
