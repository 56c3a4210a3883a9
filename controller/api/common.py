"""What the routes share: the desks, what the caller may see of their answers, names, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, cast

from fastapi import Depends, Path, Request
from fastapi.routing import APIRoute

from controller.api.following import AnswerSlot, Followers
from controller.api.gate.access import Admitted, Caller
from controller.api.operation import operation_of
from controller.api.scope.redact import marks_of
from controller.api.scope.sight import Sight
from controller.base.errors import ServiceError
from controller.people.authz import SITE_WIDE, VERBS, Role
from controller.schema.base import View
from controller.service.desks import Desks
from sitefile import names

READ_S = 15.0
"""Longest time of a read; reads come from memory."""
CHANGE_S = 60.0
"""Longest time of a change to a job: it waits for agents."""
_OF_PROJECTS = frozenset({Role.USER, Role.VIEWER})
"""Roles whose callers may belong to some projects only."""


async def _caller(request: Request) -> Caller:
    """Return the caller. ServiceError unless the gate authorised exactly this operation."""
    admitted = getattr(request.state, "admitted", None)
    route = request.scope.get("route")
    if (
        not isinstance(admitted, Admitted)
        or admitted.caller is None
        or admitted.operation != getattr(route, "name", None)
    ):
        raise ServiceError("forbidden", "this operation was not authorised")
    return admitted.caller


CallerOf = Annotated[Caller, Depends(_caller)]


async def _desks(request: Request, _: CallerOf) -> Desks:
    return cast(Desks, request.app.state.desks)


DesksOf = Annotated[Desks, Depends(_desks)]


async def _sight(desks: DesksOf, caller: CallerOf) -> Sight:
    return Sight(caller.principal, desks.jobs.owners)


SightOf = Annotated[Sight, Depends(_sight)]


async def _epoch(desks: DesksOf) -> Callable[[], int]:
    return lambda: desks.epoch


EpochOf = Annotated[Callable[[], int], Depends(_epoch)]
"""Reads the revision of the intent."""


async def _entrance(request: Request, caller: CallerOf) -> Callable[[], AnswerSlot]:
    followers = cast(Followers, request.app.state.followers)
    address = request.client.host if request.client else ""
    return lambda: followers.enter(caller, address)


Entrance = Annotated[Callable[[], AnswerSlot], Depends(_entrance)]
"""Takes a place for a long answer to this caller. ServiceError ``unavailable``."""
Name = Annotated[str, Path(pattern=f"^{names.NAME}$", description="an object's name")]


def require_sight(route: APIRoute) -> None:
    """Check that what members of some projects are shown passes through their sight.

    RuntimeError for a route that asks desks, is open to them, and does not ask for ``SightOf``;
    TypeError when its answer has a text field without a mark.
    """
    verb = operation_of(route).verb
    if verb is None or verb in SITE_WIDE or not VERBS.get(verb, frozenset()) & _OF_PROJECTS:
        return
    asked = {dependant.call for dependant in route.dependant.dependencies}
    if _desks in asked and _sight not in asked:
        raise RuntimeError(f"{route.name} ({route.path}) shows users what desks answer, unlimited")
    if isinstance(route.response_model, type) and issubclass(route.response_model, View):
        marks_of(route.response_model)
