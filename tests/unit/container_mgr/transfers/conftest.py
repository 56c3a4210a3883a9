"""The rig of transfers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.container_mgr.transfers.rig import Rig, rig


@pytest.fixture(name="rig")
def _rig(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as one:
        yield one
