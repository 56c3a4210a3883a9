"""Writes site files that differ from the paper's rack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.parts.sites import PAPER


def written(tmp_path: Path, **sections: Any) -> Path:
    document = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump({**document, **sections}), encoding="utf-8")
    return file
