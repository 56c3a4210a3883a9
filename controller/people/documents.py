"""REST documents of people, projects, tokens and the audit trail."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from controller.people.authz import Role
from controller.schema.base import Name, RequestModel, View
from controller.schema.visibility import Plain
from sitefile import names

ProjectName = Annotated[str, StringConstraints(pattern=rf"^({names.NAME}|\*)$")]


class WhoamiView(View):
    """The owner of the token and what it allows."""

    name: Plain
    roles: list[Role]
    projects: list[Plain]
    """``*`` is every project."""
    may: list[Plain]
    """Verbs that the caller may do on their own projects."""
    token: Plain = ""
    """Id of the token in use; empty if the controller requires none."""
    expires_at: float | None = None


class SessionRequest(RequestModel):
    """Exchange a token for a cookie that scripts of a page cannot read."""

    token: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class TokenRequest(RequestModel):
    """A new token for a person or a program."""

    most_parts = 2000
    name: Name
    """The person or program that gets it."""
    role: Role
    projects: list[ProjectName] = Field(default_factory=list, max_length=1000)
    """Projects of a user or a viewer; admins and operators see all."""
    expires_s: float | None = Field(default=None, gt=0, le=10 * 366 * 86400)
    """Lifetime in seconds; None is until it is revoked."""


class TokenView(View):
    """A token as it is stored: never the secret, only its id."""

    id: str
    name: str
    role: Role
    projects: list[str]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None
    state: Literal["valid", "expired", "revoked"]


class TokenCreatedView(TokenView):
    """The only answer with the secret."""

    token: str


class ProjectRequest(RequestModel):
    """A project, the owner of jobs."""

    name: Annotated[str, StringConstraints(pattern=f"^{names.PROJECT}$")]
    """Its jobs are named ``<name>-…``, and agents accept at most 41 characters."""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """Share of the site relative to the other projects."""
    quota: int | None = Field(default=None, ge=0, le=10**6)
    """Endpoints it may hold at once; None is unlimited."""


class ProjectView(View):
    """A project and what it holds now."""

    name: Plain
    weight: float
    quota: int | None
    jobs: int = 0
    """Jobs that have not ended."""
    endpoints: int = 0
    """Endpoints that its jobs hold."""


class AuditRecordView(View):
    """One line of the audit trail; ``hash`` covers everything else, ``prev`` the line before."""

    seq: int
    time: float
    actor: str
    role: str
    token: str
    remote: str
    verb: str
    action: str
    """The operation's name in the API."""
    object: str
    outcome: int
    """HTTP status of the answer."""
    epoch_before: int
    epoch_after: int
    prev: str
    hash: str
    count: int = 1
    """Number of requests; similar refusals within a minute share one record."""
    detail: str = ""
    """What was asked for, beyond the object: the command of an exec."""


class AuditVerdictView(View):
    """Whether the trail is intact."""

    ok: bool
    records: int
    head: str
    """``SEQ:HASH`` of the last record: keep it elsewhere to notice later truncation."""
    problem: str = ""
    """What is wrong with which record; empty if nothing is."""
