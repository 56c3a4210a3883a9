"""What a comparison predicted, as predictions that are kept. Pure.

A placement that the comparison itself ran has met its measurement. One that it did not run waits
for a job that is the same (ranks, command, image, variables, CPU share, project) and gets these
homes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from controller.advice.outcome import met
from controller.state.kept.measurements import MeasurementRecord, MeasurementRun
from controller.state.kept.predictions import PredictionRecord
from controller.state.records import JobSpec
from measure.envelope import Measurement, Row


def spec_of(request: JobSpec) -> str:
    """Return what makes two jobs the same for a prediction."""
    env = {**request.env, **{name: {"secret": key} for name, key in request.secrets.items()}}
    return _spec(
        request.count, request.command, request.image, env, cpu=request.cpu, project=request.project
    )


def predictions_of(
    record: MeasurementRecord, result: Measurement, now: float
) -> Iterator[PredictionRecord]:
    """Yield what a comparison predicted, without ids.

    Facts that came from an earlier comparison had met their prediction there.
    """
    job: Mapping[str, Any] = result.settings["job"]
    project = str(job.get("project") or record.project)
    spec = _spec(
        job["count"],
        job.get("command"),
        job.get("image"),
        job.get("env"),
        cpu=job.get("cpu"),
        project=project,
    )
    known = [(list(k["order"]), dict(k["homes"])) for k in result.body.summary.get("known", ())]
    for row in result.body.rows:
        step = row["predicted_step_s"]
        if step is None:
            continue
        ran = _run_of(record, row)
        measured = _measured(row, ran)
        if measured is None and (row["endpoints"], row["homes"]) in known:
            continue
        made = PredictionRecord(
            id="",
            job=ran.end.job if ran and ran.end else f"measurement/{record.id}",
            submitted_at=record.submitted_at,
            project=project,
            cause="compare",
            made_at=now,
            homes={e: row["homes"].get(e) for e in row["endpoints"]},
            low_s=step["low"],
            high_s=step["high"],
            basis=(f"the other placements of {record.id}", *row["reasons"]),
            spec=spec,
        )
        yield made if measured is None else met(made, measured, now)


def _run_of(record: MeasurementRecord, row: Row) -> MeasurementRun | None:
    """Return the last run in a row's placement, by its endpoints and homes."""
    found = [
        run
        for run in record.runs
        if run.end is not None
        and run.end.completed
        and list(run.end.homes) == row["endpoints"]
        and dict(run.end.homes) == row["homes"]
    ]
    return found[-1] if found else None


def _measured(row: Row, run: MeasurementRun | None) -> float | None:
    if row["measured_step_s"] is not None:
        return float(row["measured_step_s"]["median"])
    if run is None or run.end is None or run.end.facts is None:
        return None
    return run.end.facts.step_s


def _spec(count: Any, command: Any, image: Any, env: Any, *, cpu: Any, project: str) -> str:
    parts = [count, list(command or []), image or "", env or {}, cpu, project]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
