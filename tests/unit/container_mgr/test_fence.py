from __future__ import annotations

from pathlib import Path

import pytest

from container_mgr.fence import Fence


def test_a_term_only_grows_and_outlives_the_agent(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "agent" / "term")
    assert fence.term == 0
    fence.raise_to(5)
    fence.raise_to(3)
    assert fence.term == Fence(tmp_path / "agent" / "term").term == 5


@pytest.mark.parametrize("text", ["", "rubbish", "5\0"])
def test_a_file_that_a_crash_spoilt_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "term").write_text(text)
    assert Fence(tmp_path / "term").term == 0
