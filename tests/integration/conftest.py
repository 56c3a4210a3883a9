"""What the agent's tests stand on: a private Docker Engine a module, and an agent a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.agent_parts import (
    PrivateEngine,
    Rig,
    agent_rig,
    private_engine,
    two_nics,
)


@pytest.fixture(scope="module")
def private() -> Iterator[PrivateEngine]:
    with private_engine() as one:
        yield one


@pytest_asyncio.fixture
async def rig(private: PrivateEngine, tmp_path: Path) -> AsyncIterator[Rig]:
    with two_nics():
        async with agent_rig(private, tmp_path) as one:
            yield one
