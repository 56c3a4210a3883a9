"""What rank 0 printed over all runs of a job, and what that shows about a loss. Pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from testbed.demo.api import Document
from testbed.demo.errors import DemoError


@dataclass(slots=True)
class ProgramRun:
    """One start of the program. Times are wall-clock seconds since 1970."""

    began_at: float
    """Before the framework is imported: the container runs."""
    imported_at: float | None = None
    ready_at: float | None = None
    restored: int | None = None
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    """Number, end and length of every trained step."""
    blocked: list[float] = field(default_factory=list)
    """Seconds that each checkpoint held training up."""
    failed_writes: int = 0
    final_loss: float | None = None

    @property
    def first_step_at(self) -> float | None:
        """When the first step of this run ended."""
        return self.steps[0][1] if self.steps else None


def read(lines: Iterable[str]) -> list[ProgramRun]:
    """Return the runs in their order. Lines may repeat and may come in any order."""
    events = {line: event for line in lines if (event := _event(line)) is not None}
    runs: list[ProgramRun] = []
    for event in sorted(events.values(), key=lambda one: float(one["t"])):
        kind, at = event["event"], float(event["t"])
        if kind == "begin":
            runs.append(ProgramRun(at))
        if not runs:
            continue
        run = runs[-1]
        if kind == "start":
            run.imported_at = at
        elif kind == "restored":
            run.restored = int(event["step"])
        elif kind == "ready":
            run.ready_at = at
        elif kind == "step":
            run.steps.append((int(event["step"]), at, float(event["step_s"])))
        elif kind == "checkpoint":
            run.blocked.append(float(event["blocked_s"]))
            run.failed_writes += "error" in event
        elif kind == "end":
            run.final_loss = float(event["final_loss"])
    return runs


def _event(line: str) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    known = isinstance(document, dict) and "event" in document and "t" in document
    return document if known else None


def figures(job: str, runs: list[ProgramRun], lost_at: float | None) -> Document:
    """Return an arm's figures; times in seconds, None where nothing was lost.

    The phases are those that every way has: until the container runs (``until_started_s``,
    lightloom's part with the engine's), until the framework is imported, until it has loaded and
    traced, until the first step has ended. Raises DemoError(failed) for a job that did not end.
    """
    started = [run for run in runs if run.steps]
    if not started or runs[-1].final_loss is None:
        raise DemoError(
            "failed",
            f"{job} did not train to its end: {len(runs)} starts",
            object=f"job/{job}",
            hint=f"see: lightloom logs {job}",
        )
    first = started[0].steps[0]
    begin, end = first[1] - first[2], started[-1].steps[-1][1]
    blocked = [seconds for run in runs for seconds in run.blocked]
    document: Document = {
        "completion_s": round(end - begin, 3),
        "final_loss": runs[-1].final_loss,
        "starts": len(runs),
        "step_s_median": _median([step[2] for step in started[0].steps]),
        "step_s_median_after": None,
        "checkpoints": len(blocked),
        "failed_writes": sum(run.failed_writes for run in runs),
        "blocked_s_median": _median(blocked),
        "blocked_s_max": round(max(blocked), 4) if blocked else None,
        "blocked_share": round(sum(blocked) / (end - begin), 5),
        "loss": None,
    }
    if lost_at is not None:
        document["loss"], after = _loss(job, runs, lost_at), started[-1]
        document["step_s_median_after"] = _median([step[2] for step in after.steps])
    return document


def _loss(job: str, runs: list[ProgramRun], lost_at: float) -> Document:
    before = [step for run in runs for step in run.steps if step[1] <= lost_at]
    after = next((run for run in runs if run.began_at > lost_at and run.steps), None)
    if after is None or after.imported_at is None or after.ready_at is None or not before:
        raise DemoError(
            "failed",
            f"{job} did not go on after the loss",
            object=f"job/{job}",
            hint=f"see: lightloom describe job {job}",
        )
    trained = max(number for number, _, _ in before) + 1
    number, first_at, _ = after.steps[0]
    caught_up = next((at for n, at, _ in after.steps if n >= trained), None)
    return {
        "steps_trained": trained,
        "step_restored": after.restored or 0,
        "steps_lost": trained - number,
        "until_started_s": round(after.began_at - lost_at, 3),
        "import_s": round(after.imported_at - after.began_at, 3),
        "load_s": round(after.ready_at - after.imported_at, 3),
        "first_step_s": round(first_at - after.ready_at, 3),
        "total_s": round(first_at - lost_at, 3),
        "beyond_import_s": round(first_at - lost_at - (after.imported_at - after.began_at), 3),
        "caught_up_s": None if caught_up is None else round(caught_up - lost_at, 3),
    }


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None
