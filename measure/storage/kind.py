"""The type ``storage``: how fast a volume is, by workers, transfer size and limits.

The grid follows fio-based studies of GPU servers (Micron, SDC 2021): workers against transfer
size, with the processor time beside the throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from measure.envelope import Body, Json, Row, ToolVersion
from measure.kinds import Line, MeasuredEndpoint, MeasuredSite, Progress, Run, RunEnd
from measure.storage import fio, plan, tables
from measure.storage.plan import StorageLimits
from measure.storage.rows import CACHED, StorageLines, collect, doubts, rows

SATURATED = 0.95
"""Share of the highest throughput at which more workers no longer help."""
_IMPORTS: Mapping[str, Callable[[str], Body]] = {"fio": fio.imported}


@dataclass(slots=True, frozen=True)
class Storage:
    """See the module."""

    name: str = "storage"
    imports: Mapping[str, Callable[[str], Body]] = field(default_factory=lambda: _IMPORTS)

    def settings(self, given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
        """Return all settings with their defaults. Raises SettingsError."""
        del fabric
        return plan.settings(given)

    def runs(self, settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
        """Return a run per limit and server. Raises SettingsError."""
        return plan.runs(settings, fabric, seed)

    def progress(self, settings: Row, fabric: MeasuredSite, lines: Sequence[Line]) -> Progress:
        """Count the points that were measured."""
        total = len(self._places(settings, fabric)) * len(list(plan.points(settings)))
        done = sum(line.record.get("probe") == "point" for line in lines)
        return Progress(min(done, total), total, f"{done} of {total} points")

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        """Return a row per run and point; a point without figures has nulls and a reason."""
        del seed
        found: list[dict[str, Json]] = []
        anomalies: list[dict[str, Json]] = []
        refused: list[str] = []
        version = ""
        for number, (arm, place) in enumerate(self._places(settings, fabric)):
            said = collect(lines, number)
            end = ends[number] if number < len(ends) else RunEnd(completed=False, reason="not run")
            found += rows(settings, arm, place, said, end)
            anomalies += _remarks(said, arm, place.server)
            refused.append(f"{place.server}: {said.refused}" if said.refused else "")
            version = version or said.version
        return Body(
            rows=found,
            anomalies=anomalies,
            summary=_summary(found),
            tool=ToolVersion(name="fio", version=version.removeprefix("fio-")),
            invalid_because=doubts(settings, found, refused),
        )

    def table(self, result: Row) -> str:
        """Return a result as lines of text."""
        return tables.table(result)

    @staticmethod
    def _places(
        settings: Row, fabric: MeasuredSite
    ) -> list[tuple[StorageLimits, MeasuredEndpoint]]:
        """Return the limits and the endpoint of each run, in order."""
        return [(arm, place) for arm in plan.arms(settings) for place in plan.chosen(fabric)]


def _remarks(said: StorageLines, arm: StorageLimits, server: str) -> list[dict[str, Json]]:
    """Return the notes for a reader about one run's device and path."""
    remarks: list[dict[str, Json]] = []
    if said.device.get("direct_loop") is False:
        remarks.append(
            {
                "kind": "host_cache",
                "object": server,
                "evidence": "the volume lies on a loop device without direct I/O: the server's"
                " memory may answer; use losetup --direct-io=on",
            }
        )
    number = said.device.get("number")
    if arm.io_bps is not None and isinstance(number, str) and number.startswith("0:"):
        remarks.append(
            {
                "kind": "no_limit",
                "object": server,
                "evidence": f"{said.device.get('filesystem')} has no block device of its own:"
                " the limit of I/O does not hold on it",
            }
        )
    if said.gdscheck is not None and said.gdscheck.compat_allowed:
        remarks.append(
            {
                "kind": "compat_allowed",
                "object": server,
                "evidence": "cuFile may fall back to POSIX silently (allow_compat_mode);"
                " rows have `compat` where its counters stood still",
            }
        )
    return remarks


def _summary(found: Sequence[Row]) -> dict[str, Json]:
    """Return the best point of each series, where more workers stop to help, and the limits."""
    series: dict[tuple[Json, ...], list[Row]] = {}
    names = ("server", "io_limit_bps", "memory_bytes", "rw", "path")
    for row in found:
        if row["bytes_per_s"] is not None:
            series.setdefault(tuple(row[name] for name in names), []).append(row)
    best = []
    for key, rows_ in series.items():
        top = max(rows_, key=lambda row: float(row["bytes_per_s"]))
        enough = [r["workers"] for r in rows_ if r["bytes_per_s"] >= SATURATED * top["bytes_per_s"]]
        limit = top["io_limit_bps"]
        best.append(
            {
                **dict(zip(names, key, strict=True)),
                **{name: top[name] for name in ("workers", "io_bytes", "bytes_per_s", "cpu_cores")},
                "workers_enough": min(enough),
                "of_limit": top["bytes_per_s"] / limit if limit else None,
            }
        )
    shares = [row["cached_share"] for row in found if row["cached_share"] is not None]
    return {
        "best": best,
        "cached_share": max(shares) if shares else None,
        "from_disk": None if not shares else max(shares) <= CACHED,
    }


STORAGE = Storage()
