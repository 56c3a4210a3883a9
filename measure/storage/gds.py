"""Reads what NVIDIA's GPUDirect Storage tools print. Untried on hardware.

``gdscheck -p`` prints what the platform supports, ``gdsio`` one line of figures, and
``/proc/driver/nvidia-fs/stats`` counts. With ``allow_compat_mode`` cuFile falls back to POSIX
silently: only the counters show it (GPUDirect Storage: benchmarking and configuration guide,
troubleshooting guide).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from measure.envelope import Json
from measure.statistics import median, summarise

Path = Literal["gds", "compat", "bounce"]

MOST_TEXT = 65536
_UNIT = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_GDSIO = re.compile(
    r"Throughput:\s*(?P<rate>\d+(?:\.\d+)?)\s*(?P<unit>[KMG]iB)/sec,"
    r"\s*Avg_Latency:\s*(?P<latency>\d+(?:\.\d+)?)\s*usecs\s+ops:\s*(?P<ops>\d+)"
    r"\s+total_time\s*(?P<time>\d+(?:\.\d+)?)\s*secs",
    re.ASCII,
)
_SUPPORT = re.compile(
    r"^\s*(?P<name>[A-Za-z][\w+ /.-]{0,40}?)\s*:\s*(?P<word>Supported|Unsupported)"
)
_COUNT = re.compile(r"^(?P<name>Ops|Reads|Writes)\s*:\s*(?P<rest>.*)$")
_FIELD = re.compile(r"(?P<name>\w+)=(?P<count>\d{1,18})", re.ASCII)


@dataclass(slots=True, frozen=True)
class GdsLine:
    """One line of gdsio."""

    bytes_per_s: float
    latency_s: float
    """Mean of one transfer."""
    operations: int
    seconds: float


@dataclass(slots=True, frozen=True)
class GdsCheck:
    """The output of ``gdscheck -p``."""

    modes: Mapping[str, bool] = field(default_factory=dict)
    """By driver or file system: whether GDS supports it here."""
    compat_allowed: bool | None = None
    """Whether a fall-back to POSIX would be silent; None if it does not print it."""

    @property
    def any_supported(self) -> bool:
        """Whether GDS works with anything here."""
        return any(self.modes.values())


def line(text: str) -> GdsLine | None:
    """Return the last line of figures in gdsio's output, None without one."""
    found = None
    for found in _GDSIO.finditer(text[-MOST_TEXT:]):  # noqa: B007 - the last one is wanted
        pass
    if found is None:
        return None
    return GdsLine(
        float(found["rate"]) * _UNIT[found["unit"]],
        float(found["latency"]) / 1e6,
        int(found["ops"]),
        float(found["time"]),
    )


def check(text: str) -> GdsCheck:
    """Read the output of ``gdscheck -p``; what is not understood is left out."""
    modes: dict[str, bool] = {}
    compat = None
    for one in text[:MOST_TEXT].splitlines():
        if (found := _SUPPORT.match(one)) is not None:
            modes[found["name"].strip()] = found["word"] == "Supported"
        name, _, value = one.partition(":")
        if name.strip() == "properties.allow_compat_mode":
            compat = {"true": True, "false": False}.get(value.strip().lower())
    return GdsCheck(modes, compat)


def operations(text: str | None) -> Mapping[str, int]:
    """Return the counters of nvidia-fs, such as ``Reads.n``; empty without them."""
    counters = {}
    for one in (text or "")[:MOST_TEXT].splitlines():
        if (found := _COUNT.match(one.strip())) is not None:
            for part in _FIELD.finditer(found["rest"]):
                counters[f"{found['name']}.{part['name']}"] = int(part["count"])
    return counters


def path(asked: str, before: str | None, after: str | None, *, writes: bool) -> Path:
    """Return the path of the data: ``compat`` when GDS was set and its counters stood still."""
    if asked != "gds":
        return "bounce"
    name = "Ops.Write" if writes else "Ops.Read"
    first, last = operations(before), operations(after)
    moved = last.get(name, 0) - first.get(name, 0)
    other = "Writes.n" if writes else "Reads.n"
    moved = max(moved, last.get(other, 0) - first.get(other, 0))
    return "gds" if moved > 0 else "compat"


def figures(lines: Sequence[GdsLine]) -> dict[str, Json]:
    """Return the figures of a row from its repetitions; gdsio has no percentiles."""
    spread = summarise([one.bytes_per_s for one in lines])
    if spread is None:
        return {}
    latency = {"mean": median([one.latency_s for one in lines])}
    return {
        "bytes_per_s": spread.median,
        "iops": median([one.operations / max(one.seconds, 1e-9) for one in lines]),
        "latency_s": {**latency, "p50": None, "p95": None, "p99": None, "p999": None},
        "spread": {"bytes_per_s": spread.document()},
    }
