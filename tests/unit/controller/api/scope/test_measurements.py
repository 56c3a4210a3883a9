from __future__ import annotations

import pytest

from controller.api.scope.scoped import ScopedQueries
from controller.base.errors import ServiceError
from controller.people.authz import Principal, Role, authorise
from controller.schema.insight.measurements import MeasurementRequest
from tests.parts.api.fake_service import FakeService


async def test_a_user_sees_measurements_of_own_projects_only() -> None:
    fake = FakeService()
    for project in ("vision", "speech"):
        request = MeasurementRequest(type="links", project=project)
        await fake.commands.measure(request, "alice")
    own = ScopedQueries(fake.queries, Principal("bob", Role.USER, frozenset({"vision"})))
    assert [view.id for view in await own.measurements()] == ["m1"]
    assert (await own.measurement("m1")).project == "vision"
    texts = []
    for ident in ("m2", "m9"):
        with pytest.raises(ServiceError) as refused:
            await own.measurement(ident)
        texts.append((refused.value.code, refused.value.message.replace(ident, "")))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("role", [Role.USER, Role.VIEWER])
def test_only_operators_measure(role: Role) -> None:
    bob = Principal("bob", role, frozenset({"*"}))
    assert authorise(bob, "measurements:make") == "forbidden"
    assert authorise(Principal("eve", Role.OPERATOR), "measurements:make") == "allowed"
