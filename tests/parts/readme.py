"""README's command blocks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"^```\n(.*?)^```$", re.S | re.M)


def blocks(section: str) -> list[list[str]]:
    """Return the command lines of a section of README, by block and without their remarks."""
    text = README.read_text(encoding="utf-8")
    chapter = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [
        [line for part in block.splitlines() if (line := _command(part))]
        for block in _BLOCK.findall(chapter)
    ]


def _command(line: str) -> str:
    return shlex.join(shlex.split(line, comments=True))
