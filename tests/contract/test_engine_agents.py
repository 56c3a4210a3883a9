"""The engine contract, for agents over a fake of Docker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.contract.engine_contract import EngineContract
from tests.parts.agent.rig import AgentRig, agent_rig


class TestAgents(EngineContract):
    @pytest_asyncio.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[AgentRig]:
        async with agent_rig(tmp_path) as one:
            yield one
