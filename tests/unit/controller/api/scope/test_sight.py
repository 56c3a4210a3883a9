"""What members of some projects are shown: nothing by default."""

from __future__ import annotations

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from controller.api.common import DesksOf, SightOf, require_sight
from controller.api.operation import operation
from controller.api.scope.sight import Sight
from controller.base.errors import ServiceError
from controller.people.authz import Owned, Principal, Role
from controller.schema.base import View

BOB = Principal("bob", Role.USER, frozenset({"vision"}))


class SecretsView(View):
    text: str


def test_a_view_without_marks_is_shown_to_keepers_only() -> None:
    view = SecretsView(text="job red waits")
    assert Sight(Principal("eve", Role.OPERATOR), dict).show(view) is view
    with pytest.raises(TypeError, match="SecretsView"):
        Sight(BOB, dict).show(view)


async def test_nothing_begins_on_a_job_that_the_caller_does_not_see() -> None:
    owners = {"red": Owned("red", "speech", (), holding=True)}
    begun: list[str] = []

    async def work(name: str) -> str:
        begun.append(name)
        return name

    with pytest.raises(ServiceError) as hidden:
        await Sight(BOB, lambda: owners).of_job("red", work)
    with pytest.raises(ServiceError) as absent:
        await Sight(BOB, dict).of_job("red", work)
    assert (hidden.value.message, hidden.value.hint) == (absent.value.message, absent.value.hint)
    assert not begun
    assert await Sight(Principal("eve", Role.OPERATOR), lambda: owners).of_job("red", work) == "red"


def test_a_route_that_shows_users_what_desks_answer_asks_for_their_sight() -> None:
    router = APIRouter()

    @router.get("/all")
    @operation("jobs:read")
    async def all_of_it(desks: DesksOf) -> None:
        """Show everything."""

    @router.get("/some")
    @operation("jobs:read")
    async def some_of_it(desks: DesksOf, sight: SightOf) -> None:
        """Show a part."""

    @router.get("/inside")
    @operation("fabric:change")
    async def inside(desks: DesksOf) -> None:
        """Show operators everything."""

    shows_all, shows_some, shows_keepers = router.routes
    for route in (shows_all, shows_some, shows_keepers):
        assert isinstance(route, APIRoute)
        if route is shows_all:
            with pytest.raises(RuntimeError, match="all_of_it"):
                require_sight(route)
        else:
            require_sight(route)
