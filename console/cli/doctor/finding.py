"""The result of one check of ``doctor``, and what a machine is checked for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sitefile import CabledSite
    from sitefile.model import EndpointCable

State = Literal["ok", "emulated", "warning", "missing", "unknown"]


class CheckedRole(StrEnum):
    """What a machine is checked for."""

    RACK = "rack"
    AGENT = "agent"
    CONTROLLER = "controller"


@dataclass(slots=True, frozen=True)
class CheckResult:
    """One result. ``missing``: the role cannot be filled; ``emulated``: a stand-in is used.

    ``unknown``: it could not be read, and may be good or bad.
    """

    name: str
    state: State
    found: str
    fix: str = ""

    def document(self) -> dict[str, str]:
        """Return the finding as ``-o json`` prints it."""
        return asdict(self)


@dataclass(slots=True, frozen=True)
class Judged:
    """What a check says of one part of the machine. ``good`` None: it could not be read."""

    good: bool | None
    found: str
    part: str = ""
    """The NIC or GPU; empty for the machine."""
    fix: str = ""
    """Replaces the fix of the check."""


@dataclass(slots=True, frozen=True)
class Duty:
    """What the site file, and the daemon's file of options, assign to the machine."""

    role: CheckedRole
    site: CabledSite | None = None
    problem: str = ""
    """Why the site is not known."""
    server: str = ""
    """Name of the server that this machine is; empty when it is not known."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The daemon's, with the dashes."""

    @property
    def endpoints(self) -> tuple[EndpointCable, ...]:
        """The endpoints of this server that are not emulated."""
        every = self.site.endpoints if self.site else ()
        return tuple(e for e in every if e.server == self.server and not e.emulated)


def parse_options(text: str, variable: str) -> dict[str, str]:
    """Return the options in a file of variables; without the last line that sets them, none."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if name != variable or not equals:
            continue
        try:
            words = shlex.split(value)
            words = shlex.split(words[0]) if len(words) == 1 else words
        except ValueError:
            continue
        found = {}
        for word, following in zip(words, [*words[1:], ""], strict=True):
            option, equals, given = word.partition("=")
            if option.startswith("--"):
                found[option] = given if equals else "" if following[:2] == "--" else following
    return found
