"""Which job is on which GPU, as files that dcgm-exporter reads.

``dcgm-exporter --hpc-job-mapping-dir`` wants one file a GPU, named by its index, with one
job a line, and puts the job on every metric of that GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class JobMap:
    """The directory. ``indices`` gives the index of each GPU's UUID."""

    def __init__(self, directory: Path, indices: Mapping[str, int]) -> None:
        self._directory = directory
        self._indices = indices

    def write(self, jobs: Mapping[str, str]) -> None:
        """Make the directory say ``jobs``: GPU UUID -> job. Others' files are left alone."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for uuid, index in self._indices.items():
            path, job = self._directory / str(index), jobs.get(uuid)
            if job is None:
                path.unlink(missing_ok=True)
            elif not path.exists() or path.read_text(encoding="utf-8") != f"{job}\n":
                beside = self._directory / f".{index}.new"
                beside.write_text(f"{job}\n", encoding="utf-8")
                beside.replace(path)
