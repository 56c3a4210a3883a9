"""The stream announces measurements: their progress, their end and their removal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.api.scope.sight import Sight
from controller.people.authz import Principal, Role
from controller.schema.stream import ChangedView
from tests.parts.controller.echo import MeasuringRack
from tests.parts.controller.mirror import Mirror


async def test_who_follows_the_stream_knows_how_far_a_measurement_is(tmp_path: Path) -> None:
    rack = MeasuringRack(tmp_path)
    await rack.up()
    mirror = Mirror(rack.service)
    await mirror.start()

    def shown(state: str, text: str = "") -> bool:
        found = mirror.lists["measurement"].get("m1")
        if found is None or found["state"] != state:
            return False
        return not text or (found["progress"] or {}).get("text") == text

    await rack.measure("gpu0", "gpu1")
    line = json.dumps({"probe": "echo", "value": 1})
    rack.engine.output |= {("measure-m1", 0): (line,), ("measure-m1", 1): (line,)}
    await rack.until(lambda: shown("running", "echoing"))
    await rack.finish("measure-m1")
    await rack.until(lambda: shown("completed"))
    await rack.until(lambda: not mirror.lists["measurement"]["m1"]["progress"])
    await rack.desks.measurements.remove("m1")
    await rack.until(lambda: not mirror.lists["measurement"])
    await mirror.stop()
    await rack.down()


@pytest.mark.parametrize(("role", "name"), [(Role.OPERATOR, "m1"), (Role.USER, "")])
async def test_a_user_is_not_told_which_it_is(tmp_path: Path, role: Role, name: str) -> None:
    rack = MeasuringRack(tmp_path)
    await rack.up()
    who = Principal("bob", role, frozenset({"*"} if role is Role.OPERATOR else {"beta"}))
    desks = rack.desks
    reader = desks.feed.read(None, Sight(who, desks.jobs.owners).cut())
    await rack.measure("gpu0")
    seen: list[ChangedView] = []
    while not seen:
        batch = await reader.batch()
        seen = [
            item.data
            for item in batch
            if isinstance(item.data, ChangedView) and item.data.kind == "measurement"
        ]
    assert {one.name for one in seen} == {name}
    reader.close()
    await rack.down()
