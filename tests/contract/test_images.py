"""What a server says about images, and how it pulls them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentlink.values import RegistryLogin
from controller.devices.engine import EngineError, PullProgress
from tests.parts.agent.docker import IMAGE, IMAGE_ID, REGISTRY_DIGEST
from tests.parts.agent.ranks import SLEEP, until
from tests.parts.agent.rig import AgentRig, agent_rig

LISTED = "registry.example:5000/team"
THERE = f"{LISTED}/vision:2"
ID = "sha256:" + "b" * 64
LOGIN = RegistryLogin("puller", "s3cret")


async def pull(
    rig: AgentRig, image: str, login: RegistryLogin | None = None, *, refresh: bool = False
) -> list[PullProgress]:
    return [step async for step in rig.engine.pull_image("srv0", image, login, refresh=refresh)]


async def refusal(rig: AgentRig, image: str, *, refresh: bool = False) -> EngineError:
    with pytest.raises(EngineError) as refused:
        await pull(rig, image, LOGIN, refresh=refresh)
    return refused.value


@pytest.mark.parametrize("refresh", [False, True])
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
    tmp_path: Path, image: str, refresh: bool
) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        refused = await refusal(rig, image, refresh=refresh)
        assert refused.code == "invalid"
        assert "its registry is not listed" in str(refused)
        await rig.engine.observe()
        with pytest.raises(EngineError) as unresolved:
            await rig.engine.registry_digest(image, ["srv0"], LOGIN, 30)
        assert unresolved.value.code == "invalid"
        assert rig.docker.calls["pull"] == rig.docker.calls["registry_digest"] == 0


async def test_without_a_list_nothing_is_pulled_and_local_images_run(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as rig:
        assert (await refusal(rig, THERE)).code == "invalid"
        assert (await refusal(rig, IMAGE, refresh=True)).code == "invalid"
        assert rig.docker.calls["pull"] == 0
        there = (await pull(rig, IMAGE))[-1].image
        assert there is not None
        assert there.present
        assert len(await rig.engine.start([rig.spec(0, *SLEEP)], 60)) == 1


async def test_a_pull_shows_its_progress_and_ends_with_the_image(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        rig.docker.registry, rig.docker.pulling = True, asyncio.Event()
        steps: list[PullProgress] = []
        async for step in rig.engine.pull_image("srv0", THERE, LOGIN):
            steps.append(step)
            if step.bytes_total:
                rig.docker.pulling.set()
        assert PullProgress(1, 2, 10, 20) in steps
        last = steps[-1].image
        assert last is not None
        assert (last.present, last.id, last.names) == (True, IMAGE_ID, (THERE,))
        assert [one.password for one in rig.docker.logins if one] == [LOGIN.password]


async def test_requests_for_one_image_join_one_pull(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        rig.docker.registry, rig.docker.pulling = True, asyncio.Event()
        both = [asyncio.create_task(pull(rig, THERE, LOGIN)) for _ in range(2)]
        other = asyncio.create_task(pull(rig, THERE, RegistryLogin("other", "x")))

        async def count() -> int:
            return rig.docker.calls["pull"]

        await until(count, lambda seen: seen == 2)  # another login is another pull
        rig.docker.pulling.set()
        for steps in await asyncio.gather(*both, other):
            assert steps[-1].image is not None
        assert rig.docker.calls["pull"] == 2


async def test_a_pull_continues_when_its_caller_leaves(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        rig.docker.registry, rig.docker.pulling = True, asyncio.Event()
        steps = rig.engine.pull_image("srv0", THERE, None)
        await anext(steps)
        await steps.aclose()
        rig.docker.pulling.set()

        async def pulled() -> list[str]:
            return rig.docker.pulled

        await until(pulled, lambda names: names == [THERE])


async def test_errors_of_the_network_are_hidden_from_the_jobs_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        refused = await refusal(rig, THERE)
    assert refused.code == "not_found"
    assert "cannot be fetched" in str(refused)
    assert "10.9.8.7" not in str(refused) + refused.hint
    assert "refused" not in str(refused)
    log = capsys.readouterr()
    assert "10.9.8.7:5000" in log.out + log.err  # the operator's


async def test_a_refused_login_is_named_and_the_password_is_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        rig.docker.denied = True
        refused = await refusal(rig, THERE)
        await rig.engine.observe()
        with pytest.raises(EngineError) as unresolved:
            await rig.engine.registry_digest(THERE, ["srv0"], LOGIN, 30)
    for error in (refused, unresolved.value):
        assert "registry registry.example:5000 refuses" in str(error)
        assert LOGIN.password not in str(error) + error.hint
    captured = capsys.readouterr()
    assert LOGIN.password not in captured.out + captured.err + repr(LOGIN)


@pytest.mark.parametrize("image", [f"{LISTED}/vision:2", "x" * 300, "a b"])
async def test_an_image_that_a_rank_may_not_run_is_not_pulled(tmp_path: Path, image: str) -> None:
    async with agent_rig(tmp_path, registries=[LISTED], digest_only=True) as rig:
        rig.docker.registry = True
        assert (await refusal(rig, image, refresh=True)).code == "invalid"
        assert rig.docker.calls["pull"] == 0


async def test_an_image_by_its_id_is_in_no_registry(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, registries=["docker.io"]) as rig:
        assert "named by its id" in str(await refusal(rig, ID))
        assert rig.docker.calls["pull"] == 0


@pytest.mark.parametrize(
    ("image", "refresh", "present", "refused"),
    [
        (THERE, False, False, False),
        (THERE, True, False, False),
        (IMAGE, False, True, False),
        (IMAGE, True, True, True),
        ("10.0.0.7:22/x:1", False, False, True),
    ],
)
async def test_a_server_says_what_it_has_and_what_it_would_not_pull(
    tmp_path: Path, image: str, refresh: bool, present: bool, refused: bool
) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        await rig.engine.observe()
        (found,) = await rig.engine.find_image(image, ["srv0"], refresh=refresh, timeout_s=30)
        assert (found.server, found.present, bool(found.refusal)) == ("srv0", present, refused)
        assert rig.docker.calls["pull"] == 0


async def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as rig:
        await rig.engine.observe()
        with pytest.raises(EngineError) as refused:
            await rig.engine.find_image("x y", ["srv0"], refresh=False, timeout_s=30)
        assert refused.value.code == "invalid"


async def test_a_server_lists_its_images_and_the_jobs_that_use_them(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        rig.docker.registry = True
        await rig.engine.start([rig.spec(0, *SLEEP)], 60)
        (found,) = await rig.engine.images(30)
        assert (found.server, found.id, found.names, found.jobs) == (
            "srv0",
            IMAGE_ID,
            (IMAGE,),
            ("red",),
        )
        assert found.used_at is None  # not pulled by this agent


async def test_a_registry_is_asked_by_a_server(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, registries=[LISTED]) as rig:
        rig.docker.registry = True
        await rig.engine.observe()
        assert await rig.engine.registry_digest(THERE, ["srv0"], LOGIN, 30) == REGISTRY_DIGEST


async def test_a_server_that_does_not_answer_says_nothing(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as rig:
        pass
    assert await rig.engine.find_image(IMAGE, ["srv0"], refresh=False, timeout_s=30) == []
    with pytest.raises(EngineError) as refused:
        await rig.engine.registry_digest(THERE, ["srv0"], None, 30)
    assert refused.value.code == "unavailable"
