"""The keeper over a controller with fakes: restarts, ended jobs, lying and silent servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.values import Record
from controller.base.errors import ServiceError
from tests.parts.controller.comms import calls, recorded, running, view
from tests.parts.controller.rack import Rack


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    one = Rack(tmp_path)
    await one.up()
    yield one
    await one.down()


async def test_a_job_is_recorded_unless_it_asks_not_to_be(rack: Rack) -> None:
    await running(rack)
    await running(rack, "blue", record="off")
    assert {s.record for s in rack.engine.specs["red"]} == {Record.COUNTS}
    assert {s.record for s in rack.engine.specs["blue"]} == {Record.OFF}
    assert (await view(rack, "blue")).ranks[0].recorder == "off"


async def test_the_ranks_of_a_job_are_summed(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = recorded(rack, 10)
    shown = await view(rack)
    assert calls(shown) == 20
    assert calls(await view(rack, rank=1)) == 10
    assert rack.desks.comms.collectives()["red"][("all_reduce", 4**10)].calls == 20
    with pytest.raises(ServiceError, match="no rank 2"):
        await view(rack, rank=2)


async def test_the_last_figures_of_an_ended_job_stay(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = recorded(rack, 10)
    await view(rack)
    rack.engine.exit("red", 0, 0)
    rack.engine.exit("red", 1, 0)
    await rack.state("red", "completed")
    rack.engine.recorded = recorded(rack, 12)  # the agents keep the very last
    assert calls(await view(rack)) == 24
    rack.engine.recorded = []
    assert calls(await view(rack)) == 24
    assert rack.desks.comms.collectives() == {}


async def test_a_restarted_controller_asks_again(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = recorded(rack, 10)
    assert calls(await view(rack)) == 20
    await rack.down()
    await rack.up()
    assert calls(await view(rack)) == 20


async def test_a_server_speaks_for_its_own_ranks_only(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = [
        *recorded(rack, 10, server="srv-other"),
        *recorded(rack, 10, epoch=99),
        *recorded(rack, 10, rank=7),
        *recorded(rack, 10, job="red"),
    ]
    rack.engine.recorded = [r for r in rack.engine.recorded if r.job == "red"][:6]
    assert calls(await view(rack)) == 0


async def test_a_silent_server_leaves_what_is_known(rack: Rack) -> None:
    await running(rack)
    rack.engine.recorded = recorded(rack, 10)
    await view(rack)
    rack.engine.lost = {spec.server for spec in rack.engine.specs["red"]}
    shown = await view(rack)
    assert calls(shown) == 20
    rack.engine.lost = set()


async def test_facts_are_those_of_the_steps(rack: Rack) -> None:
    await running(rack)
    assert rack.parts.comms.facts("red") is None
    rack.engine.recorded = recorded(rack, 20)
    await view(rack)
    found = rack.parts.comms.facts("red")
    assert found is not None
    assert (found.step_s, found.ranks) == (pytest.approx(1.0), 2)
