"""The type ``input``: who limits a training, its input or its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from measure.envelope import Body, Json, Row, ToolVersion
from measure.kinds import Line, MeasuredSite, Progress, Run, RunEnd
from measure.loading import plan, tables
from measure.loading.rows import collect, row
from measure.storage.plan import arms

CACHED = 0.05
"""Share of the bytes from memory above which the disk was not what was measured.

Programs start and import during a phase: that is counted at the block layer as well.
"""


@dataclass(slots=True, frozen=True)
class Loading:
    """See the module."""

    name: str = "input"

    def settings(self, given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
        """Return all settings with their defaults. Raises SettingsError."""
        del fabric
        return plan.settings(given)

    def runs(self, settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
        """Return a run per limit. Raises SettingsError."""
        return plan.runs(settings, fabric, seed)

    def progress(self, settings: Row, fabric: MeasuredSite, lines: Sequence[Line]) -> Progress:
        """Count the phases of rank 0; a phase that reads further ahead is extra."""
        del fabric
        total = len(arms(settings)) * settings["blocks"] * plan.PHASES
        done = sum(
            line.rank == 0
            and line.record.get("probe") == "phase"
            and line.record.get("phase") != "deeper"
            for line in lines
        )
        return Progress(min(done, total), total, f"{done} of {total} phases")

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        """Return a row per limit; one without figures has nulls and a reason."""
        del seed, fabric
        rows: list[dict[str, Json]] = []
        anomalies: list[dict[str, Json]] = []
        because: list[str] = []
        for number, arm in enumerate(arms(settings)):
            said = collect(lines, number, settings["ranks"])
            end = ends[number] if number < len(ends) else RunEnd(completed=False, reason="not run")
            found = row(settings, arm, settings["ranks"], said, end)
            rows.append(found)
            if said.refused:
                because.append(f"{arm.label}: {said.refused}")
            elif found["limit"] is None:
                because.append(f"{arm.label}: {found['reason']}")
            elif found["repetitions"] < settings["blocks"]:
                because.append(
                    f"{arm.label}: {found['repetitions']} of {settings['blocks']} blocks"
                )
            bypass = settings["cache"] == "bypass"
            if bypass and said.direct is False:
                because.append(
                    f"{arm.label}: the volume allows no direct I/O, memory may answer; set"
                    " cache=use to measure that"
                )
            elif bypass and (found["cached_share"] or 0.0) > CACHED:
                because.append(f"{arm.label}: memory answered {found['cached_share']:.0%}")
            if arm.io_bps is not None and str(said.device.get("number", "")).startswith("0:"):
                anomalies.append(
                    {
                        "kind": "no_limit",
                        "object": settings["volume"],
                        "evidence": "the volume has no block device of its own: the limit of I/O"
                        " does not hold on it",
                    }
                )
        return Body(
            rows=rows,
            anomalies=anomalies,
            summary={"limits": [found["limit"] for found in rows]},
            tool=ToolVersion(name=f"loader {settings['loader']}"),
            invalid_because=list(dict.fromkeys(because)),
        )

    def table(self, result: Row) -> str:
        """Return a result as lines of text."""
        return tables.table(result)


INPUT = Loading()
