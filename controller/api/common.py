"""What the routes share: the service as the caller may see it, names, time limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, cast

from fastapi import Depends, Path, Request

from controller.api.following import Followers, Place
from controller.api.gate.access import Admitted, Caller
from controller.api.operations import Operations
from controller.api.scope.scoped import Scoped
from controller.base.errors import ServiceError
from sitefile import names

READ_S = 15.0
"""Longest a read may take; reads come from memory."""
CHANGE_S = 60.0
"""Longest a change to a job may take: it waits for agents."""


async def _caller(request: Request) -> Caller:
    """Return who asks. The gate judged this very operation, or nothing is done."""
    admitted = getattr(request.state, "admitted", None)
    route = request.scope.get("route")
    if (
        not isinstance(admitted, Admitted)
        or admitted.caller is None
        or admitted.operation != getattr(route, "name", None)
    ):
        raise ServiceError("forbidden", "nobody decided that this may be done")
    return admitted.caller


CallerOf = Annotated[Caller, Depends(_caller)]


async def _service(request: Request, caller: CallerOf) -> Operations:
    service = cast(Operations, request.app.state.service)
    if caller.principal.keeper:
        return service
    return cast(Operations, Scoped(service, caller.principal))


async def _entrance(request: Request, caller: CallerOf) -> Callable[[], Place]:
    followers = cast(Followers, request.app.state.followers)
    address = request.client.host if request.client else ""
    return lambda: followers.enter(caller, address)


Entrance = Annotated[Callable[[], Place], Depends(_entrance)]
"""Takes the caller's place for a long answer. ServiceError ``unavailable``."""
Service = Annotated[Operations, Depends(_service)]
Name = Annotated[str, Path(pattern=f"^{names.NAME}$", description="an object's name")]
