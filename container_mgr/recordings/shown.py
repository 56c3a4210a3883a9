"""What the agent shows to ranks of its own packages, and the variables that load it. Pure but find.

A container sees the package ``probe`` where its job measures, and ``recorder`` where its job's
communication is recorded; both read-only, and as the agent's own installation has them.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import structlog

from base.addresses import split_address

OUR_DIR = "/lightloom"
PROBE_DIR = f"{OUR_DIR}/probe"
RECORDER_DIR = f"{OUR_DIR}/recorder"
RECORD_DIR = f"{OUR_DIR}/record"
"""A small file system of the container for what its recorders write."""
RECORD_OPTIONS = "rw,nosuid,nodev,noexec,mode=1777,size=1m,nr_inodes=16"
PLUGIN = "NCCL_PROFILER_PLUGIN"
SEARCH = "PYTHONPATH"

NOTHING = "no recorder has written: only programs with PyTorch or NCCL have one"

_log = structlog.get_logger("container_mgr.recordings.shown")


@dataclass(slots=True, frozen=True)
class Packages:
    """Directories of this server; None where a package is absent or ranks could not read it."""

    probe: Path | None = None
    recorder: Path | None = None
    plugin: str = ""
    """NCCL's plug-in, relative to ``recorder``; empty when it is not built for this machine."""

    @property
    def lacking(self) -> str:
        """Return what this server cannot record; empty if it can record all."""
        if self.recorder is None:
            return "its server has no recorder that ranks can read"
        if not self.plugin:
            return f"{NOTHING}; NCCL's is not built on its server"
        return NOTHING

    def binds(self, *, probe: bool, record: bool) -> list[str]:
        """Return the engine's arguments that show a rank the packages that it needs."""
        wanted = ((probe, self.probe, PROBE_DIR), (record, self.recorder, RECORDER_DIR))
        return [f"{path}:{place}:ro" for use, path, place in wanted if use and path is not None]

    def variables(
        self, own: Mapping[str, str], image: Mapping[str, str], *, record: bool
    ) -> dict[str, str]:
        """Return the variables that load the recorders, beside the rank's ``own`` and its image's.

        Their search path of Python follows ours, so that our ``sitecustomize`` is the one that
        runs, which then runs the image's own. A plug-in that they choose stays.
        """
        if not record or self.recorder is None:
            return {}
        before = own.get(SEARCH, image.get(SEARCH, ""))
        ours = f"{RECORDER_DIR}/python"
        found = {SEARCH: f"{ours}:{before}" if before else ours}
        if self.plugin and PLUGIN not in own and PLUGIN not in image:
            found[PLUGIN] = f"{RECORDER_DIR}/{self.plugin}"
        return found


def refusal(own: Mapping[str, str], image: Mapping[str, str]) -> str:
    """Return why NCCL's calls of a rank cannot be recorded; empty when they can be."""
    chooser = "job" if PLUGIN in own else "image" if PLUGIN in image else ""
    return f"the {chooser} sets {PLUGIN} itself, and NCCL loads one plug-in" if chooser else ""


def profiler_port(variables: Mapping[str, str]) -> int:
    """Return the port on which a rank's TensorFlow answers; 0 where its variables name none."""
    try:
        found = json.loads(variables.get("TF_CONFIG", ""))
        task = found["task"]
        address = found["cluster"][task["type"]][int(task["index"])]
        return split_address(address, lowest=1)[1]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return 0


def find(root: Path | None = None) -> Packages:
    """Find the packages where this program is installed, or below ``root``."""
    recorder = _readable("recorder", root)
    plugin = f"lib/{platform.machine()}/libll.so"
    built = recorder is not None and (recorder / plugin).is_file()
    return Packages(_readable("probe", root), recorder, plugin if built else "")


def _readable(package: str, root: Path | None) -> Path | None:
    try:
        path = Path(str(resources.files(package))) if root is None else root / package
        path = path.resolve(strict=True)
    except (ImportError, OSError) as error:
        _log.warning("package is not shown to ranks", package=package, reason=str(error))
        return None
    closed = next((p for p in _tree(path) if not _open_to_all(p)), None)
    if closed is not None:
        reason = f"{closed} is not readable by every user"
        _log.warning("package is not shown to ranks", package=package, reason=reason)
        return None
    return path


def _tree(path: Path) -> Iterator[Path]:
    yield path
    for directory, directories, files in os.walk(path):
        if "__pycache__" in directories:
            directories.remove("__pycache__")
        yield from (Path(directory, name) for name in (*directories, *files))


def _open_to_all(path: Path) -> bool:
    wanted = 0o005 if path.is_dir() else 0o004
    return path.stat().st_mode & wanted == wanted
