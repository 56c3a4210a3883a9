"""Reads what is mounted, from the lines of ``/proc/PID/mountinfo`` (proc(5)). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_NOT_CONTROLLERS = {"rw", "ro", "xattr", "clone_children", "noprefix", "cpuset_v2_mode"}


@dataclass(slots=True, frozen=True)
class Mount:
    """One mount: where, of what kind, and the options of its file system."""

    target: Path
    kind: str
    options: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Hierarchy:
    """One hierarchy of control groups; ``controllers`` is empty in version 2."""

    target: Path
    controllers: tuple[str, ...]

    @property
    def unified(self) -> bool:
        """Whether it is a hierarchy of version 2."""
        return not self.controllers


def parse(text: str) -> tuple[Mount, ...]:
    """Return the mounts of a ``mountinfo``, in their order."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        target = before.split(" ")[4].encode("latin-1", "backslashreplace")
        kind, _, options = after.split(" ", 2)
        found.append(Mount(Path(target.decode("unicode_escape")), kind, tuple(options.split(","))))
    return tuple(found)


def hierarchies(mounts: Iterable[Mount]) -> tuple[Hierarchy, ...]:
    """Return every mounted hierarchy once, at its first place."""
    found: dict[tuple[str, ...], Hierarchy] = {}
    for mount in mounts:
        if mount.kind == "cgroup2":
            found.setdefault((), Hierarchy(mount.target, ()))
        elif mount.kind == "cgroup":
            names = tuple(_controllers(mount.options))
            if names:
                found.setdefault(names, Hierarchy(mount.target, names))
    return tuple(found.values())


def _controllers(options: Iterable[str]) -> Iterator[str]:
    for option in options:
        if option not in _NOT_CONTROLLERS and not option.startswith("release_agent="):
            yield option


def foreign(mounts: Iterable[Mount], private: Iterable[Path]) -> tuple[Path, ...]:
    """Return the mounts that a lane gives up, deepest first.

    These are those at or below ``private``, and namespaces and containers' file systems anywhere:
    a copy in a lane would keep another rack's alive.
    """
    places = tuple(private)
    found = [
        mount.target
        for mount in mounts
        if any(mount.target.is_relative_to(place) for place in places)
        or (mount.kind in ("nsfs", "overlay") and mount.target != Path("/"))
    ]
    return tuple(sorted(found, key=lambda target: len(target.parts), reverse=True))
