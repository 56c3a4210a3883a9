"""Values of an installation: its parts, what a machine has of them, and the steps between both.

Paths are absolute and those of the installed machine, also when it lies below another folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

ROOT_USER = "root"


class Role(StrEnum):
    """What a machine does for a site; one machine can do both."""

    CONTROLLER = "controller"
    AGENT = "agent"

    @property
    def unit(self) -> str:
        """The name of the role's systemd unit."""
        return f"lightloom-{self}.service"


@dataclass(slots=True, frozen=True)
class Account:
    """A system account, made by systemd-sysusers from a line of sysusers.d(5)."""

    name: str
    line: str


@dataclass(slots=True, frozen=True)
class File:
    """A file that lightloom ships; one that is not ``ours`` belongs to the site once it exists."""

    path: str
    content: bytes
    mode: int = 0o644
    ours: bool = True


@dataclass(slots=True, frozen=True)
class Folder:
    """A folder of root's. ``group`` may read it; ``readers`` owns all files below it.

    The group cannot write in the folder, so no account but root chooses what is given to it.
    """

    path: str
    mode: int = 0o755
    group: str = ROOT_USER
    readers: str | None = None

    @property
    def private(self) -> bool:
        """Whether it is for keys and passwords, and all in it is the site's."""
        return not self.mode & 0o005


@dataclass(slots=True, frozen=True)
class State:
    """A folder that the unit makes. ``path`` may be a pattern of glob(7)."""

    path: str


@dataclass(slots=True, frozen=True)
class Unit:
    """The unit, as systemd knows it."""

    name: str


Part = Account | File | Folder | State | Unit


@dataclass(slots=True, frozen=True)
class Seen:
    """A path as it is. ``content`` is that of a regular file of a part, else None."""

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

    seen: Mapping[str, Seen]
    accounts: Mapping[str, tuple[int, int]]
    """uid and gid by name."""
    systemd: bool = False
    """systemd runs it, and can be told of changes."""
    outdated: frozenset[str] = frozenset()
    """Units whose files changed since systemd read them."""
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Existing folders by the pattern of a State."""


class Action(StrEnum):
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
        return self not in (Action.UNCHANGED, Action.KEPT)


@dataclass(slots=True, frozen=True)
class Step:
    """One part with its action; ``name`` is its path, or that of an account or unit."""

    action: Action
    part: Part
    name: str
    note: str = ""

    def document(self) -> dict[str, str]:
        """Return the step as ``-o json`` prints it."""
        kind = type(self.part).__name__.lower()
        return {"action": self.action, "kind": kind, "name": self.name, "note": self.note}
