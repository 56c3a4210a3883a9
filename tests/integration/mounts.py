"""File systems that tests mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def mounted(*words: str | Path) -> Iterator[None]:
    """Mount something; the last word is the place."""
    subprocess.run(["mount", *map(str, words)], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(words[-1])], check=True, timeout=30)


@contextlib.contextmanager
def loop_volume(directory: Path) -> Iterator[Path]:
    """Mount an ext4 of its own on a loop device."""
    image, place = directory / "ll-disk.img", directory / "disk"
    place.mkdir()
    with image.open("wb") as file:
        os.truncate(file.fileno(), 256 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, timeout=60)
    with mounted("-o", "loop", image, place):
        place.chmod(0o755)
        yield place


def mounts(below: Path) -> list[str]:
    """Return where something is mounted below a folder."""
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return [w for line in table.splitlines() if (w := line.split(" ")[4]).startswith(f"{below}/")]


def unmount(below: Path) -> None:
    """Unmount everything below a folder."""
    for path in mounts(below):
        subprocess.run(["umount", "--lazy", path], check=True, timeout=30)
