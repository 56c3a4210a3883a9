"""Writes which job uses which GPU, in files that dcgm-exporter reads.

``dcgm-exporter --hpc-job-mapping-dir`` reads one file per GPU, named by its index, with one
job per line, and labels every metric of that GPU with the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from container_mgr import atomic_file


class JobMap:
    """The directory of these files. ``indices`` maps each GPU's UUID to its index."""

    def __init__(self, directory: Path, indices: Mapping[str, int]) -> None:
        self._directory = directory
        self._indices = indices

    def write(self, jobs: Mapping[str, str]) -> None:
        """Write ``jobs`` to the directory: GPU UUID -> job. Other files stay as they are."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for uuid, index in self._indices.items():
            path, job = self._directory / str(index), jobs.get(uuid)
            if job is None:
                path.unlink(missing_ok=True)
            elif not path.exists() or path.read_text(encoding="utf-8") != f"{job}\n":
                # Not durable: the map is written whenever a rank starts or ends, and again at
                # the agent's start, so a power cut loses nothing.
                atomic_file.write(path, f"{job}\n", durable=False)
