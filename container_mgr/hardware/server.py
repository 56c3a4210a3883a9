"""Reads what the kernel says of the server itself: the readings that the catalogue has for it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from readings.reading import Value, Values


def read(proc: Path = Path("/proc")) -> Values:
    """Return the server's readings (proc(5)); what cannot be read is left out."""
    values: dict[str, Value] = {}
    with suppress(OSError, ValueError, IndexError):
        values["load"] = float((proc / "loadavg").read_text().split()[0])
    with suppress(OSError, ValueError, KeyError):
        lines = (proc / "meminfo").read_text().splitlines()
        sizes = dict(line.split(":", 1) for line in lines if ":" in line)
        kib = sizes["MemAvailable"].removesuffix("kB")
        values["memory_available_bytes"] = int(kib) * 1024
    return values
