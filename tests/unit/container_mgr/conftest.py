"""Volumes for the tests of the agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from container_mgr.volumes.volumes import Volumes
from tests.unit.container_mgr.volume_parts import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("data", "scratch"):
        (tmp_path / name).mkdir(mode=0o755)
    return Place(tmp_path)


@pytest_asyncio.fixture
async def volumes(place: Place) -> AsyncIterator[Volumes]:
    async with place.agent() as one:
        yield one
