"""What real daemons said, for tests without them.

``slurm/v0.0.N``: answers of slurmrestd (24.11.5 for v0.0.40 and v0.0.42, 26.05.5 for v0.0.45) with
their HTTP status; ``slurm/cli-*``: output of Slurm's programs. Four nodes: ``n0`` and ``n1`` with
two GPUs each, ``n2`` with two of type ``tesla``, ``n3`` with one. Left out are the cores of an
allocation and what is the machine's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SLURM = Path(__file__).parent / "slurm"
NODES = {
    "n0": ("gpu0", "gpu1"),
    "n1": ("gpu2", "gpu3"),
    "n2": ("gpu4", "gpu5"),
    "n3": ("gpu6",),
}
"""A site's map of these nodes."""


def answer(version: str, name: str) -> tuple[int, bytes]:
    """Return an answer of slurmrestd: its status and its body."""
    recorded = json.loads((SLURM / version / f"{name}.json").read_text(encoding="utf-8"))
    body = recorded["body"]
    return recorded["status"], (body if isinstance(body, str) else json.dumps(body)).encode()


def jobs(version: str, name: str) -> list[dict[str, Any]]:
    """Return the jobs of a recorded answer."""
    document = json.loads(answer(version, f"job-{name}")[1])
    found: list[dict[str, Any]] = document["jobs"]
    return found


def output(release: str, name: str) -> bytes:
    """Return what a program printed: ``output("24.11", "config.txt")``."""
    return (SLURM / f"cli-{release}" / name).read_bytes()
