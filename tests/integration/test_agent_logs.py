"""Output of real containers: after their end, after a restart of the agent, and in a storm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.values import RankLimits
from container_mgr.docker.arguments import LOG_FILES
from container_mgr.values import LogLimits
from controller.devices.engine import EngineError
from controller.ranks.first_cause import first_cause
from tests.integration.agent_parts import PrivateEngine, Rig, agent_rig, two_nics
from tests.parts.agent.ranks import SLEEP, output, seen, when_ended

pytestmark = pytest.mark.root

LIMITS = LogLimits(rank_bytes=2 * 2**20, total_bytes=5 * 2**20)
STORM_BYTES = 32 * 2**20


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest_asyncio.fixture
async def rig(private: PrivateEngine, tmp_path: Path, log_dir: Path) -> AsyncIterator[Rig]:
    with two_nics():
        async with agent_rig(private, tmp_path, log_dir=log_dir, logs=LIMITS) as one:
            yield one


def held(directory: Path, pattern: str) -> int:
    """Return the bytes of all files there that match."""
    return sum(path.stat().st_size for path in directory.rglob(pattern))


@pytest.mark.parametrize(
    "storm",
    [
        f"yes 'a line of a storm' | head -c {STORM_BYTES}; echo; echo end",
        f"head -c {STORM_BYTES} /dev/zero | tr '\\0' x; echo; echo end",
    ],
    ids=["lines", "no newline"],
)
async def test_a_storm_of_output_leaves_the_disk_bounded(
    rig: Rig, private: PrivateEngine, log_dir: Path, storm: str
) -> None:
    await rig.engine.start([rig.spec(0, "sh", "-c", storm), rig.spec(1, *SLEEP)], 60)
    followed = 0
    async for line in rig.engine.logs("red", 0, 10, True):
        followed += len(line.text)
    assert 0 < followed <= STORM_BYTES + 10 * 65_536
    await when_ended(rig, 0)
    written = await asyncio.to_thread(held, private.run_dir, "*-json.log*")
    # One write of the engine may go beyond the limit of each file.
    assert LIMITS.rank_bytes // 2 < written <= LIMITS.rank_bytes + LOG_FILES * 2**16
    await rig.engine.stop("red", 0)
    assert [line.text async for line in rig.engine.logs("red", 0, 1, False)] == ["end"]
    await rig.engine.start([rig.spec(n, "sh", "-c", storm, epoch=2) for n in (0, 1)], 60)
    for rank in (0, 1):
        await when_ended(rig, rank)
    await rig.engine.stop("red", 0)
    kept = await asyncio.to_thread(held, log_dir, "*")
    assert LIMITS.rank_bytes < kept <= LIMITS.total_bytes
    assert [line.text async for line in rig.engine.logs("red", 1, 1, False)] == ["end"]


async def test_output_outlives_container_and_agent(rig: Rig, log_dir: Path) -> None:
    says = "echo one; echo two >&2; exit 3"
    await rig.engine.start([rig.spec(0, "sh", "-c", says), rig.spec(1, *SLEEP)], 60)
    await when_ended(rig, 0)
    await rig.engine.stop("red", 0)
    await rig.down()
    assert (log_dir / "ll-red-0-1").is_dir()
    away = [line async for line in rig.engine.logs("red", 0, None, False, {0: "srv0"})]
    assert [line.stream for line in away] == ["missing"]
    await rig.up()
    assert sorted(await output(rig, 0)) == ["one", "two"]
    found = rig.engine.logs("red", 0, None, False, search="tw", since=0.0)
    assert [(line.stream, line.text) async for line in found] == [("stderr", "two")]
    with pytest.raises(EngineError):
        _ = [line async for line in rig.engine.logs("red", 0, None, False, epoch=2)]


async def test_a_rank_out_of_memory_is_the_first_cause(rig: Rig) -> None:
    """The other one ends at the same time, and blames its connection."""
    eats = rig.spec(1, "sh", "-c", "x=x; while :; do x=$x$x; done")
    greedy = replace(eats, limits=RankLimits(memory_bytes=32 << 20))
    fails = rig.spec(0, "sh", "-c", "echo Connection reset by peer; exit 1")
    await rig.engine.start([fails, greedy], 60)
    for rank in (0, 1):
        await when_ended(rig, rank)
    lines = {0: await output(rig, 0)}
    found = first_cause(await seen(rig), lines)
    assert found is not None
    assert (found.rank, found.oom, found.cause) == (1, True, "rank 1 ran out of memory")
    assert found.others == "rank 0 lost the connection to another rank"
