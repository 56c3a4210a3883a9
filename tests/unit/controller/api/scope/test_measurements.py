from __future__ import annotations

import pytest

from controller.api.scope.sight import Sight
from controller.base.errors import ServiceError
from controller.people.authz import Principal, Role, authorise
from tests.parts.api.studied import running


async def test_a_user_sees_measurements_of_own_projects_only() -> None:
    first = running(1).model_copy(update={"project": "vision"})
    second = running(2).model_copy(update={"project": "speech"})
    bob = Sight(Principal("bob", Role.USER, frozenset({"vision"})), dict)
    assert await bob.show_all([first, second]) == [first]
    assert bob.require(first, "measurement", "m1").project == "vision"
    with pytest.raises(ServiceError, match="measurement m2 does not exist"):
        bob.require(second, "measurement", "m2")


@pytest.mark.parametrize("role", [Role.USER, Role.VIEWER])
def test_only_operators_measure(role: Role) -> None:
    bob = Principal("bob", role, frozenset({"*"}))
    assert authorise(bob, "measurements:make") == "forbidden"
    assert authorise(Principal("eve", Role.OPERATOR), "measurements:make") == "allowed"
