"""Checkpoints of ranks on a real engine: they outlive containers and the agent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentlink.checkpoints import Holding, HoldingKind
from agentlink.ranks import RankCheckpoint
from agentlink.values import Where
from checkpoints.ledger import Key
from container_mgr.checkpoints.values import PartPlace
from container_mgr.docker.arguments import CHECKPOINT_DIR
from container_mgr.users import DEFAULT_ID
from container_mgr.values import AgentError
from tests.integration.agent_parts import PrivateEngine, two_nics
from tests.integration.checkpoint_agent import MEMORY, Agent, agent, spec
from tests.integration.mounts import loop_volume, mounts, unmount
from tests.parts.agent.ranks import until

pytestmark = pytest.mark.root

FOLDER = "red.0123abcd"
ASKED = RankCheckpoint(FOLDER, 2, "rename", Where.MEMORY, 32 << 20, bytes(range(32)))
STEP = (
    "cd $LIGHTLOOM_CHECKPOINT_DIR; mkdir step-{0}.tmp;"
    " dd if=/dev/urandom of=step-{0}.tmp/model bs=1M count=4 2>/dev/null;"
    " mv step-{0}.tmp step-{0};"
)
PEER = spec(1, "sleep 600", None)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with two_nics():
        yield tmp_path
        unmount(tmp_path)


async def told(one: Agent, kind: HoldingKind, step: int | None = None, epoch: int = 1) -> Holding:
    async with asyncio.timeout(60):
        while True:
            for holding in one.told:
                if holding.kind is kind and (step is None or holding.key == Key(step, epoch)):
                    return holding
            await asyncio.sleep(0.02)


async def test_a_step_outlives_its_container_and_its_agent(
    private: PrivateEngine, place: Path
) -> None:
    url = private.info.host_url
    async with agent(url, place) as one:
        rank = spec(0, STEP.format(10) + "sleep 600", ASKED)
        await one.start(rank, PEER)
        first = await told(one, HoldingKind.OWN, 10)
        assert first.bytes == 4 << 20
        live = place / "checkpoints" / FOLDER / "gpu0" / "live"
        assert live.stat().st_uid == DEFAULT_ID
        assert mounts(place) == [str(live.parent)]
    async with agent(url, place) as one:
        assert (await told(one, HoldingKind.OWN, 10)).digest == first.digest
        with pytest.raises(AgentError, match="ll-red-0-1 uses it"):
            await one.checkpoints.forget(FOLDER)
        await one.ranks.stop("red", 0)
        again = spec(
            0,
            "echo $LIGHTLOOM_RESTORE_STEP; cd $LIGHTLOOM_RESTORE_DIR; ls step-10;"
            " touch step-10/x 2>/dev/null || echo kept;"
            " cd $LIGHTLOOM_CHECKPOINT_DIR; ls; echo more >step-10/y && echo wrote",
            replace(ASKED, resumed=Key(10, 1)),
            epoch=2,
        )
        container = await one.start(again, replace(PEER, key=replace(PEER.key, epoch=2)))
        assert await one.output(container) == ["10", "model", "kept", "step-10", "wrote"]
        await one.ranks.stop("red", 0)
        assert await one.checkpoints.forget(FOLDER)
        assert mounts(place) == []
        assert not (place / "checkpoints" / FOLDER).exists()


async def test_an_agent_that_is_killed_leaves_whole_parts_only(
    private: PrivateEngine, place: Path
) -> None:
    url = private.info.host_url
    steps = "".join(STEP.format(n) + f"rm -r step-{n - 2};" for n in range(2, 40))
    async with agent(url, place) as one:
        await one.start(spec(0, f"sleep 1; {steps} sleep 600", ASKED), PEER)
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.checkpoint_agent", url, str(place)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert killed.stdout is not None
    await killed.stdout.readline()
    held = place / "checkpoints" / FOLDER / "gpu0" / "held"

    async def parts() -> list[Path]:
        return list(held.iterdir())

    await until(parts, bool)
    killed.kill()
    await killed.wait()
    async with agent(url, place) as one:
        newest = await told(one, HoldingKind.OWN)
        found = [v async for batch in one.checkpoints.verify(FOLDER, None) for v in batch]
        assert found
        assert [v for v in found if v.damages] == []
        assert list((held.parent / "arriving").iterdir()) == []
        await one.ranks.stop("red", 0)
        resumed = replace(ASKED, resumed=newest.key)
        script = f"ls {CHECKPOINT_DIR}"
        container = await one.start(
            spec(0, script, resumed, epoch=2), replace(PEER, key=replace(PEER.key, epoch=2))
        )
        assert await one.output(container) == [f"step-{newest.key.step}"]
        await one.ranks.stop("red", 0)


FILL = (
    "cd $LIGHTLOOM_CHECKPOINT_DIR; mkdir step-1.tmp;"
    f" dd if=/dev/zero of=step-1.tmp/x bs=1M count={MEMORY >> 19} 2>/dev/null || echo full;"
)


async def test_a_full_folder_stops_the_program_and_is_said(
    private: PrivateEngine, place: Path
) -> None:
    """The limit is the mount's; the container's memory grows by it, so nothing is killed."""
    async with agent(private.info.host_url, place) as one:
        asked = replace(ASKED, size_bytes=MEMORY)
        container = await one.start(spec(0, FILL + "sleep 2", asked), PEER)
        refused = await told(one, HoldingKind.REFUSED, 1)
        assert refused.why.startswith("the folder is full")
        assert await one.output(container) == ["full"]
        await one.ranks.stop("red", 0)
        await one.checkpoints.forget(FOLDER)


async def test_a_rank_that_fills_a_disk_without_quotas_is_ended(
    private: PrivateEngine, place: Path
) -> None:
    with loop_volume(place) as disk:
        async with agent(private.info.host_url, disk) as one:
            asked = replace(ASKED, where=Where.DISK, size_bytes=MEMORY)
            container = await one.start(spec(0, FILL + "sleep 600", asked), PEER)
            assert await one.output(container) == []
            ended = await one.engine.inspect(container.key.container)
            assert ended is not None
            assert one.ranks.reason_for(ended).startswith("its checkpoints take ")
            assert one.told[-1].why.startswith("the folder is full")
            await one.ranks.stop("red", 0)
            await one.checkpoints.forget(FOLDER)


async def test_a_job_of_the_same_name_sees_nothing_of_the_first(
    private: PrivateEngine, place: Path
) -> None:
    async with agent(private.info.host_url, place) as one:
        await one.start(spec(0, STEP.format(10) + "sleep 600", ASKED), PEER)
        await told(one, HoldingKind.OWN, 10)
        await one.ranks.stop("red", 0)
        other = replace(ASKED, folder="red.89abcdef", key=bytes(32))
        # The engine keeps no order between the two streams: only one is read.
        restored = "ls /lightloom/restore 2>/dev/null || echo none"
        script = f"ls -A {CHECKPOINT_DIR} {CHECKPOINT_DIR}/..; {restored}"
        container = await one.start(
            spec(0, script, other, epoch=2), replace(PEER, key=replace(PEER.key, epoch=2))
        )
        lines = await one.output(container)
        assert not [line for line in lines if "step" in line]
        assert lines[-1] == "none"
        stolen = replace(other, folder=FOLDER)
        await one.ranks.stop("red", 0)
        with pytest.raises(AgentError) as refused:
            await one.start(spec(0, script, stolen, epoch=3))
        assert refused.value.code == "conflict"
        assert (
            one.checkpoints.find(PartPlace(FOLDER, "gpu0", HoldingKind.OWN, 0, Key(10, 1)))
            is not None
        )
        for folder in (FOLDER, other.folder):
            await one.checkpoints.forget(folder)
