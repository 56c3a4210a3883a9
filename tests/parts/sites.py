"""Site files that tests use."""

from __future__ import annotations

from pathlib import Path

PAPER = Path(__file__).parents[2] / "testbed" / "sites" / "paper.yaml"
