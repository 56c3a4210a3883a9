"""Finds the cgroups in which Slurm keeps the processes of a job's steps.

cgroup v1, hierarchy of the freezer, with ``ProctrackType=proctrack/cgroup``::

    slurm[_NODE] / uid_U / job_J / step_S

cgroup v2, below the slice of slurmd's scope (``system.slice``)::

    [NODE_]slurmstepd.scope/job_J/step_S/user/task_N

The part with a node's name is there when Slurm is built for several slurmd on a server. Only a step
(v1) or its ``user`` (v2) may be frozen, never the job: slurmstepd, which answers Slurm and ends the
job, is in ``job_J`` itself on v1 and in ``step_S/slurm`` on v2.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from base.engines import NUMBERS
from container_mgr.kernel.cgroup import FREEZER, UNIFIED, Groups
from container_mgr.kernel.freezer import Freezer
from container_mgr.scopes.groups import NODE, Steps
from container_mgr.values import AgentError

KIND = "slurm"

MAX_DIRECTORIES = 4096
"""Of Slurm, that one call looks at."""
MEND = "set ProctrackType=proctrack/cgroup in slurm.conf and restart slurmd"

_TOP = re.compile(rf"slurm(?:_({NODE.pattern}))?")
_SCOPE = re.compile(rf"(?:({NODE.pattern})_)?slurmstepd\.scope")
_SLICE = re.compile(r"[A-Za-z0-9:_.\\-]{1,128}\.slice")
_USER = re.compile(r"uid_[0-9]{1,10}")
_JOB = re.compile(f"job_({NUMBERS[KIND]})")
_STEP = re.compile(r"step_[A-Za-z0-9_.+-]{1,64}")
_TITLE = re.compile(rf"slurmstepd: \[({NUMBERS[KIND]})\b".encode())
"""What slurmstepd shows as its command line: the job, and its step after a point."""
_MAX_TITLE = 64
"""A process that cannot be dumped belongs to root as well, and makes its line as it likes."""


class SlurmGroups:
    """Looks them up at each call, which reads directories and waits for nothing."""

    kind = KIND

    def __init__(
        self,
        hierarchies: Sequence[tuple[int, Path]],
        nodes: Collection[str] = (),
        proc: Path = Path("/proc"),
    ) -> None:
        """Take version and directory of each hierarchy that has a freezer.

        With ``nodes`` the cgroups that name another node are another agent's. Those that name
        none always count.
        """
        self._hierarchies = tuple(hierarchies)
        self._nodes = frozenset(nodes)
        self._proc = proc

    def steps(self, job: str) -> Steps:
        """Find the steps of one job. Raises AgentError when there are too many directories."""
        walk = _Walk()
        found: list[Freezer] = []
        known = False
        for version, places in self._places(walk):
            known = True
            for place in places:
                found += _steps(walk, version, place / f"job_{job}")
        return Steps(tuple(found), known)

    def jobs(self) -> dict[str, list[Freezer]]:
        """Find the steps of all jobs. Raises AgentError when there are too many directories."""
        walk = _Walk()
        found: dict[str, list[Freezer]] = {}
        for version, places in self._places(walk):
            for place in places:
                for job, path in walk.below(place, _JOB):
                    found.setdefault(job, []).extend(_steps(walk, version, path))
        return found

    def check_absent(self, job: str, *, known: bool) -> None:
        """Raise AgentError unless it is sure that no process of the job runs on this server."""
        why = ""
        if not known:
            why = (
                "Slurm has no cgroups with a freezer on this server: the plugin proctrack/cgroup is"
                " missing, slurmd does not run, or --observe-nodes leaves out its node"
            )
        elif self.untracked(job):
            why = (
                "its processes are in no cgroup of their own: the plugin proctrack/cgroup is"
                " missing"
            )
        if why:
            raise AgentError("not_found", f"scope/{KIND}:{job}", why, MEND)

    def untracked(self, job: str) -> bool:
        """Whether a slurmstepd of the job runs here whose job has no cgroup. Reads all processes.

        Slurm then follows the processes of its steps without cgroups.
        """
        return any(
            entry.name.isdecimal() and self._untracked(entry, job) for entry in self._proc.iterdir()
        )

    def _untracked(self, entry: Path, job: str) -> bool:
        with suppress(OSError):  # it has ended
            # Another user's process may call itself so.
            if entry.stat().st_uid != 0:
                return False
            with (entry / "cmdline").open("rb", buffering=0) as file:
                title = _TITLE.match(file.read(_MAX_TITLE))
            if title is None or title[1] != job.encode():
                return False
            groups = Groups(int(entry.name), self._proc)
            for controller in (FREEZER, UNIFIED):
                with suppress(LookupError):
                    if f"job_{job}" in PurePosixPath(groups.path(controller)).parts:
                        return False
            return True
        return False

    def _places(self, walk: _Walk) -> Iterator[tuple[int, list[Path]]]:
        """Yield the version and the directories that have directories of jobs."""
        for version, root in self._hierarchies:
            if version == 1:
                for _, top in self._mine(walk.below(root, _TOP)):
                    yield 1, [path for _, path in walk.below(top, _USER)]
            else:
                for path in _slices(walk, root):
                    for _, scope in self._mine(walk.below(path, _SCOPE)):
                        yield 2, [scope]

    def _mine(self, found: Iterator[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
        for node, path in found:
            if not node or not self._nodes or node in self._nodes:
                yield node, path


class _Walk:
    """Lists directories; stops at a limit for all of them together."""

    def __init__(self) -> None:
        self._left = MAX_DIRECTORIES

    def below(self, path: Path, name: re.Pattern[str]) -> Iterator[tuple[str, Path]]:
        """Yield the real directories with such a name, each with the part in the brackets."""
        try:
            with os.scandir(path) as entries:
                names = [
                    match
                    for entry in entries
                    if (match := name.fullmatch(entry.name)) and entry.is_dir(follow_symlinks=False)
                ]
        except OSError:  # it has ended
            return
        self._left -= len(names)
        if self._left < 0:
            raise AgentError(
                "failed",
                str(path),
                f"Slurm has more than {MAX_DIRECTORIES} cgroups on this server",
                "are there cgroups of ended jobs? slurmd removes them when it starts",
            )
        for match in sorted(names, key=lambda m: m.string):
            yield (match[1] or "") if match.re.groups else "", path / match.string


def _slices(walk: _Walk, root: Path) -> Iterator[Path]:
    """Yield the root, its slices and theirs: a slice ``a-b.slice`` is in ``a.slice``."""
    yield root
    for _, outer in walk.below(root, _SLICE):
        yield outer
        for _, inner in walk.below(outer, _SLICE):
            yield inner


def _steps(walk: _Walk, version: int, job: Path) -> Iterator[Freezer]:
    if not _is_directory(job):
        return
    for _, step in walk.below(job, _STEP):
        if version == 1:
            yield Freezer(1, step)
        elif _is_directory(step / "user"):
            yield Freezer(2, step / "user")


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False
