"""Who asks: the token in a request, the person behind it, and what the gate needs to know."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Literal

from starlette.datastructures import Headers

from controller.accounts import Accounts, Token
from controller.audit import AuditLog
from controller.authz import ALL_PROJECTS, Principal, Role

COOKIE = "lightloom_session"
PAGE_HEADER = "x-lightloom"
"""A page's scripts set it; a form of another site can not."""
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
    secure_cookie: bool = False
    """The API is served over TLS."""
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
        return (value.strip(), "header") if scheme.lower() == "bearer" else ("", "header")
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return "", "none"
    return (morsel.value, "cookie") if morsel is not None else ("", "none")
