"""A server that takes connections and never answers must not hide the others."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from controller.agent_engine import AgentEngine
from controller.engine import RankState
from tests.contract.agent_rig import agent_rig
from tests.contract.engine_contract import SLEEP


async def test_a_black_holed_server_does_not_hold_up_the_look(tmp_path: Path) -> None:
    """Its time-outs are the real ones, which a busy machine does not reach."""
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
