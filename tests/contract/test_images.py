"""Where a server's engine fetches images from, and what a job's owner sees, over real gRPC."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.devices.engine import EngineError, Pull
from tests.contract.agent_rig import AgentRig, agent_rig
from tests.contract.engine_contract import SLEEP
from tests.contract.engine_fakes import IMAGE

LISTED = "registry.example:5000/team"
THERE = f"{LISTED}/vision:2"
ID = "sha256:" + "a" * 64


async def refusal(rig: AgentRig, image: str, pull: Pull) -> EngineError:
    with pytest.raises(EngineError) as refused:
        await rig.engine.start([replace(rig.spec(0, *SLEEP), image=image, pull=pull)], 60)
    return refused.value


@pytest.mark.parametrize("pull", [Pull.MISSING, Pull.ALWAYS])
@pytest.mark.parametrize(
    "image",
    [
        "10.0.0.7:22/x:1",
        "localhost:8470/x",
        "python:3.11",
        "registry.example:5001/team/vision:2",
        "registry.example:5000/teams/vision:2",
        "registry.example:5000/vision:2",
        "registry.example/team/vision:2",
    ],
)
async def test_an_image_of_an_unlisted_registry_is_not_requested(
    tmp_path: Path, image: str, pull: Pull
) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        refused = await refusal(rig, image, pull)
        assert refused.code == "invalid"
        assert "its registry is not listed" in str(refused)
        assert rig.docker.calls["pull"] == 0


async def test_without_a_list_nothing_is_fetched_and_local_images_run(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as rig:
        assert (await refusal(rig, THERE, Pull.MISSING)).code == "invalid"
        assert (await refusal(rig, IMAGE, Pull.ALWAYS)).code == "invalid"
        assert rig.docker.calls["pull"] == 0
        there = replace(rig.spec(0, *SLEEP), pull=Pull.MISSING)
        assert len(await rig.engine.start([there], 60)) == 1


async def test_an_image_of_a_listed_registry_is_fetched(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        rig.docker.registry = True
        wanted = replace(rig.spec(0, *SLEEP), image=THERE, pull=Pull.MISSING)
        assert len(await rig.engine.start([wanted], 60)) == 1
        assert rig.docker.pulled == [THERE]


async def test_errors_of_the_network_are_hidden_from_the_jobs_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        refused = await refusal(rig, THERE, Pull.MISSING)
    assert refused.code == "not_found"
    assert "cannot be fetched" in str(refused)
    assert "10.9.8.7" not in str(refused) + refused.hint
    assert "refused" not in str(refused)
    assert "10.9.8.7:5000" in capsys.readouterr().out  # the operator's log


@pytest.mark.parametrize("image", [f"{LISTED}/vision:2", "x" * 300, "a b"])
async def test_an_image_that_a_rank_may_not_run_is_not_fetched(tmp_path: Path, image: str) -> None:
    async with agent_rig(tmp_path, registries=[LISTED], digest_only=True) as rig:
        rig.docker.registry = True
        assert (await refusal(rig, image, Pull.ALWAYS)).code == "invalid"
        assert rig.docker.calls["pull"] == 0


async def test_an_image_by_its_id_is_in_no_registry(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, registries=["docker.io"]) as rig:
        assert "named by its id" in str(await refusal(rig, ID, Pull.MISSING))
        assert rig.docker.calls["pull"] == 0


@pytest.mark.parametrize(
    ("image", "pull", "fine"),
    [
        (THERE, Pull.MISSING, True),
        (THERE, Pull.ALWAYS, True),
        (IMAGE, Pull.MISSING, True),  # local, and not fetched
        (IMAGE, Pull.ALWAYS, False),
        ("10.0.0.7:22/x:1", Pull.MISSING, False),
        ("x y", Pull.MISSING, False),
    ],
)
async def test_a_check_before_the_start_tells_whether_an_image_may_be_fetched(
    tmp_path: Path, image: str, pull: Pull, fine: bool
) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        await rig.engine.observe()
        if fine:
            await rig.engine.check_image(image, pull, 30)
        else:
            with pytest.raises(EngineError) as refused:
                await rig.engine.check_image(image, pull, 30)
            assert refused.value.code == "invalid"
        assert rig.docker.calls["pull"] == 0


async def test_an_image_is_not_refused_when_no_server_answers(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as rig:
        pass
    await rig.engine.check_image("10.0.0.7:22/x:1", Pull.MISSING, 30)
