"""Processes are found by their mark, in their own container only."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from container_mgr.kernel import marked
from tests.integration.waiting import until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    command = ["sleep", "600"]
    with subprocess.Popen(command, env={"LL_EXEC": "abc", "OTHER": "LL_EXEC=no"}) as process:
        # Popen returns before the kernel shows the new program's environment.
        environ = Path(f"/proc/{process.pid}/environ")
        until(environ.read_bytes, bool, limit_s=30.0)
        yield process
        process.kill()


def show(proc: Path, pid: int, group: str) -> None:
    entry = proc / str(pid)
    entry.mkdir()
    (entry / "cgroup").write_text(f"0::/ll-test/{group}\n")
    (entry / "environ").symlink_to(f"/proc/{pid}/environ")


def test_only_marked_processes_of_the_container_get_the_signal(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    show(tmp_path, sleeper.pid, "c1")
    (tmp_path / "self").mkdir()
    for container, mark in (("c2", "LL_EXEC=abc"), ("c1", "LL_EXEC=ab"), ("c1", "LL_EXEC=no")):
        assert marked.send(container, mark, signal.SIGKILL, tmp_path) == 0
    assert sleeper.poll() is None
    assert marked.send("c1", "LL_EXEC=abc", signal.SIGTERM, tmp_path) == 1
    assert sleeper.wait(timeout=30) == -signal.SIGTERM


def test_any_mark_is_meant_by_its_name_alone(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    show(tmp_path, sleeper.pid, "c1")
    assert marked.send("c1", "LL_EXEC=", signal.SIGKILL, tmp_path) == 1
    assert sleeper.wait(timeout=30) == -signal.SIGKILL


def test_a_process_that_ended_meanwhile_is_passed_over(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait(timeout=30)
    show(tmp_path, gone.pid, "c1")
    assert marked.send("c1", "LL_EXEC=", signal.SIGKILL, tmp_path) == 0
