"""Settings and ranks' lines of measurements of type ``storage``."""

from __future__ import annotations

from typing import Any

from measure.kinds import (
    Line,
)

SMALL = {
    "volume": "results",
    "workers": "1,4",
    "io_bytes": "4k,1m",
    "repetitions": 2,
    "runtime_s": 1,
}


def part(name: str, rate: int, *, seconds: float = 0.5, error: int = 0) -> dict[str, Any]:
    read = {
        "io_bytes": int(rate * seconds),
        "bw_bytes": rate,
        "iops": rate / 4096,
        "lat_ns": {"mean": 1e6},
        "clat_ns": {"percentile": {"50.000000": 9e5, "99.000000": 2e6}},
    }
    return {"jobname": name, "error": error, "read": read}


def point(workers: int, io_bytes: int, *rates: int, **more: Any) -> dict[str, Any]:
    jobs = [part("ramp", 10), *(part(f"part{n}", rate) for n, rate in enumerate(rates))]
    return {
        "probe": "point",
        "path": "posix",
        "rw": "read",
        "workers": workers,
        "io_bytes": io_bytes,
        "tool": "fio",
        "version": "fio-3.33",
        "fio": {"jobs": jobs},
        "block_bytes": sum(job["read"]["io_bytes"] for job in jobs),
        "cores": {"container": 0.5, "server": 0.7},
        **more,
    }


def grid(run: int, **more: Any) -> list[Line]:
    return [
        Line(run, 0, point(workers, io_bytes, 10**6 * workers, 2 * 10**6 * workers, **more))
        for workers in (1, 4)
        for io_bytes in (4096, 2**20)
    ]
