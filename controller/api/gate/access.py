"""Who asks: the token in a request, the person behind it, and what the gate needs to know."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from starlette.datastructures import Headers

from controller.people.accounts import Accounts, Token
from controller.people.audit import AuditLog
from controller.people.authz import ALL_PROJECTS, Principal, Role

COOKIE = "lightloom_session"
PAGE_HEADER = "x-lightloom"
"""A page's scripts set it; a form of another site can not."""
_MAX_TOKEN = 200
"""Longest text that is looked up as a token."""
ANYBODY = Principal("anybody", Role.ADMIN, frozenset({ALL_PROJECTS}))
"""Everyone, on a controller that was started with ``--insecure-no-auth``."""

Way = Literal["none", "header", "cookie"]


@dataclass(slots=True, frozen=True)
class Caller:
    """One request's sender."""

    principal: Principal
    token: Token | None = None
    way: Way = "none"


@dataclass(slots=True, frozen=True)
class Admitted:
    """What the routes get to know of a request that passed the gate."""

    caller: Caller | None
    operation: str


@dataclass(slots=True)
class Access:
    """Accounts and audit trail of one controller. Without accounts everybody is an admin."""

    accounts: Accounts | None = None
    audit: AuditLog | None = None
    clock: Callable[[], float] = field(default=time.time)

    def caller(self, headers: Headers) -> Caller | None:
        """Return who sent a request with these headers, None when no valid token is in them."""
        if self.accounts is None:
            return Caller(ANYBODY)
        secret, way = credentials(headers)
        token = self.accounts.find(secret) if secret else None
        return Caller(token.principal, token, way) if token is not None else None


def credentials(headers: Headers) -> tuple[str, Way]:
    """Return the token of a request and how it came; the header wins over the cookie."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme:
        return (_bounded(value), "header") if scheme.lower() == "bearer" else ("", "header")
    secret = _bounded(_cookie(headers.get("cookie", "")))
    return (secret, "cookie") if secret else ("", "none")


def _cookie(header: str) -> str:
    """Return the session's cookie; others of the same host are not looked at.

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
