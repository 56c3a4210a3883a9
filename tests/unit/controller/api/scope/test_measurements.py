from __future__ import annotations

import pytest

from controller.api.scope.sight import Sight
from controller.base.errors import ServiceError
from controller.people.authz import Principal, Role, authorise
from controller.schema.insight.measurements import MeasurementRequest
from tests.parts.api.fake_service import FakeService


async def test_a_user_sees_measurements_of_own_projects_only() -> None:
    fake = FakeService()
    for project in ("vision", "speech"):
        request = MeasurementRequest(type="links", project=project)
        await fake.commands.measure(request, "alice")
    first, second = await fake.queries.measurements()
    bob = Sight(Principal("bob", Role.USER, frozenset({"vision"})), fake.queries.owners)
    assert await bob.show_all([first, second]) == [first]
    assert bob.require(first, "measurement", "m1").project == "vision"
    with pytest.raises(ServiceError, match="there is no measurement m2"):
        bob.require(second, "measurement", "m2")


@pytest.mark.parametrize("role", [Role.USER, Role.VIEWER])
def test_only_operators_measure(role: Role) -> None:
    bob = Principal("bob", role, frozenset({"*"}))
    assert authorise(bob, "measurements:make") == "forbidden"
    assert authorise(Principal("eve", Role.OPERATOR), "measurements:make") == "allowed"
