"""What the routes share: queries and commands within the caller's rights, names, time limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, cast

from fastapi import Depends, Path, Request

from controller.api.following import Followers, Place
from controller.api.gate.access import Admitted, Caller
from controller.api.operations import Commands, Queries
from controller.api.scope.scoped import ScopedCommands, ScopedQueries
from controller.base.errors import ServiceError
from sitefile import names

READ_S = 15.0
"""Longest time of a read; reads come from memory."""
CHANGE_S = 60.0
"""Longest time of a change to a job: it waits for agents."""


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


async def _queries(request: Request, caller: CallerOf) -> Queries:
    queries = cast(Queries, request.app.state.queries)
    if caller.principal.keeper:
        return queries
    return cast(Queries, ScopedQueries(queries, caller.principal))


async def _commands(request: Request, caller: CallerOf) -> Commands:
    commands = cast(Commands, request.app.state.commands)
    if caller.principal.keeper:
        return commands
    queries = cast(Queries, request.app.state.queries)
    return cast(Commands, ScopedCommands(commands, queries, caller.principal))


async def _entrance(request: Request, caller: CallerOf) -> Callable[[], Place]:
    followers = cast(Followers, request.app.state.followers)
    address = request.client.host if request.client else ""
    return lambda: followers.enter(caller, address)


Entrance = Annotated[Callable[[], Place], Depends(_entrance)]
"""Takes a place for a long answer to this caller. ServiceError ``unavailable``."""
QueriesOf = Annotated[Queries, Depends(_queries)]
CommandsOf = Annotated[Commands, Depends(_commands)]
Name = Annotated[str, Path(pattern=f"^{names.NAME}$", description="an object's name")]
