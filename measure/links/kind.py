"""The type ``links``: latency and bandwidth of pairs of endpoints, groups, and what stands out.

After Tallent et al. (PMBS'17), who measured every ordered pair of GPUs and found that values
cluster into groups; definitions follow ucx_perftest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from measure.envelope import Body, Json, Row, ToolVersion
from measure.kinds import (
    PROBE_ENV,
    Line,
    MeasuredEndpoint,
    MeasuredSite,
    Progress,
    Run,
    RunEnd,
    SettingsError,
)
from measure.links import settings as chosen
from measure.links import tables
from measure.links.fit import of_class
from measure.links.groups import cut
from measure.links.imports import IMPORTS
from measure.links.points import (
    Key,
    Ordered,
    PairPoint,
    loopback,
    number_of,
    pair_of,
    points,
    version,
)
from measure.links.schedule import choose, class_of
from measure.links.strange import noticed_s, standing_out
from measure.statistics import median

MISSING = 0.2
"""A larger share of missing pairs makes a measurement invalid."""


@dataclass(slots=True, frozen=True)
class Links:
    """See the module."""

    name: str = "links"

    def settings(self, given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
        """Return all settings with their defaults. Raises SettingsError."""
        return chosen.complete(given, fabric)

    def runs(self, settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
        """Return one job over all endpoints. Raises SettingsError with less than two."""
        if len(fabric.places) < 2:
            raise SettingsError("endpoints", "a pair needs two endpoints", "name at least two")
        rounds = choose(fabric.places, seed, every=bool(settings["all"]))
        latency, bandwidth = _sizes(settings)
        plan = {
            "rounds": rounds,
            "latency_sizes": latency,
            "bandwidth_sizes": bandwidth,
            "repetitions": settings["repetitions"],
            "seconds": settings["seconds"],
            "seed": seed,
            "transport": settings["transport"],
            "wait": settings["wait"],
            "together": settings["together"],
        }
        return [
            Run(
                command=("python3", "-m", "probe.links", json.dumps(plan)),
                endpoints=[place.endpoint for place in fabric.places],
                label="pairs",
                image=str(settings["image"]),
                env=PROBE_ENV,
                timeout_s=120.0 + 120.0 * sum(map(len, rounds)),
            )
        ]

    def progress(self, settings: Row, fabric: MeasuredSite, lines: Sequence[Line]) -> Progress:
        """Count the pairs that were measured, once a repetition."""
        rounds = choose(fabric.places, 1, every=bool(settings["all"]))
        repetitions = int(settings["repetitions"])
        total = sum(map(len, rounds)) * repetitions
        done = {
            (number, frozenset(pair))
            for line in lines
            if line.record.get("probe") == "pair"
            and (pair := pair_of(line.record, len(fabric.places))) is not None
            and (number := number_of(line.record, repetitions)) is not None
        }
        text = f"{len(done) // repetitions} of {total // repetitions} pairs, all repetitions"
        return Progress(min(len(done), total), total, text)

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        """Return a row per ordered pair and size, and what they show together."""
        places = fabric.places
        sizes = [int(size) for size in settings["sizes"]]
        repetitions = int(settings["repetitions"])
        found, reasons = points(lines, len(places), repetitions, sizes)
        wanted = [
            ordered
            for one in choose(places, seed, every=bool(settings["all"]))
            for a, b in one
            for ordered in ((a, b), (b, a))
        ]
        latency, bandwidth = _sizes(settings)
        classes = {(a, b): class_of(places[a], places[b]) for a, b in wanted}
        alone = loopback(lines)
        least = {size: noticed_s(size, alone, str(settings["wait"])) for size in latency}
        groups, numbers = _groups(found, classes, sizes, least)
        invalid = [f"{end.job or 'the job'}: {end.reason}" for end in ends if not end.completed]
        why = "; ".join(invalid) or "no figures"
        rows = []
        for pair in sorted(wanted):
            for size in sizes:
                if size not in bandwidth and pair[0] > pair[1]:
                    continue  # latency is measured in one direction only
                point = found.get((*pair, size))
                rows.append(
                    _row(
                        (places[pair[0]], places[pair[1]]),
                        size,
                        point,
                        group=numbers.get((*pair, size)),
                        alone=not settings["together"],
                        reason=_reason(point, repetitions, reasons.get(pair, why)),
                    )
                )
        silent = {
            frozenset(pair)
            for pair in wanted
            if (pair[0] < pair[1] or bandwidth)
            and not any((*pair, size) in found for size in sizes)
        }
        missing = len(silent) / max(len(wanted) // 2, 1)
        if missing > MISSING:
            invalid.append(f"{100 * missing:.0f} % of the pairs have no figures")
        if any(len(p.repetitions) < repetitions for p in found.values()):
            invalid.append("some points have fewer repetitions than asked")
        fits = _fits(found, classes)
        strange = (
            []
            if settings["together"]
            else standing_out(found, places, sizes, alone, str(settings["wait"]))
        )
        return Body(
            rows=rows,
            groups=groups,
            anomalies=strange,
            fits=fits,
            summary={
                "anomalies": len(strange),
                "missing_pairs": missing,
                "loopback_s": alone[min(alone)] if alone else None,
            },
            tool=ToolVersion(name="ucx_perftest", version=version(lines)),
            invalid_because=invalid,
        )

    @property
    def imports(self) -> Mapping[str, Callable[[str], Body]]:
        """Readers of other tools' files."""
        return IMPORTS

    def table(self, result: Row) -> str:
        """Return a result as lines of text."""
        return tables.table(result)


def _sizes(settings: Row) -> tuple[list[int], list[int]]:
    """Return the sizes whose latency, and those whose bandwidth is measured."""
    sizes = [int(size) for size in settings["sizes"]]
    least = chosen.BANDWIDTH_FROM
    return [s for s in sizes if s < least], [s for s in sizes if s >= least]


def _groups(
    found: Mapping[Key, PairPoint],
    classes: Mapping[Ordered, str],
    sizes: Sequence[int],
    least_s: Mapping[int, float],
) -> tuple[list[Row], dict[Key, int]]:
    groups: list[Row] = []
    numbers: dict[Key, int] = {}
    for size in sizes:
        keys = [k for k in sorted(found) if k[2] == size and k[:2] in classes]
        points = [found[key] for key in keys]
        parts = cut(
            [p.fastest_s for p in points],
            [p.repetitions for p in points],
            least_s.get(size, 0.0),
        )
        for number, part in enumerate(parts):
            for member in part:
                numbers[keys[member]] = number
            groups.append(
                {
                    "size": size,
                    "id": number,
                    "center": median([points[m].seconds for m in part]),
                    "pairs": len(part),
                    "classes": sorted({classes[keys[m][:2]] for m in part}),
                }
            )
    return groups, numbers


def _row(
    ends: tuple[MeasuredEndpoint, MeasuredEndpoint],
    size: int,
    point: PairPoint | None,
    *,
    group: int | None,
    alone: bool,
    reason: str,
) -> Row:
    return {
        "from": ends[0].endpoint,
        "to": ends[1].endpoint,
        "class": class_of(*ends),
        "size": size,
        "alone": alone,
        "latency_s": point.latency.document() if point and point.latency else None,
        "bandwidth": point.bandwidth.document() if point and point.bandwidth else None,
        "group": group,
        **({"reason": reason} if reason else {}),
    }


def _reason(point: PairPoint | None, repetitions: int, why: str) -> str:
    """Return why a point has no figures, or fewer than asked; empty if it has all."""
    if point is None:
        return why[:300]
    count = len(point.repetitions)
    return "" if count >= repetitions else f"{count} of {repetitions} repetitions: {why}"[:300]


def _fits(found: Mapping[Key, PairPoint], classes: Mapping[Ordered, str]) -> list[Row]:
    fits: list[Row] = []
    for name in sorted(set(classes.values())):
        own = [(float(key[2]), p) for key, p in found.items() if classes.get(key[:2]) == name]
        line = of_class(
            [(size, p.latency.median) for size, p in own if p.latency],
            [(size, size / p.bandwidth.median) for size, p in own if p.bandwidth],
        )
        if line is not None:
            fits.append(
                {
                    "class": name,
                    "alpha_s": line.alpha_s,
                    "beta": line.beta,
                    "n_half": line.n_half,
                    "residual": line.residual,
                }
            )
    return fits


LINKS = Links()
