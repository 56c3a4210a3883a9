"""What the kernel says of the server."""

from __future__ import annotations

from pathlib import Path

from container_mgr.hardware import server
from readings.catalogue import of
from readings.reading import Object


def test_load_and_available_memory_are_read(tmp_path: Path) -> None:
    (tmp_path / "loadavg").write_text("1.25 0.90 0.50 2/345 6789\n")
    (tmp_path / "meminfo").write_text("MemTotal:  8 kB\nMemAvailable:     4096 kB\n")
    values = server.read(tmp_path)
    assert values == {"load": 1.25, "memory_available_bytes": 4096 * 1024}
    assert values.keys() == {reading.name for reading in of(Object.SERVER)}
    assert server.read().keys() == values.keys()  # of this machine


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert server.read(tmp_path) == {}
    (tmp_path / "loadavg").write_text("")
    (tmp_path / "meminfo").write_text("MemAvailable: many kB\n")
    assert server.read(tmp_path) == {}
