"""What jobs of a rack in memory have written and lost, as its servers say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentlink.checkpoints import HoldingKind
from checkpoints.ledger import Key
from controller.state.kept.phases import figures
from controller.state.kept.recoveries import RecoveryRecord
from controller.views.recoveries import view_of
from tests.parts.controller.rack import Rack

KEPT: dict[str, Any] = {
    "local": {"size_bytes": 3 * 2**30, "keep": 3},
    "shared": {"store": "results", "every": 1},
}
"""How a job keeps its checkpoints."""
_ROW = RecoveryRecord(
    id="r1",
    job="red",
    submitted_at=1.0,
    number=1,
    epoch=3,
    cause="endpoint",
    objects=("endpoint/gpu3",),
    stage="over",
    swaps={"gpu3": "gpu5"},
    gpus=4,
    failed_at=1_700_000_060.0,
    finished_at=1_700_000_072.0,
    step_written=310,
    step_restored=300,
    repeated_s=6.0,
    marks={
        "detected": 0.4,
        "decided": 0.5,
        "stopped": 1.0,
        "lit": 1.8,
        "fetched": 1.1,
        "started": 2.5,
        "imported": 8.5,
        "stepped": 12.0,
    },
)
RECOVERY = view_of(_ROW)
"""Of a job that has lost gpu3."""


async def written(rack: Rack, job: str) -> None:
    """Let a job write step 200, which the store has, 300, which has copies, and 400, which not."""
    kept = rack.engine.kept
    for step, state in ((200, "persistent"), (300, "protected"), (400, "written")):
        kept.lazy = step == 400
        key = Key(step, rack.see.jobs[job].epoch)
        for spec in rack.engine.specs[job]:
            assert spec.checkpoint is not None
            kept.write(spec.checkpoint.folder, key, spec.key.rank, spec.endpoint)

        async def reached(step: int = step, state: str = state) -> bool:
            steps = (await rack.desks.checkpoints.checkpoints(job)).steps
            return [(view.step, view.state) for view in steps][:1] == [(step, state)]

        await rack.until(reached)


def damage(rack: Rack, step: int) -> None:
    """Spoil the copy of rank 1 of a step."""
    for place, held in rack.engine.kept.held.items():
        if (place.kind, place.key.step, place.rank) == (HoldingKind.COPY, step, 1):
            held.damages = ("model.pt: crc32c",)


def lost(rack: Rack, job: str, **changes: Any) -> None:
    """Let a job have lost gpu3 a moment after it began, and recovered in 12 s."""
    record = rack.see.jobs[job]
    failed_at = (record.started_at or record.submitted_at) + 1
    row = replace(
        _ROW,
        id=f"r{len(rack.see.recoveries) + 1}",
        job=job,
        submitted_at=record.submitted_at,
        failed_at=failed_at,
        finished_at=failed_at + 12,
    )
    row = rack.parts.state.recoveries.put(replace(row, **changes))
    if not row.open:
        rack.parts.state.recoveries.add_phases(figures(row))
