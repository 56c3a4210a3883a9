from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.parts.controller.rack import Rack


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    """A started controller over fakes, with all endpoints at the site file's homes."""
    rack = Rack(tmp_path)
    await rack.up()
    yield rack
    await rack.down()
