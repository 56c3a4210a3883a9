"""Identifies the caller: the token in a request and the principal it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from starlette.datastructures import Headers

from base import clock
from controller.people.accounts import Accounts, StoredToken
from controller.people.audit import AuditLog
from controller.people.authz import ALL_PROJECTS, Principal, Role

COOKIE = "lightloom_session"
PAGE_HEADER = "x-lightloom"
"""Set by the scripts of a page; a form of another site cannot set it."""
_MAX_TOKEN = 200
"""Longest text that is accepted as a token."""
ANYBODY = Principal("anybody", Role.ADMIN, frozenset({ALL_PROJECTS}))
"""Every caller of a controller that runs with ``--insecure-no-auth``."""

Way = Literal["none", "header", "cookie"]


@dataclass(slots=True, frozen=True)
class Caller:
    """The sender of one request."""

    principal: Principal
    token: StoredToken | None = None
    way: Way = "none"


@dataclass(slots=True, frozen=True)
class Admitted:
    """What the gate passes on to the routes."""

    caller: Caller | None
    operation: str


@dataclass(slots=True)
class Access:
    """Accounts and audit trail of one controller. Without accounts every caller is an admin."""

    accounts: Accounts | None = None
    audit: AuditLog | None = None
    clock: Callable[[], float] = field(default=clock.time)

    def caller(self, headers: Headers) -> Caller | None:
        """Return the caller of a request with these headers, None without a valid token."""
        if self.accounts is None:
            return Caller(ANYBODY)
        secret, way = credentials(headers)
        token = self.accounts.find(secret) if secret else None
        return Caller(token.principal, token, way) if token is not None else None


def credentials(headers: Headers) -> tuple[str, Way]:
    """Return the token of a request and its source; the header takes precedence."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme:
        return (_bounded(value), "header") if scheme.lower() == "bearer" else ("", "header")
    secret = _bounded(_cookie(headers.get("cookie", "")))
    return (secret, "cookie") if secret else ("", "none")


def _cookie(header: str) -> str:
    """Return the session's cookie; other cookies of the host are ignored.

    The standard library's parser takes quadratic time on some values (CVE-2024-7592).
    """
    for pair in header.split(";"):
        name, _, value = pair.partition("=")
        if name.strip() == COOKIE:
            return value.strip().strip('"')
    return ""


def _bounded(secret: str) -> str:
    secret = secret.strip()
    return secret if len(secret) <= _MAX_TOKEN else ""
