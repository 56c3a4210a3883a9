"""What jobs of a rack in memory have written and lost, as its servers say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from agentlink.checkpoints import HoldingKind
from checkpoints.ledger import Key, State
from checkpoints.values import Scheme
from controller.schema.checkpoints import (
    CheckpointsView,
    CheckpointView,
    DamageView,
    IntervalView,
    PartView,
    RecoveriesView,
    SiteRecoveriesView,
    VerificationView,
)
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


# --- documents of what no short test has ---------------------------------------------------------

_AT = 1_700_000_000.0
STEPS = {400: State.WRITTEN, 300: State.PROTECTED, 200: State.PERSISTENT}
INTERVAL = IntervalView(
    job="red",
    interval_s=90.0,
    steps=45,
    now_s=200.0,
    cost_s=0.9,
    step_s=2.0,
    restart_s=12.0,
    mtbf_s=4500.0,
    waste=0.021,
    waste_now=0.027,
)
RECOVERIES = RecoveriesView(
    job="red", ettr=0.93, gpu_hours_lost={"endpoint": 0.02}, recoveries=[RECOVERY]
)
OF_SITE = SiteRecoveriesView(
    since=_AT,
    ettr=0.95,
    gpu_hours=40.0,
    gpu_hours_lost={"endpoint": 0.02, "program": 0.01},
    failures={"endpoint": 1, "program": 2},
)


def checkpoint_view(step: int, state: State, endpoints: list[str], *, why: str) -> CheckpointView:
    """Return one step of a job, each part of it copied to the next rank's server."""
    copied = state is not State.WRITTEN
    nexts = endpoints[1:] + endpoints[:1]
    return CheckpointView(
        step=step,
        epoch=4,
        state=state,
        complete=copied,
        restorable=True,
        why=why,
        scheme=Scheme.PARTNER,
        bytes=len(endpoints) * 2**30,
        written_at=_AT + step,
        protected_at=_AT + step + 2 if copied else None,
        persistent_at=_AT + step + 9 if state is State.PERSISTENT else None,
        written_s_median=0.8,
        written_s_max=1.1,
        parts=[
            PartView(
                rank=rank,
                endpoint=endpoint,
                bytes=2**30,
                held_by=[endpoint, *([nexts[rank]] if copied else [])],
                stored=state is State.PERSISTENT,
            )
            for rank, endpoint in enumerate(endpoints)
        ],
    )


def checkpoints_view(endpoints: list[str], *, without: Collection[int] = ()) -> CheckpointsView:
    """Return what red has, of which a server says nothing."""
    why = "gpu4 waits for job beta-blue"
    steps = [
        checkpoint_view(step, state, endpoints, why=why if step == max(STEPS) else "")
        for step, state in STEPS.items()
        if step not in without
    ]
    return CheckpointsView(
        job="red",
        rule="rename",
        scheme=Scheme.PARTNER,
        space_bytes=3 * 2**30,
        known=True,
        silent=["s1"],
        restore_step=steps[0].step,
        restore_why="",
        steps=steps,
        ignored=["rank 0: 'notes.txt'"],
        naming="step-N or step-N.EXT",
    )


def verified(step: int | None) -> VerificationView:
    """Return what a verification of red finds: step 300 is damaged, and a server is silent."""
    found = DamageView(
        step=300, epoch=4, rank=1, endpoint="gpu2", kind="copy", damages=["model.pt: crc32c"]
    )
    shown = [found] if step in (None, 300) else []
    return VerificationView(job="red", parts=24, bytes=24 * 2**30, damaged=shown, silent=["s1"])
