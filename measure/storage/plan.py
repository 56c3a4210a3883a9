"""What a storage measurement may be asked for, and its grid of points."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from base.figures import figure
from measure.envelope import Json, Row
from measure.given import RequestSettings
from measure.kinds import PROBE_ENV, PROBE_IMAGE, MeasuredEndpoint, MeasuredSite, Run, SettingsError

DIRECTORY = "/volume"
"""Where the volume appears in the container."""
WORKERS = (1, 2, 4, 8, 16, 32, 64)
IO_BYTES = (4096, 16384, 65536, 262144, 2**20, 4 * 2**20)
RW = ("read", "write", "randread", "randwrite")
PATHS = ("posix", "bounce", "gds")
NAMES = (
    *("volume", "file", "size", "workers", "io_bytes", "rw", "paths", "runtime_s", "ramp_s"),
    *("repetitions", "direct", "iodepth", "io_limits", "memory_limits", "together", "image"),
)
VOLUME = r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?"
FILE = r"(?!.*(^|/)\.\.(/|$))[A-Za-z0-9_@+-][A-Za-z0-9._@+/-]{0,500}"
IMAGE = r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,300}"
LEAST_BPS = 65536
"""Lowest rate that agents accept, in bytes per second."""
LEAST_MEMORY = 2**26
MOST_POINTS = 2000
MOST_S = 6 * 3600.0
START_S = 1.0
"""Time of one run of fio besides what it measures."""
LAY_OUT_BPS = 20e6
"""A disk is expected to write the file at this rate or a faster one."""
MARGIN_S = 180.0


@dataclass(slots=True, frozen=True)
class StorageLimits:
    """What one run measures under: limits in bytes a second and bytes, None for none."""

    io_bps: int | None
    memory_bytes: int | None

    @property
    def label(self) -> str:
        """What distinguishes it, for people."""
        parts = []
        if self.io_bps is not None:
            parts.append(f"{figure(self.io_bps / 1e6, 6)} MB/s")
        if self.memory_bytes is not None:
            parts.append(f"{figure(self.memory_bytes / 2**20, 6)} MiB of memory")
        return ", ".join(parts) or "no limit"


def settings(given: Mapping[str, Json]) -> dict[str, Json]:
    """Return all settings with their defaults. Raises SettingsError."""
    asked = RequestSettings(given)
    asked.only(NAMES)
    volume = asked.text("volume", VOLUME, "the name of a volume")
    if not volume:
        raise SettingsError(
            "volume", "it is required", "set volume=NAME; lightloom get volumes lists them"
        )
    workers = asked.integers("workers", WORKERS, 1, 1024)
    io_bytes = asked.sizes("io_bytes", IO_BYTES, 512, 2**28)
    file = asked.text("file", FILE, "a path inside the volume")
    rw = asked.choices("rw", ("read",), RW)
    if file and any(word.endswith("write") for word in rw):
        raise SettingsError("file", "a file of the volume is only read", "set rw=read,randread")
    least = max(workers) * max(io_bytes)
    size = asked.size("size", max(2**28, least), 2**20, 2**44)
    if size < least:
        raise SettingsError(
            "size",
            f"{size} bytes give {max(workers)} workers less than one transfer of"
            f" {max(io_bytes)} each",
            f"set size={least} or more",
        )
    checked = {
        "volume": volume,
        "file": file,
        "size": size,
        "workers": workers,
        "io_bytes": io_bytes,
        "rw": rw,
        "paths": asked.choices("paths", ("posix",), PATHS),
        "runtime_s": asked.number("runtime_s", 10.0, 0.2, 3600.0),
        "ramp_s": asked.number("ramp_s", 2.0, 0.0, 600.0),
        "repetitions": asked.integer("repetitions", 5, 1, 100),
        "direct": asked.flag("direct", default=True),
        "iodepth": asked.integer("iodepth", 1, 1, 1024),
        **limits(asked),
        "together": asked.flag("together", default=False),
        "image": asked.text("image", IMAGE, "the name of an image") or PROBE_IMAGE,
    }
    if len(list(points(checked))) * len(arms(checked)) > MOST_POINTS:
        raise SettingsError(
            "workers", f"there are more than {MOST_POINTS} points", "set fewer workers or io_bytes"
        )
    return checked


def limits(asked: RequestSettings) -> dict[str, Json]:
    """Return the settings of limits: bytes a second and bytes; 0 is unlimited."""
    found = {
        "io_limits": asked.sizes("io_limits", (), 0, 2**50, base=1000),
        "memory_limits": asked.sizes("memory_limits", (), 0, 2**50),
    }
    for name, least in (("io_limits", LEAST_BPS), ("memory_limits", LEAST_MEMORY)):
        if any(0 < value < least for value in found[name]):
            raise SettingsError(name, f"a limit is below {least}", "raise it; 0 is unlimited")
    return dict(found)


def arms(settings: Row) -> list[StorageLimits]:
    """Return the limits to measure under: every memory with every disk, one without limits else."""
    return [
        StorageLimits(io_bps or None, memory or None)
        for memory in settings["memory_limits"] or [0]
        for io_bps in settings["io_limits"] or [0]
    ]


def points(settings: Row) -> Iterator[tuple[str, str, int, int]]:
    """Yield the grid: path, direction, workers, bytes of a transfer."""
    for path in settings["paths"]:
        for rw in settings["rw"]:
            for workers in settings["workers"]:
                for io_bytes in settings["io_bytes"]:
                    yield path, rw, workers, io_bytes


def chosen(fabric: MeasuredSite) -> list[MeasuredEndpoint]:
    """Return one endpoint per server, the first of each: a volume belongs to a server."""
    first: dict[str, MeasuredEndpoint] = {}
    for place in fabric.places:
        first.setdefault(place.server, place)
    return list(first.values())


def runs(settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
    """Return a run per limit and server; at once over the servers if ``together``."""
    places = chosen(fabric)
    if not places:
        raise SettingsError("volume", "no endpoint is idle", "wait until one is")
    seconds = _seconds(settings)
    found = []
    for number, arm in enumerate(arms(settings), 1):
        lay_out = settings["size"] / min(arm.io_bps or LAY_OUT_BPS, LAY_OUT_BPS)
        timeout = seconds + lay_out + MARGIN_S
        if timeout > MOST_S:
            raise SettingsError(
                "runtime_s",
                f"a run would last {timeout / 3600:.1f} h",
                "set fewer points, a shorter runtime_s, or a smaller size",
            )
        found += [
            Run(
                command=("python3", "-m", "probe.storage", _plan(settings, seed)),
                endpoints=(place.endpoint,),
                label=f"{place.server}: {arm.label}",
                together=number if settings["together"] and len(places) > 1 else 0,
                image=settings["image"],
                env=PROBE_ENV,
                memory_bytes=arm.memory_bytes,
                io_bps=arm.io_bps,
                volumes=((settings["volume"], DIRECTORY, bool(settings["file"])),),
                timeout_s=timeout,
            )
            for place in places
        ]
    return found


def _seconds(settings: Row) -> float:
    """Return how long one run measures."""
    per_point = settings["ramp_s"] + settings["runtime_s"] + START_S
    return float(len(list(points(settings))) * per_point)


def _plan(settings: Row, seed: int) -> str:
    plan: dict[str, Any] = {
        "directory": DIRECTORY,
        **{name: settings[name] for name in ("file", "rw", "workers", "io_bytes", "paths")},
        "bytes": settings["size"],
        **{name: settings[name] for name in ("ramp_s", "repetitions", "direct", "iodepth")},
        "runtime_s": settings["runtime_s"] / settings["repetitions"],
        "seed": seed,
    }
    return json.dumps(plan, separators=(",", ":"))
