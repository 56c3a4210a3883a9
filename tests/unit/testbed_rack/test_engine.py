"""Tests that the private engine's start distinguishes an ended dockerd from a slow one."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import processes
from testbed.engine import DockerEngine, DockerEngineError


def fake_dockerd(folder: Path, script: str) -> None:
    """Write a program with the name dockerd to ``folder``."""
    program = folder / "dockerd"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerEngine:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return DockerEngine(tmp_path / "run", tmp_path / "data", prefer_host=False, cgroup="ll-none")


def test_a_dockerd_that_ends_is_reported_with_status_and_last_line(
    engine: DockerEngine, tmp_path: Path
) -> None:
    fake_dockerd(tmp_path, "echo no space left >&2; exit 3")
    with pytest.raises(DockerEngineError, match="ended with status 3: no space left"):
        engine.start()


def test_a_dockerd_without_a_command_line_does_not_count_as_dead(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the middle of exec a process has no command line; here no process ever has one.
    monkeypatch.setattr(processes, "running", lambda program, path: [])
    fake_dockerd(tmp_path, "sleep 1; echo late >&2; exit 4")
    with pytest.raises(DockerEngineError, match="ended with status 4: late"):
        engine.start()


def test_an_engine_that_is_slow_to_answer_is_not_ended(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, ending the engine would end all containers of the rack."""
    answers = iter((False, False, True))
    monkeypatch.setattr("testbed.engine._answers", lambda url: next(answers))
    monkeypatch.setattr(processes, "running", lambda program, path: [1])
    monkeypatch.setattr(processes, "send", lambda pid, sig: pytest.fail("signalled"))
    fake_dockerd(tmp_path, "exit 1")
    assert engine.start().private
