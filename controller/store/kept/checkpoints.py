"""The table of jobs' checkpoints: one row each, without what servers say again."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from checkpoints.ledger import Key, Run
from checkpoints.schemes import Layout, Scheme
from checkpoints.values import Apart
from controller.state.kept.checkpoints import CheckpointRecord, RunRecord
from controller.store.meta import META, KeptTable

CHECKPOINTS = sa.Table(
    "checkpoints",
    META,
    sa.Column("folder", sa.String(127), primary_key=True),
    sa.Column("job", sa.String(63), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)


def _row(record: CheckpointRecord) -> dict[str, Any]:
    body = {
        "key": record.key.hex(),
        "runs": [_run_document(run) for run in record.runs],
        "spoiled": [[*key, why] for key, why in record.spoiled],
        "servers": sorted(record.servers),
        "remove_after": record.remove_after,
    }
    return {"folder": record.folder, "job": record.job, "body": json.dumps(body)}


def _run_document(record: RunRecord) -> dict[str, Any]:
    run = record.run
    return {
        "epoch": record.epoch,
        "ranks": run.ranks,
        "scheme": run.layout.scheme,
        "apart": run.layout.apart,
        "partner": run.layout.partner,
        "sets": run.layout.sets,
        "resumed": run.resumed,
        "identical": run.identical,
        "endpoints": record.endpoints,
        "began_at": record.began_at,
        "stepped": record.stepped,
        "end": record.end,
    }


def _read(row: sa.Row[Any]) -> CheckpointRecord:
    body = json.loads(row.body)
    return CheckpointRecord(
        folder=row.folder,
        job=row.job,
        key=bytes.fromhex(body["key"]),
        runs=tuple(_read_run(run) for run in body["runs"]),
        spoiled=tuple((Key(step, epoch), why) for step, epoch, why in body["spoiled"]),
        servers=frozenset(body["servers"]),
        remove_after=body["remove_after"],
    )


def _read_run(body: dict[str, Any]) -> RunRecord:
    layout = Layout(
        Scheme(body["scheme"]),
        Apart(body["apart"]),
        tuple(body["partner"]),
        tuple(tuple(members) for members in body["sets"]),
    )
    resumed = None if body["resumed"] is None else Key(*body["resumed"])
    return RunRecord(
        epoch=body["epoch"],
        run=Run(body["ranks"], layout, resumed, body["identical"]),
        endpoints=tuple(body["endpoints"]),
        began_at=body["began_at"],
        stepped=body["stepped"],
        end=body["end"],
    )


KEPT = KeptTable(CHECKPOINTS, _row, _read, "folder")
