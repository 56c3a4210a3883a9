"""Draws training progress over time in all arms, and what checkpoints cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from testbed.demo.plots import save
from testbed.demo.spare.arms import SpareArm, SparePlan
from testbed.demo.spare.measure import SpareResult

COLOURS = {
    SpareArm.UNDISTURBED: "#757575",
    SpareArm.SPARE: "#2e7d32",
    SpareArm.SHARED: "#1e88e5",
    SpareArm.ZERO: "#c62828",
}


def draw(plan: SparePlan, done: Sequence[SpareResult], out_dir: Path) -> list[str]:
    """Write the plots; return their files."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    progress, blocked = figure.subplots(2, 1, height_ratios=(3, 1))
    for one in done:
        colour = COLOURS[one.arm]
        started = [run for run in one.runs if run.steps]
        _, end, length = started[0].steps[0]
        begin = end - length
        label: str | None = f"{one.arm}: {one.figures['completion_s']:.0f} s"
        for run in started:
            times = [at - begin for _, at, _ in run.steps]
            progress.step(
                times, [n + 1 for n, _, _ in run.steps], where="post", color=colour, label=label
            )
            label = None
        if one.lost_at is not None:
            trained = one.figures["loss"]["steps_trained"]
            progress.plot([one.lost_at - begin], [trained], "x", color=colour, ms=9, mew=2)
    progress.set_xlabel("s since the first step")
    progress.set_ylabel("trained steps (x: a GPU is lost)")
    progress.set_ylim(0, plan.steps + 1)
    progress.grid(alpha=0.3)
    progress.legend(fontsize=9)
    writing = [one for one in done if one.arm.writes]
    blocked.barh(
        [str(one.arm) for one in writing],
        [one.figures["blocked_s_median"] or 0.0 for one in writing],
        color=[COLOURS[one.arm] for one in writing],
    )
    blocked.set_xlabel("s that a checkpoint holds training up (median)")
    blocked.grid(alpha=0.3, axis="x")
    figure.suptitle(f"a GPU is lost after {plan.lost_after} of {plan.steps} steps")
    return [save(figure, out_dir / "demo-spare.png")]
