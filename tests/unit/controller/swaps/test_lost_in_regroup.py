"""Hardware is lost while a job's light moves: the job goes on as after any loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentlink.ranks import RankSpec
from controller.devices.engine import EngineError, EngineFault, RankStatus
from tests.parts.controller.losses import KEEPS, FakeCheckpoints, lose, rack_with, with_checkpoints
from tests.parts.controller.rack import Rack
from tests.parts.controller.recoveries import again, check, rows, running, state_of


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with_checkpoints(monkeypatch, FakeCheckpoints())


def fail_to_resume(rack: Rack, server: str = "") -> None:
    """Let ranks neither thaw nor start after the next regroup; ``server`` loses its power then."""

    def silent() -> EngineError:
        if server:
            lose(rack, server)
        return EngineError([EngineFault("unavailable", "server/srv1", "it does not answer")])

    async def thaw(job: str) -> None:
        raise silent()

    async def start(ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        del rack.engine.start
        raise silent()

    rack.engine.thaw = thaw  # type: ignore[method-assign]
    rack.engine.start = start  # type: ignore[method-assign]


async def moved(rack: Rack, endpoint: str) -> None:
    home = state_of(rack).light.homes()[endpoint]
    to = {"as0": "as1", "as1": "as0"}[str(home)]
    await rack.desks.plans.attach(endpoint, to, wait_s=60)


@pytest.mark.parametrize("policy", ["pause", "restart"])
async def test_a_server_that_is_lost_while_its_jobs_light_moves(
    tmp_path: Path, policy: str
) -> None:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    before = await running(rack, policy=policy, restart="on-failure:3", **KEEPS)
    fail_to_resume(rack, "srv1")
    await moved(rack, "gpu0")
    if policy == "pause":
        del rack.engine.start
    after = await again(rack, before)
    assert {"gpu2", "gpu3"}.isdisjoint(after.endpoints), "they are on the lost server"
    assert rows(rack)[-1].objects == ("server/srv1",)
    check(rack)
    await rack.down()


async def test_a_job_that_does_not_resume_without_any_loss_ends(tmp_path: Path) -> None:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    await running(rack, restart="on-failure:3", **KEEPS)
    fail_to_resume(rack)
    await moved(rack, "gpu0")
    await rack.state("red", "failed")
    assert not rows(rack)
    await rack.down()
