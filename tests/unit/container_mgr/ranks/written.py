"""Log files as the container engine writes them."""

from __future__ import annotations

import json
from pathlib import Path

from container_mgr.ranks.logs import read


def record(text: str, stream: str = "stdout", time: str = "2026-01-01T00:00:00Z") -> bytes:
    return json.dumps({"log": text, "stream": stream, "time": time}).encode() + b"\n"


async def ended() -> bool:
    return False


async def everything(log: Path, tail: int | None = None) -> list[str]:
    batches = read(log, tail=tail, follow=False, alive=ended)
    return [line.text async for batch in batches for line in batch]


def fill(log: Path, *, records: int, rotated: int = 2) -> None:
    """Fill a log and its rotated files with numbered lines, oldest first."""
    number = 0
    for index in range(rotated, -1, -1):
        with Path(f"{log}.{index}" if index else log).open("wb") as out:
            for _ in range(records):
                out.write(record(f"{number}\n"))
                number += 1
