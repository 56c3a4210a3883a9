from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from container_mgr.fence import Fence


def test_a_term_only_rises_and_survives_a_restart(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "agent" / "term")
    assert fence.term == 0
    fence.raise_to(5)
    fence.raise_to(3)
    assert fence.term == Fence(tmp_path / "agent" / "term").term == 5


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_term_that_was_not_stored_is_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    fence = Fence(tmp_path / "term")
    fence.raise_to(5)
    with monkeypatch.context() as disk:
        if step == "fsync":
            disk.setattr(os, "fsync", full)
        else:
            disk.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="no space"):
            fence.raise_to(7)
    assert fence.term == Fence(tmp_path / "term").term == 5
    fence.raise_to(7)
    assert fence.term == Fence(tmp_path / "term").term == 7


@pytest.mark.parametrize("text", ["", "rubbish", "5\0"])
def test_a_damaged_file_counts_as_no_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "term").write_text(text)
    assert Fence(tmp_path / "term").term == 0
