from __future__ import annotations

import os
from pathlib import Path

import pytest

from container_mgr.hardware.jobmap import JobMap


def files(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_the_directory_has_one_file_per_gpu_in_use(tmp_path: Path) -> None:
    directory = tmp_path / "jobs"
    job_map = JobMap(directory, {"GPU-a": 0, "GPU-b": 1})
    job_map.write({"GPU-a": "red", "GPU-b": "red"})
    assert files(directory) == {"0": "red\n", "1": "red\n"}
    (directory / "7").write_text("of another program\n")
    job_map.write({"GPU-b": "blue", "GPU-unknown": "green"})
    assert files(directory) == {"1": "blue\n", "7": "of another program\n"}


def test_the_exporter_may_read_the_files(tmp_path: Path) -> None:
    JobMap(tmp_path, {"GPU-a": 0}).write({"GPU-a": "red"})
    assert (tmp_path / "0").stat().st_mode & 0o444 == 0o444


def test_a_file_that_is_right_is_not_written_again_and_none_is_synchronised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(descriptor: int) -> None:
        raise AssertionError("a synchronisation per start of a rank")

    monkeypatch.setattr(os, "fsync", unexpected)
    job_map = JobMap(tmp_path, {"GPU-a": 0})
    job_map.write({"GPU-a": "red"})
    before = (tmp_path / "0").stat().st_ino
    job_map.write({"GPU-a": "red"})
    assert (tmp_path / "0").stat().st_ino == before


def test_a_write_that_fails_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: Path, target: Path) -> Path:
        raise PermissionError("read-only")

    job_map = JobMap(tmp_path, {"GPU-a": 0})
    job_map.write({"GPU-a": "red"})
    monkeypatch.setattr(Path, "replace", refused)
    with pytest.raises(PermissionError):
        job_map.write({"GPU-a": "blue"})
    assert files(tmp_path) == {"0": "red\n"}
