"""Authorisation: roles, verbs, and the one function that decides. Pure; denies by default.

A *verb* is what a route does (``jobs:change``), a *role* is a set of verbs, and a *project* owns
jobs. Admins and operators see the whole site; to users and viewers only their own projects exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

ALL_PROJECTS = "*"
"""In a list of projects: every project, also those created later."""


class Role(StrEnum):
    """The role of a person or program."""

    ADMIN = "admin"
    """Everything, including people and the audit trail."""
    OPERATOR = "operator"
    """The whole fabric and every job, but not people."""
    USER = "user"
    """Jobs of the projects the person belongs to."""
    VIEWER = "viewer"
    """Read access to the projects the person belongs to."""
    ENGINE = "engine"
    """The hook of another engine: reports that a job has got endpoints, and reads nothing."""


_READERS = frozenset({Role.ADMIN, Role.OPERATOR, Role.USER, Role.VIEWER})
_WORKERS = frozenset({Role.ADMIN, Role.OPERATOR, Role.USER})
_KEEPERS = frozenset({Role.ADMIN, Role.OPERATOR})
_ADMINS = frozenset({Role.ADMIN})
_HOOKS = frozenset({Role.ADMIN, Role.OPERATOR, Role.ENGINE})

VERBS: Mapping[str, frozenset[Role]] = {
    "self:read": _READERS,
    "fabric:read": _READERS,
    "jobs:read": _READERS,
    "jobs:submit": _WORKERS,
    "jobs:change": _WORKERS,
    "jobs:exec": _WORKERS,
    "jobs:outrank": _KEEPERS,
    "logs:read": _READERS,
    "volumes:read": _READERS,
    "volumes:change": _WORKERS,
    "events:read": _READERS,
    "live:read": _READERS,
    "usage:read": _READERS,
    "measurements:read": _READERS,
    "measurements:make": _KEEPERS,
    "predictions:make": _WORKERS,
    "transactions:read": _READERS,
    "projects:read": _READERS,
    "metrics:read": _READERS,
    "recoveries:read": _READERS,
    "plans:make": _KEEPERS,
    "plans:apply": _KEEPERS,
    "fabric:change": _KEEPERS,
    "engine:read": _KEEPERS,
    "engine:announce": _HOOKS,
    "images:prepare": _KEEPERS,
    "secrets:list": _KEEPERS,
    "allocation:read": _KEEPERS,
    "allocation:change": _KEEPERS,
    "events:export": _ADMINS,
    "people:manage": _ADMINS,
    "audit:read": _ADMINS,
}
"""The roles that may do each verb. A verb that is not listed is always refused."""

SITE_WIDE: frozenset[str] = frozenset({"metrics:read", "recoveries:read"})
"""Verbs whose answer cannot be limited to some projects: they need access to all."""


@dataclass(slots=True, frozen=True)
class Principal:
    """A caller, identified by a token."""

    name: str
    role: Role
    projects: frozenset[str] = frozenset()
    token: str = ""
    """Id of the token, never the token itself."""

    @property
    def keeper(self) -> bool:
        """True for operators and admins: they see devices' addresses and messages."""
        return self.role in _KEEPERS

    @property
    def site_wide(self) -> bool:
        """True if no project is hidden from this caller."""
        return self.role in _KEEPERS or ALL_PROJECTS in self.projects

    def sees(self, project: str) -> bool:
        """Whether ``project`` is visible to this caller."""
        return self.site_wide or project in self.projects


@dataclass(slots=True, frozen=True)
class Owned:
    """A job, its project and its endpoints."""

    job: str
    project: str
    endpoints: tuple[str, ...]
    holding: bool
    """Whether it still holds the endpoints; after its end another job may."""
    ended: bool = False


class Authorisation(StrEnum):
    """The decision on a request."""

    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    """The caller's role does not include the verb."""
    HIDDEN = "hidden"
    """The object is in a project that is hidden from the caller: answer as if it did not exist."""


def authorise(principal: Principal, verb: str, project: str | None = None) -> Authorisation:
    """Decide whether ``principal`` may do ``verb``, on something of ``project`` if one is given.

    The role is checked first, so that ``forbidden`` reveals nothing about the object.
    """
    if principal.role not in VERBS.get(verb, frozenset()):
        return Authorisation.FORBIDDEN
    if verb in SITE_WIDE and not principal.site_wide:
        return Authorisation.FORBIDDEN
    if project is not None and not principal.sees(project):
        return Authorisation.HIDDEN
    return Authorisation.ALLOWED


def may(principal: Principal) -> tuple[str, ...]:
    """Return the verbs that ``principal`` may do on their own projects, sorted."""
    return tuple(v for v in sorted(VERBS) if authorise(principal, v) is Authorisation.ALLOWED)
