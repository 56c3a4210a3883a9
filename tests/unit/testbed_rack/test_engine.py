"""The private engine's start: a dockerd that ends is told from one that is slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import processes
from testbed.engine import Engine, EngineError


def fake_dockerd(folder: Path, script: str) -> None:
    """Put a program named dockerd in ``folder``."""
    program = folder / "dockerd"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Engine(tmp_path / "run", tmp_path / "data", prefer_host=False, cgroup="ll-none")


def test_a_dockerd_that_ends_is_reported_with_status_and_last_words(
    engine: Engine, tmp_path: Path
) -> None:
    fake_dockerd(tmp_path, "echo no space left >&2; exit 3")
    with pytest.raises(EngineError, match="ended with status 3: no space left"):
        engine.start()


def test_a_dockerd_without_a_command_line_yet_is_not_taken_for_dead(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the middle of exec a process shows no command line; here nothing ever does.
    monkeypatch.setattr(processes, "running", lambda program, path: [])
    fake_dockerd(tmp_path, "sleep 1; echo late >&2; exit 4")
    with pytest.raises(EngineError, match="ended with status 4: late"):
        engine.start()


def test_an_engine_that_is_slow_to_answer_is_not_ended(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine: with the engine all containers of the rack would end."""
    answers = iter((False, False, True))
    monkeypatch.setattr("testbed.engine._answers", lambda url: next(answers))
    monkeypatch.setattr(processes, "running", lambda program, path: [1])
    monkeypatch.setattr(processes, "send", lambda pid, sig: pytest.fail("signalled"))
    fake_dockerd(tmp_path, "exit 1")
    assert engine.start().private
