"""Who may do what: roles, verbs, and the one function that decides. Pure; denies by default.

A *verb* is what a route does (``jobs:change``), a *role* is a set of verbs, and a *project* owns
jobs. Admins and operators see the whole site; users and viewers see the projects they belong to,
and of everything else not even that it exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

ALL_PROJECTS = "*"
"""In the list of somebody's projects: every project, also those made later."""


class Role(StrEnum):
    """What kind of work somebody does."""

    ADMIN = "admin"
    """Everything, people and the audit trail included."""
    OPERATOR = "operator"
    """The whole fabric and every job, but not people."""
    USER = "user"
    """Jobs of the projects the person belongs to."""
    VIEWER = "viewer"
    """Looks at the projects the person belongs to."""


_READERS = frozenset(Role)
_WORKERS = frozenset({Role.ADMIN, Role.OPERATOR, Role.USER})
_KEEPERS = frozenset({Role.ADMIN, Role.OPERATOR})
_ADMINS = frozenset({Role.ADMIN})

VERBS: Mapping[str, frozenset[Role]] = {
    "self:read": _READERS,
    "fabric:read": _READERS,
    "jobs:read": _READERS,
    "jobs:submit": _WORKERS,
    "jobs:change": _WORKERS,
    "jobs:outrank": _KEEPERS,
    "logs:read": _READERS,
    "events:read": _READERS,
    "live:read": _READERS,
    "transactions:read": _READERS,
    "projects:read": _READERS,
    "metrics:read": _READERS,
    "plans:make": _KEEPERS,
    "plans:apply": _KEEPERS,
    "fabric:change": _KEEPERS,
    "allocation:read": _KEEPERS,
    "allocation:change": _KEEPERS,
    "events:export": _ADMINS,
    "people:manage": _ADMINS,
    "audit:read": _ADMINS,
}
"""Which roles may do each verb. A verb that is not here is refused to everybody."""

SITE_WIDE: frozenset[str] = frozenset({"metrics:read"})
"""Verbs whose answer can not be cut down to some projects: they need all of them."""


@dataclass(slots=True, frozen=True)
class Principal:
    """Somebody who asks, as the token proved."""

    name: str
    role: Role
    projects: frozenset[str] = frozenset()
    token: str = ""
    """Id of the token, never the token itself."""

    @property
    def keeper(self) -> bool:
        """True for who looks after the site: devices' addresses and own words are shown to them."""
        return self.role in _KEEPERS

    @property
    def site_wide(self) -> bool:
        """True when no project is hidden from this person."""
        return self.role in _KEEPERS or ALL_PROJECTS in self.projects

    def sees(self, project: str) -> bool:
        """Whether things of ``project`` exist for this person."""
        return self.site_wide or project in self.projects


@dataclass(slots=True, frozen=True)
class Owned:
    """A job, whose it is, and the endpoints it got."""

    job: str
    project: str
    endpoints: tuple[str, ...]
    holding: bool
    """It has the endpoints still; once it ended somebody else may."""
    ended: bool = False


class Authorisation(StrEnum):
    """What comes of a request."""

    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    """The person's role never does this."""
    HIDDEN = "hidden"
    """The object is in a project the person does not see: it does not exist for them."""


def authorise(principal: Principal, verb: str, project: str | None = None) -> Authorisation:
    """Decide whether ``principal`` may do ``verb``, on something of ``project`` if one is given.

    The role is judged first, so that an answer of ``forbidden`` says nothing about the object.
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
