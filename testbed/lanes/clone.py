"""Gives a lane the folder /var/lib/lightloom: its own engine's data root, and views of the rest.

The data root has the machine's images, no containers and no build cache. A layer of an image is
never written to, so the lane's are symbolic links into a read-only view of the machine's: a data
root is made and removed in moments, and an image that the lane removes stays outside.
"""

from __future__ import annotations

import shutil
from pathlib import Path

LIBRARY = Path("/var/lib/lightloom")
CLONES = LIBRARY / "lanes"
"""Parent folder of what lanes keep on the disk."""
LAYERS = "layers"
"""The view of the machine's layers, in a lane's library."""

_ENGINE = "docker"
_OWN = (_ENGINE, CLONES.name, LAYERS, "failed-up")
"""What a lane does not see of the folder outside."""
_GRAPH = "overlay2"


def folder(name: str) -> Path:
    """Return what lane ``name`` keeps on the disk."""
    return CLONES / name


def names() -> frozenset[str]:
    """Return the lanes that keep something on the disk."""
    return frozenset(p.name for p in CLONES.iterdir()) if CLONES.is_dir() else frozenset()


def library(name: str) -> Path:
    """Return the folder that lane ``name`` has as /var/lib/lightloom."""
    return folder(name) / "lib"


def make(name: str) -> None:
    """Make the library of lane ``name``, with mount points for what it shares."""
    target = library(name)
    target.mkdir(parents=True)
    (target / LAYERS).mkdir()
    copy_engine(LIBRARY / _ENGINE, target / _ENGINE, LIBRARY / LAYERS)
    for entry in shared():
        (target / entry).mkdir()


def shared() -> tuple[str, ...]:
    """Return the folders that every lane shares with the machine."""
    entries = sorted(LIBRARY.iterdir()) if LIBRARY.is_dir() else []
    return tuple(e.name for e in entries if e.is_dir() and e.name not in _OWN)


def layers() -> Path | None:
    """Return the machine's layers, None without an engine's data root."""
    graph = LIBRARY / _ENGINE / _GRAPH
    return graph if graph.is_dir() else None


def copy_engine(source: Path, target: Path, view: Path) -> None:
    """Make a data root with the images of another, whose layers are seen at ``view``.

    Without any image the target is an empty folder.
    """
    target.mkdir(mode=0o710)
    images = Path("image") / _GRAPH
    if not (source / images).is_dir():
        return
    shutil.copytree(source / images, target / images, ignore=_without_state)
    graph = target / _GRAPH
    (graph / "l").mkdir(parents=True)
    for note in sorted((target / images).glob("layerdb/sha256/*/cache-id")):
        layer = note.read_text(encoding="ascii").strip()
        (graph / layer).mkdir(mode=0o710)
        for entry in (source / _GRAPH / layer).iterdir():
            if entry.name == "diff":
                (graph / layer / "diff").symlink_to(view / layer / "diff")
            elif entry.is_dir():
                (graph / layer / entry.name).mkdir(mode=0o700)
            else:
                shutil.copy2(entry, graph / layer / entry.name)
        link = (graph / layer / "link").read_text(encoding="ascii").strip()
        (graph / "l" / link).symlink_to(f"../{layer}/diff")


def _without_state(folder: str, names: list[str]) -> set[str]:
    return {"mounts", "tmp"} & set(names) if Path(folder).name == "layerdb" else set()
