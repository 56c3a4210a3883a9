from __future__ import annotations

import platform
from pathlib import Path

from container_mgr.recordings.shown import Packages, find


def package(root: Path, name: str, *files: str) -> Path:
    for file in ("__init__.py", *files):
        path = root / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o644)
    return root / name


def test_the_installed_packages_are_found() -> None:
    found = find()
    assert found.probe is not None
    assert found.recorder is not None
    assert (found.probe / "__init__.py").is_file()


def test_a_built_plugin_is_found(tmp_path: Path) -> None:
    probe = package(tmp_path, "probe")
    plugin = f"lib/{platform.machine()}/libll.so"
    recorder = package(tmp_path, "recorder", plugin)
    assert find(tmp_path) == Packages(probe, recorder, plugin)
    (recorder / plugin).unlink()
    assert find(tmp_path) == Packages(probe, recorder, "")


def test_what_ranks_could_not_read_is_not_shown(tmp_path: Path) -> None:
    package(tmp_path, "probe")
    (tmp_path / "probe" / "__init__.py").chmod(0o600)
    package(tmp_path, "recorder", "python/sitecustomize.py")
    (tmp_path / "recorder" / "python").chmod(0o700)
    assert find(tmp_path) == Packages()


def test_absent_packages_are_not_shown(tmp_path: Path) -> None:
    assert find(tmp_path) == Packages()
