"""The table of measurements: one row each, with its result where it has one."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from controller.state.kept.measurements import MeasurementRecord, RunRecord
from controller.state.writes import PutMeasurement
from controller.store.meta import META
from measure.kinds import Fabric, Place, RunEnd
from scheduler.steptime.facts import StepFacts

MEASUREMENTS = sa.Table(
    "measurements",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("type", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("result", sa.Text),
)


def put(db: sa.Connection, write: PutMeasurement) -> None:
    """Insert or replace a row; without a new result it keeps the one that it has."""
    record = write.record
    values = {
        "type": record.type,
        "state": record.state,
        "submitted_at": record.submitted_at,
        "body": json.dumps(_document(record)),
    }
    if write.result is not None:
        values["result"] = write.result
    found = db.execute(MEASUREMENTS.update().where(MEASUREMENTS.c.id == record.id).values(**values))
    if not found.rowcount:
        db.execute(MEASUREMENTS.insert(), [{"result": None, **values, "id": record.id}])


def read_measurements(db: sa.Connection) -> tuple[MeasurementRecord, ...]:
    """Read all of them, without results. ValueError, KeyError or TypeError for a damaged row."""
    return tuple(_read(row.body) for row in db.execute(sa.select(MEASUREMENTS.c.body)))


def read_result(db: sa.Connection, ident: str) -> str | None:
    """Return a measurement's result as JSON; None without one."""
    wanted = sa.select(MEASUREMENTS.c.result).where(MEASUREMENTS.c.id == ident)
    found: str | None = db.execute(wanted).scalar()
    return found


def _document(record: MeasurementRecord) -> dict[str, Any]:
    body: dict[str, Any] = {name: getattr(record, name) for name in MeasurementRecord.__slots__}
    body |= {name: dict(body[name]) for name in ("settings", "homes", "homes_before")}
    body["runs"] = [_run_document(run) for run in record.runs]
    fabric = record.fabric
    body["fabric"] = fabric and {
        "places": [[p.endpoint, p.server, p.home] for p in fabric.places],
        "access_bps": fabric.access_bps,
        "inter_aggregator_bps": fabric.inter_aggregator_bps,
        "links": [[sorted(pair), count] for pair, count in fabric.links.items()],
        "free_ports": dict(fabric.free_ports),
        "emulated": fabric.emulated,
        "fits": {name: list(fit) for name, fit in fabric.fits.items()},
        "ring_share": fabric.ring_share,
    }
    return body


def _run_document(run: RunRecord) -> dict[str, Any]:
    end = run.end and {name: getattr(run.end, name) for name in RunEnd.__slots__}
    if end:
        end["homes"] = dict(end["homes"])
        facts = end["facts"]
        end["facts"] = facts and {f.name: getattr(facts, f.name) for f in fields(StepFacts)}
    return {
        "label": run.label,
        "endpoints": run.endpoints,
        "homes": dict(run.homes),
        "end": end,
    }


def _read(text: str) -> MeasurementRecord:
    body = json.loads(text)
    body["runs"] = tuple(_read_run(run) for run in body["runs"])
    body |= {name: tuple(body[name]) for name in ("endpoints", "invalid_because")}
    if (fabric := body["fabric"]) is not None:
        fabric["places"] = tuple(Place(*place) for place in fabric["places"])
        fabric["links"] = {frozenset(pair): count for pair, count in fabric["links"]}
        fits = fabric.get("fits", {})  # older versions had none
        fabric["fits"] = {name: (fit[0], fit[1]) for name, fit in fits.items()}
        body["fabric"] = Fabric(**fabric)
    return MeasurementRecord(**body)


def _read_run(run: dict[str, Any]) -> RunRecord:
    end = run["end"]
    if end is not None:
        end["facts"] = None if end["facts"] is None else StepFacts(**end["facts"])
        end = RunEnd(**end)
    return RunRecord(run["label"], tuple(run["endpoints"]), run["homes"], end)
