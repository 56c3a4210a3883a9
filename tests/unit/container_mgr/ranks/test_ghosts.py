"""What the kernel has of a container that the engine calls running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from container_mgr.ranks import ghosts
from container_mgr.ranks.ghosts import Ghosts
from tests.unit.container_mgr.specs import RUNNING

GONE = replace(RUNNING, pid=2**22 - 1)


@pytest.mark.parametrize(
    ("parent", "group"),
    [
        ("ll-test.slice", f"ll.slice/ll-test.slice/docker-{GONE.id}.scope"),
        ("/ll-test", f"ll-test/{GONE.id}"),
    ],
)
def test_a_process_that_is_left_in_the_cgroup_is_no_ghost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str, group: str
) -> None:
    """Its first process is gone, and another one waits in the kernel."""
    monkeypatch.setattr(ghosts, "GRACE_S", 0.0)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(
        f"1 2 0:26 / {tmp_path}/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
    )
    command = tmp_path / "cgroup" / group / "ll-exec-1"
    command.mkdir(parents=True)
    (command.parent / "cgroup.procs").touch()
    (command / "cgroup.procs").write_text("4711\n")
    found = Ghosts(parent, tmp_path)
    assert found.judge(GONE).alive
    assert GONE.id not in found
    (command / "cgroup.procs").write_text("")
    assert found.judge(GONE).state == "exited"
    assert GONE.id in found
    found.forget(GONE.id)
    assert GONE.id not in found
