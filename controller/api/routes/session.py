"""Routes for the caller: whoami, and the session cookie of the console."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, Response, status

from controller.api.common import CallerOf
from controller.api.gate.access import COOKIE, Access, Caller
from controller.api.operation import KIB, operation
from controller.api.problems import responses
from controller.base.errors import ServiceError
from controller.people.authz import may
from controller.people.documents import SessionRequest, WhoamiView

router = APIRouter(tags=["people"], responses=responses("unavailable"))


@router.get("/alive")
@operation(None)
async def get_alive() -> dict[str, str]:
    """Answer probes of a process manager; reveals nothing about the fabric."""
    return {"status": "ok"}


@router.get("/whoami")
@operation("self:read")
async def get_whoami(caller: CallerOf) -> WhoamiView:
    """Show the owner of the token and what it allows."""
    return _whoami(caller)


@router.post("/session", responses=responses("forbidden"))
@operation(None, body=4 * KIB)
async def open_session(request: Request, body: SessionRequest, response: Response) -> WhoamiView:
    """Exchange a token for a cookie that scripts cannot read and other sites cannot send."""
    access = cast(Access, request.app.state.access)
    if access.accounts is None:
        caller = access.caller(request.headers)
    else:
        token = access.accounts.find(body.token)
        caller = Caller(token.principal, token, "cookie") if token is not None else None
    if caller is None:
        raise ServiceError(
            "forbidden",
            "this token is not valid",
            object="token",
            hint="it may have expired or been revoked; ask an admin for a new one",
        )
    request.state.signed_in = caller
    expires = caller.token.expires_at if caller.token else None
    response.set_cookie(
        COOKIE,
        body.token,
        max_age=None if expires is None else max(1, int(expires - access.clock())),
        path="/",
        secure=_over_tls(request),
        httponly=True,
        samesite="strict",
    )
    return _whoami(caller)


@router.delete("/session", status_code=status.HTTP_204_NO_CONTENT)
@operation(None)
async def close_session(request: Request, response: Response) -> None:
    """Delete the cookie; the token itself stays valid until it is revoked."""
    response.delete_cookie(
        COOKIE, path="/", secure=_over_tls(request), httponly=True, samesite="strict"
    )


def _over_tls(request: Request) -> bool:
    """Whether the browser uses TLS, to the controller or to a proxy in front of it."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")


def _whoami(caller: Caller) -> WhoamiView:
    principal = caller.principal
    return WhoamiView(
        name=principal.name,
        roles=[principal.role],
        projects=["*"] if principal.site_wide else sorted(principal.projects),
        may=list(may(principal)),
        token=principal.token,
        expires_at=caller.token.expires_at if caller.token else None,
    )
