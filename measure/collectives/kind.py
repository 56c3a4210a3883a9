"""The type ``collectives``: its jobs, and the rows of their lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from measure.collectives import settings as options
from measure.collectives.imports import IMPORTS
from measure.collectives.roads import ring_rates
from measure.collectives.rows import GroupSetting, PointTiming, row, timing
from measure.collectives.tables import table
from measure.envelope import Body, Json, Row, ToolVersion
from measure.kinds import PROBE_ENV, Line, MeasuredSite, Progress, Run, RunEnd, SettingsError
from measure.placements import RankPlacement, place

START_S = 180.0
"""Longest start of a job's ranks: containers, the framework's import, the rendezvous."""
OPERATION_S = 120.0
"""Longest wait inside one operation: longer than any planned dark time."""
_MODULES = {"torch": "probe.collectives_torch", "tensorflow": "probe.collectives_tf"}


@dataclass(slots=True, frozen=True)
class _Case:
    """One run: a placement, the groups of its ranks, and each group's points."""

    placement: RankPlacement
    groups: Sequence[Sequence[int]]
    points: Sequence[Sequence[tuple[str, int, int]]]

    @property
    def label(self) -> str:
        return f"{self.placement.name}, {len(self.placement.order)} ranks"


class Collectives:
    """Collectives with nccl-tests' columns, over placements and numbers of ranks."""

    name = "collectives"
    imports: Mapping[str, Callable[[str], Body]] = IMPORTS

    def settings(self, given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
        """Return all settings with their defaults. Raises SettingsError."""
        complete = options.complete(given, fabric)
        _cases(complete, fabric)
        return complete

    def runs(self, settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
        """Return a job for each placement and number of ranks."""
        cases, here = _cases(settings, fabric), {one.endpoint: one.home for one in fabric.places}
        # A run leaves endpoints where it moved them: then each run names the homes of its own.
        moves = any(
            here[name] != home for case in cases for name, home in case.placement.homes.items()
        )
        return [_run(case, settings, moves) for case in cases]

    def progress(self, settings: Row, fabric: MeasuredSite, lines: Sequence[Line]) -> Progress:
        """Count the points that the first rank of each group has reported."""
        cases = _cases(settings, fabric)
        total = sum(len(points) for case in cases for points in case.points)
        done = [
            (run, point)
            for run, rank, point in _timings(cases, lines)
            if any(rank == ranks[0] for ranks in cases[run].groups)
        ]
        if not done:
            return Progress(0, total)
        run, (operation, size, _) = done[-1]
        return Progress(len(done), total, f"{cases[run].label}: {operation} {size} B")

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        """Return a row for each point of each group, also for one that is missing."""
        cases = _cases(settings, fabric)
        found = _timings(cases, lines)
        rows: list[Row] = []
        elsewhere: list[str] = []
        missing = wrong = 0
        for number, case in enumerate(cases):
            homes = _homes(case.placement, ends[number] if number < len(ends) else None)
            if any(homes[name] != home for name, home in case.placement.homes.items()):
                elsewhere.append(case.label)
            reason = _reason(ends[number] if number < len(ends) else None)
            rates = ring_rates(case.placement.order, case.groups, homes, fabric)
            for group, ranks in enumerate(case.groups):
                where = GroupSetting(
                    placement=case.placement.name,
                    group=group,
                    order=[case.placement.order[rank] for rank in ranks],
                    homes=homes,
                    rate=rates[group],
                    framework=str(settings["framework"]),
                    average=str(settings["average"]),
                    check=bool(settings["check"]),
                    repetitions=int(settings["repetitions"]),
                )
                for point in case.points[group]:
                    timings = [found.get((number, rank, point)) for rank in ranks]
                    made = row(where, point, timings, reason)
                    rows.append(made.row)
                    missing += made.missing
                    wrong += made.wrong
        invalid = []
        if missing:
            invalid.append(f"fewer repetitions than asked: {missing} of {len(rows)} points")
        if wrong:
            invalid.append(f"data were wrong: {wrong} elements")
        if elsewhere:
            invalid.append(f"endpoints were not where they should be: {'; '.join(elsewhere[:4])}")
        return Body(rows=rows, summary=_summary(rows), tool=_tool(lines), invalid_because=invalid)

    def table(self, result: Row) -> str:
        """Return a result as nccl-tests prints it."""
        return table(result)


COLLECTIVES = Collectives()


def _cases(settings: Row, fabric: MeasuredSite) -> list[_Case]:
    cases = []
    for placement in settings["placements"]:
        explicit = isinstance(placement, dict)
        for ranks in [len(placement["homes"])] if explicit else settings["ranks"]:
            groups = [g for g in options.split(settings["together"], ranks) if len(g) > 1]
            if not groups:
                raise SettingsError(
                    "together",
                    f"{settings['together']} leaves no group of 2 of {ranks} ranks",
                    "use another split or more ranks",
                )
            points = options.extents(settings, [len(group) for group in groups])
            if not points[0]:
                raise SettingsError(
                    "sizes", f"are all too small for {ranks} ranks", "use larger sizes"
                )
            cases.append(_Case(place(placement, ranks, fabric), groups, points))
    return cases


def _run(case: _Case, settings: Row, moves: bool) -> Run:
    inside = {rank for ranks in case.groups for rank in ranks}
    # A rank that is alone in its group is left out: the last ones, by either split.
    order = [name for rank, name in enumerate(case.placement.order) if rank in inside]
    number = {rank: place for place, rank in enumerate(sorted(inside))}
    plan = {
        "groups": [[number[rank] for rank in ranks] for ranks in case.groups],
        "points": {len(ranks): own for ranks, own in zip(case.groups, case.points, strict=True)},
        "iterations": settings["iterations"],
        "repetitions": settings["repetitions"],
        "warm_up": settings["warm_up"],
        "point_s": settings["point_s"],
        "check": settings["check"],
        "timeout_s": OPERATION_S,
    }
    module = _MODULES[str(settings["framework"])]
    points = max(len(each) for each in case.points)
    return Run(
        command=("python3", "-m", module, json.dumps(plan, separators=(",", ":"))),
        endpoints=order,
        label=case.label,
        homes={name: case.placement.homes[name] for name in order} if moves else {},
        image=str(settings["image"]),
        env=dict(PROBE_ENV),
        timeout_s=START_S + OPERATION_S + points * 3 * float(settings["point_s"]),
    )


def _timings(
    cases: Sequence[_Case], lines: Sequence[Line]
) -> dict[tuple[int, int, tuple[str, int, int]], PointTiming]:
    """Return the first line of each rank for each point that its group has."""
    ranks_of = [
        {
            place: (rank, group)
            for place, rank in enumerate(sorted(r for ranks in case.groups for r in ranks))
            for group, ranks in enumerate(case.groups)
            if rank in ranks
        }
        for case in cases
    ]
    found: dict[tuple[int, int, tuple[str, int, int]], PointTiming] = {}
    for line in lines:
        if not 0 <= line.run < len(cases) or line.rank not in ranks_of[line.run]:
            continue
        rank, group = ranks_of[line.run][line.rank]
        one = timing(line.record)
        if one is None:
            continue
        point = (one.operation, one.size, one.count)
        if point in cases[line.run].points[group]:
            found.setdefault((line.run, rank, point), one)
    return found


def _homes(placement: RankPlacement, end: RunEnd | None) -> Mapping[str, str | None]:
    return {**placement.homes, **(end.homes if end else {})}


def _reason(end: RunEnd | None) -> str:
    if end is None:
        return "its job did not run"
    return "" if end.completed else end.reason or "its job did not complete"


def _summary(rows: Sequence[Row]) -> Row:
    """Return the best busbw of each operation in each placement, and its share of the ring."""
    best: dict[str, Row] = {}
    for one in rows:
        half = one["in_place"] or one["out_of_place"]
        if half is None:
            continue
        key = f"{one['operation']}, {one['placement']}, {one['ranks']} ranks, group {one['group']}"
        if key not in best or half["bus_bw"] > best[key]["bus_bw"]:
            best[key] = {
                "bus_bw": half["bus_bw"],
                "size": one["size"],
                "link_share": one["link_share"],
            }
    return {"best": best}


def _tool(lines: Sequence[Line]) -> ToolVersion:
    for line in lines:
        if line.record.get("probe") == "start":
            name, version = line.record.get("framework"), line.record.get("version")
            backend = line.record.get("backend")
            if all(isinstance(text, str) and len(text) <= 100 for text in (name, version, backend)):
                return ToolVersion(name=f"{name} {backend}", version=str(version))
    return ToolVersion(name="lightloom")
