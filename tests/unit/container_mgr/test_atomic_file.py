from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from container_mgr import atomic_file


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class Disk:
    """Records what is synchronised and renamed, and fails one of these steps with EIO."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: str = "") -> None:
        self.steps: list[str] = []
        self._fails = fails
        real_fsync, real_replace = os.fsync, Path.replace

        def fsync(descriptor: int) -> None:
            kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
            self._step(f"sync {kind}")
            real_fsync(descriptor)

        def replace(source: Path, target: Path) -> Path:
            self._step("rename")
            return real_replace(source, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)

    def _step(self, step: str) -> None:
        self.steps.append(step)
        if step == self._fails:
            raise OSError(errno.EIO, "input/output error")


@pytest.mark.parametrize("mode", [0o444, 0o555, 0o644])
def test_the_file_has_the_new_text_and_the_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "x"
    path.write_text("a longer old text")
    atomic_file.write(path, "new", mode=mode)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert names(tmp_path) == ["x"]


def test_a_reader_of_the_old_file_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with path.open() as reader:
        atomic_file.write(path, "new")
        assert reader.read() == "old"


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "x"
    target.write_text("untouched")
    path.symlink_to(target)
    atomic_file.write(path, "new")
    assert (target.read_text(), path.read_text()) == ("untouched", "new")
    assert not path.is_symlink()


def test_the_text_is_on_the_disk_before_the_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    atomic_file.write(tmp_path / "x", "new")
    assert disk.steps == ["sync file", "rename", "sync directory"]


def test_a_file_that_need_not_be_durable_is_not_synchronised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    atomic_file.write(tmp_path / "x", "new", durable=False)
    assert disk.steps == ["rename"]
    assert (tmp_path / "x").read_text() == "new"


@pytest.mark.parametrize("step", ["sync file", "rename"])
def test_after_an_error_the_old_file_is_there_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    Disk(monkeypatch, fails=step)
    with pytest.raises(OSError, match="input/output"):
        atomic_file.write(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["x"]


def test_an_error_of_the_directory_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, fails="sync directory")
    with pytest.raises(OSError, match="input/output"):
        atomic_file.write(tmp_path / "x", "new")
    assert names(tmp_path) == ["x"]


def test_text_that_cannot_be_encoded_leaves_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        atomic_file.write(tmp_path / "x", "\ud800")
    assert names(tmp_path) == []


def test_a_directory_at_the_path_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_file.write(tmp_path / "x", "new")
    assert names(tmp_path) == ["x"]
