"""Values of an installation: its parts, what a machine has of them, and the steps between both.

Paths are absolute paths of the installed machine, also when it lies below another folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

ROOT_USER = "root"


class MachineRole(StrEnum):
    """What a machine does for a site; one machine can do both."""

    CONTROLLER = "controller"
    AGENT = "agent"

    @property
    def unit(self) -> str:
        """The name of the role's systemd unit."""
        return f"lightloom-{self}.service"


@dataclass(slots=True, frozen=True)
class SystemAccount:
    """A system account, made by systemd-sysusers from a line of sysusers.d(5)."""

    kind: ClassVar = "account"
    name: str
    line: str


@dataclass(slots=True, frozen=True)
class File:
    """A file that lightloom ships; one that is not ``ours`` belongs to the site once it exists."""

    kind: ClassVar = "file"
    path: str
    content: bytes
    mode: int = 0o644
    ours: bool = True


@dataclass(slots=True, frozen=True)
class InstalledFolder:
    """A folder of root's. ``group`` may read it; ``readers`` owns all files below it.

    The group cannot write in the folder, so no account but root chooses what is given to it.
    """

    kind: ClassVar = "folder"
    path: str
    mode: int = 0o755
    group: str = ROOT_USER
    readers: str | None = None

    @property
    def private(self) -> bool:
        """Whether it is for keys and passwords, and all in it is the site's."""
        return not self.mode & 0o005


@dataclass(slots=True, frozen=True)
class StateDirectory:
    """A folder that the unit makes. ``path`` may be a pattern of glob(7)."""

    kind: ClassVar = "state"
    path: str


@dataclass(slots=True, frozen=True)
class SystemdUnit:
    """A unit under its name in systemd."""

    kind: ClassVar = "unit"
    name: str


Part = SystemAccount | File | InstalledFolder | StateDirectory | SystemdUnit


@dataclass(slots=True, frozen=True)
class PathStatus:
    """The status of a path. ``content`` is set for regular files of parts only."""

    mode: int
    uid: int
    gid: int
    content: bytes | None = None
    strangers: tuple[str, ...] = ()
    """Files and folders below it with another owner, group or mode than they should have."""
    entries: tuple[str, ...] = ()
    """The names in a folder, sorted."""


@dataclass(slots=True, frozen=True)
class Machine:
    """What a machine has of the parts of both roles."""

    seen: Mapping[str, PathStatus]
    accounts: Mapping[str, tuple[int, int]]
    """uid and gid by name."""
    systemd: bool = False
    """systemd runs it, and can reload units."""
    outdated: frozenset[str] = frozenset()
    """Units whose files changed since systemd read them."""
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Existing folders by the pattern of a StateDirectory."""


class StepAction(StrEnum):
    """What happens to a part, or what was found of it."""

    CREATED = "created"
    REPLACED = "replaced"
    CORRECTED = "corrected"
    RELOADED = "reloaded"
    STOPPED = "stopped"
    REMOVED = "removed"
    UNCHANGED = "unchanged"
    KEPT = "kept"

    @property
    def changes(self) -> bool:
        """Whether something changes on the machine."""
        return self not in (StepAction.UNCHANGED, StepAction.KEPT)


@dataclass(slots=True, frozen=True)
class Step:
    """One part with its action; ``name`` is the path, or the name of the account or unit."""

    action: StepAction
    part: Part
    name: str
    note: str = ""

    def document(self) -> dict[str, str]:
        """Return the step as ``-o json`` prints it."""
        return {
            "action": self.action,
            "kind": self.part.kind,
            "name": self.name,
            "note": self.note,
        }
