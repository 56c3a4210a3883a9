"""A server that accepts connections and never answers must not hide the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.devices.agents.engine import AgentEngine
from controller.devices.engine import RankSample, RankState, RankStatus
from controller.telemetry.throughput import Telemetry
from tests.parts.agent.ranks import SLEEP, until
from tests.parts.agent.rig import agent_rig
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack


@pytest.mark.real_time  # gRPC over sockets, of which one is never read
async def test_a_black_holed_server_does_not_delay_the_observation(tmp_path: Path) -> None:
    """The time-outs are the real ones, which a busy machine does not reach."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        address = f"127.0.0.1:{hole.getsockname()[1]}"
        async with agent_rig(tmp_path) as rig:
            engine = AgentEngine(
                {"srv0": rig.address, "srv1": address}, trust=rig.trust, call_timeout_s=600
            )
            try:
                await engine.start([rig.spec(0, *SLEEP)], 30)
                async with asyncio.timeout(60):
                    for _ in range(2):
                        seen = await engine.observe()
                        assert [s.state for s in seen] == [RankState.RUNNING]
                        assert engine.reachable() == {"srv0": True, "srv1": False}
                await engine.stop("red", 0)
            finally:
                await engine.close()


async def test_an_agents_report_of_a_rank_elsewhere_ends_nothing(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compromised server reports that others' ranks have died, on its own endpoint."""
    await submit(rack, "red", 2, restart="on-failure")
    await rack.state("red", "running")
    red = rack.desks.jobs.job("red")
    taken = {rank.endpoint for rank in red.ranks}
    spare = next(e.name for e in rack.site.endpoints if e.name not in taken)
    first = rack.engine.statuses["red", 0]
    forged = replace(first, endpoint=spare, state=RankState.EXITED, exit_code=1)
    observe, rounds = rack.engine.observe, 0

    async def forged_reports() -> list[RankStatus]:
        nonlocal rounds
        rounds += 1
        return [*await observe(), forged, replace(forged, rank=99)]

    monkeypatch.setattr(rack.engine, "observe", forged_reports)

    async def asked() -> int:
        return rounds

    await until(asked, lambda count: count >= 5)
    job = rack.desks.jobs.job("red")
    assert (job.state, job.restarts) == ("running", 0)
    assert [rank.exit_code for rank in job.ranks] == [None, None]


async def test_figures_of_a_rank_elsewhere_are_ignored(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    (mine, _) = [sample async for sample in rack.engine.telemetry()]
    ended = asyncio.Event()

    async def forged_reports() -> AsyncIterator[RankSample]:
        yield replace(mine, endpoint="gpu9", values={})
        yield replace(mine, job="unknown")
        yield replace(mine, rank=99)
        yield mine
        ended.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(rack.engine, "telemetry", forged_reports)
    telemetry = Telemetry(rack.parts.state, rack.aggregators, rack.engine)
    running = asyncio.create_task(telemetry.run_samples())
    async with asyncio.timeout(60):
        await ended.wait()
    assert [telemetry.sample("red", n) for n in range(mine.rank + 1)][mine.rank :] == [mine]
    running.cancel()
