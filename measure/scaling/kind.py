"""The type ``scaling``: one trainer, nets of growing intensity, numbers of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from measure.envelope import Body, Json, Row, ToolVersion
from measure.kinds import Line, MeasuredSite, Progress, Run, RunEnd, SettingsError
from measure.scaling.model import predict
from measure.scaling.nets import BLOCKS, Counts, count, resnet
from measure.scaling.steps import SKIPPED, ScalingSteps, read_steps
from measure.scaling.tables import table
from scheduler import ring

MOST_BLOCKS = 256
MOST_BATCH = 2**16
MOST_RUNS = 200
LEAST_STEPS = 40
"""Fewer steps than this see the 50 ms period of a CPU share as noise."""
MOST_STEPS = 100_000
START_S = 300.0
"""Longest start of a trainer: import and tracing on a busy host."""
STEP_S = 60.0
"""Longest step that a run's time limit allows for."""
_KNOWN = ("x", "batches", "ranks", "steps", "image", "quick")


@dataclass(slots=True, frozen=True)
class _Case:
    """One run: ResNet/x, a global batch, a number of ranks."""

    x: int
    batch: int
    ranks: int

    @property
    def label(self) -> str:
        return f"ResNet/{self.x}, batch {self.batch}, {self.ranks} ranks"

    @property
    def counts(self) -> Counts:
        return count(resnet(self.x))


class Scaling:
    """Strong scaling of ResNet/x: the global batch stays, the ranks grow (PNNL, PMBS'17)."""

    name = "scaling"

    def settings(self, given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
        """Return all settings with their defaults. Raises SettingsError."""
        for name in given:
            if name not in _KNOWN:
                raise SettingsError(
                    str(name)[:40], "no such setting", f"there are: {', '.join(_KNOWN)}"
                )
        quick = given.get("quick", False)
        if not isinstance(quick, bool):
            raise SettingsError("quick", "is not true or false")
        image = given.get("image", "")
        if not isinstance(image, str) or len(image) > 500:
            raise SettingsError("image", "is not the name of an image")
        most = len(fabric.places)
        if not most:
            raise SettingsError("endpoints", "the list is empty", "name idle endpoints")
        steps = _numbers(given.get("steps", LEAST_STEPS), "steps", LEAST_STEPS, MOST_STEPS)
        if len(steps) != 1:
            raise SettingsError("steps", "is not one number")
        usual = (1, 2) if quick else (1, 2, 4)
        batches = _numbers(given.get("batches", [48]), "batches", 1, MOST_BATCH)
        numbers = _numbers(given.get("ranks", [n for n in usual if n <= most]), "ranks", 1, most)
        chosen = {
            "x": _numbers(given.get("x", [1, 4, 16]), "x", 1, MOST_BLOCKS),
            "batches": batches,
            "ranks": numbers,
            "steps": steps[0],
            "image": image,
            "quick": quick,
        }
        for batch, ranks in product(batches, numbers):
            if batch % ranks:
                raise SettingsError(
                    "batches",
                    f"{batch} images cannot be split over {ranks} ranks equally",
                    "use multiples of the numbers of ranks",
                )
        if len(_cases(chosen)) > MOST_RUNS:
            raise SettingsError("x", f"times batches and ranks are more than {MOST_RUNS} runs")
        return chosen

    def runs(self, settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
        """Return a training for each x, batch and number of ranks."""
        homes = {one.endpoint: one.home for one in fabric.places}
        # Endpoints of one aggregator come first: few ranks are as close as homes allow.
        order = ring.order(tuple(homes), homes)
        return [_run(case, settings, order, seed) for case in _cases(settings)]

    def progress(self, settings: Row, fabric: MeasuredSite, lines: Sequence[Line]) -> Progress:
        """Count the runs whose first rank has ended."""
        cases = _cases(settings)
        ended = {line.run for line in lines if line.rank == 0 and line.record.get("event") == "end"}
        here = max((line.run for line in lines if 0 <= line.run < len(cases)), default=-1)
        text = cases[here].label if here >= 0 else ""
        return Progress(len(ended & set(range(len(cases)))), len(cases), text)

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        """Return a row for each run, with what two values of x predict for the others."""
        cases = _cases(settings)
        wanted = int(settings["steps"])
        found = [read_steps(lines, number, case.ranks) for number, case in enumerate(cases)]
        rows = [
            _row(case, steps, ends[number] if number < len(ends) else None)
            for number, (case, steps) in enumerate(zip(cases, found, strict=True))
        ]
        fits = _predict(cases, found, rows)
        _scale(cases, found, rows)
        short = [
            case.label
            for case, steps in zip(cases, found, strict=True)
            if steps is None or steps.n < wanted
        ]
        invalid = [f"fewer steps than asked: {', '.join(short[:4])}"] if short else []
        return Body(
            rows=rows,
            fits=fits,
            summary=_summary(rows),
            tool=ToolVersion(name="testbed.trainer"),
            invalid_because=invalid,
        )

    def table(self, result: Row) -> str:
        """Return a result as text."""
        return table(result)


SCALING = Scaling()


def _cases(settings: Row) -> list[_Case]:
    return [
        _Case(x, batch, ranks)
        for batch, ranks, x in product(settings["batches"], settings["ranks"], settings["x"])
    ]


def _run(case: _Case, settings: Row, order: Sequence[str], seed: int) -> Run:
    steps = int(settings["steps"]) + SKIPPED
    command = (
        *("python3", "-m", "testbed.trainer", "--model", f"resnet{case.x}"),
        *("--global-batch", str(case.batch), "--samples", str(steps * case.batch)),
        *("--seed", str(seed % 2**31)),
    )
    return Run(
        command=command,
        endpoints=order[: case.ranks],
        label=case.label,
        image=str(settings["image"]),
        timeout_s=START_S + steps * STEP_S,
    )


def _row(case: _Case, steps: ScalingSteps | None, end: RunEnd | None) -> dict[str, Json]:
    counts = case.counts
    reason = "its job did not run" if end is None else end.reason if not end.completed else ""
    row: dict[str, Json] = {
        "x": case.x,
        "batch": case.batch,
        "ranks": case.ranks,
        "parameters": counts.parameters,
        "gradient_bytes": 4 * counts.parameters,
        "activations": counts.activations * case.batch // case.ranks,
        "flops": 3 * counts.flops * case.batch // case.ranks,
        "intensity": counts.intensity(case.batch / case.ranks),
    }
    row |= {
        "step_s": steps.step_s if steps else None,
        "step_ci": list(steps.interval) if steps and steps.interval else None,
        "steps": steps.n if steps else 0,
        "compute_s": steps.compute_s if steps else None,
        "comm_s": steps.comm_s if steps else None,
        # The trainer computes nothing while it communicates.
        "exposed_s": steps.comm_s if steps else None,
        "speedup": None,
        "efficiency": None,
        "predicted_step_s": None,
        "error": None,
        "reason": "" if steps else reason or "its ranks printed no steps",
    }
    return row


def _predict(
    cases: Sequence[_Case], found: Sequence[ScalingSteps | None], rows: Sequence[dict[str, Json]]
) -> list[Row]:
    """Predict each batch and number of ranks from its least and greatest x; return the fits."""
    fits: list[Row] = []
    groups: dict[tuple[int, int], list[int]] = {}
    for number, case in enumerate(cases):
        if found[number] is not None:
            groups.setdefault((case.batch, case.ranks), []).append(number)
    for (batch, ranks), members in groups.items():
        members.sort(key=lambda number: cases[number].x)
        first, last = members[0], members[-1]
        low, high = found[first], found[last]
        if len(members) < 3 or low is None or high is None:
            continue
        fit = predict((rows[first], low), (rows[last], high))
        if fit is None:
            continue
        known = [cases[first].x, cases[last].x]
        fits.append({"batch": batch, "ranks": ranks, "from_x": known, **fit.document()})
        for number in members[1:-1]:
            steps = found[number]
            if steps is not None:
                guess = fit.step_s(rows[number]["flops"], rows[number]["gradient_bytes"])
                rows[number]["predicted_step_s"] = guess
                rows[number]["error"] = (guess - steps.step_s) / steps.step_s
    return fits


def _scale(
    cases: Sequence[_Case], found: Sequence[ScalingSteps | None], rows: Sequence[dict[str, Json]]
) -> None:
    """Add speed-up t_1 / t_N and efficiency speed-up / N where one rank was measured."""
    alone = {
        (case.x, case.batch): steps.step_s
        for case, steps in zip(cases, found, strict=True)
        if steps is not None and case.ranks == 1
    }
    for case, steps, row in zip(cases, found, rows, strict=True):
        one = alone.get((case.x, case.batch))
        if steps is not None and one is not None:
            row["speedup"] = one / steps.step_s
            row["efficiency"] = row["speedup"] / case.ranks


def _summary(rows: Sequence[Row]) -> Row:
    """Return the span of intensity, the worst error, and whether exposure falls with intensity."""
    intensities = [row["intensity"] for row in rows]
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    groups: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row in rows:
        if row["ranks"] > 1 and row["step_s"] is not None:
            share = row["exposed_s"] / row["step_s"]
            groups.setdefault((row["batch"], row["ranks"]), []).append((row["intensity"], share))
    shares = [[share for _, share in sorted(group)] for group in groups.values()]
    falls = [all(a >= b for a, b in pairwise(s)) for s in shares if len(s) > 1]
    return {
        "intensity_span": max(intensities) / min(intensities),
        "worst_error": max(errors, default=None),
        "exposure_falls": all(falls) if falls else None,
    }


def _numbers(value: Json, name: str, least: int, most: int) -> list[int]:
    if isinstance(value, str):
        words = [word.strip() for word in value.split(",")]
        value = [int(word) if word.isdecimal() and len(word) < 12 else word for word in words]
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    sound = isinstance(value, list) and value and len(value) <= len(BLOCKS) * 4
    if not sound or not all(_sound(one, least, most) for one in value):
        raise SettingsError(name, f"is not a list of whole numbers from {least} to {most}")
    return sorted(set(value))


def _sound(value: Json, least: int, most: int) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and math.isfinite(value) and least <= value <= most
