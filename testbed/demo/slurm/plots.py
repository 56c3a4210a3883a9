"""Draws where each job of the mixture ran, and when, in all arms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from testbed.demo.plots import save
from testbed.demo.slurm.measure import MixtureResult
from testbed.demo.slurm.outputs import pieces

WAIT, RUN, HEIGHT = "#bdbdbd", ("#c62828", "#2e7d32"), 0.85
"""Colours of jobs that wait, that run scattered and that run local; height of a bar."""


def draw(done: Sequence[MixtureResult], out_dir: Path) -> list[str]:
    """Write the plot; return its file."""
    figure = Figure(figsize=(9, 1 + 2.6 * len(done)), layout="constrained")
    rows = figure.subplots(len(done), 1, sharex=True, squeeze=False)[:, 0]
    for axes, one in zip(rows, done, strict=True):
        _arm(axes, one)
    rows[-1].set_xlabel("s since the first submit")
    figure.suptitle("grey: waits; green: runs under the fewest aggregators; red: under more")
    return [save(figure, out_dir / "demo-slurm.png")]


def _arm(axes: Any, one: MixtureResult) -> None:
    first = min(job.submitted_at for job in one.done)
    for job in one.done:
        row = job.work.number
        axes.broken_barh(
            [(job.submitted_at - first, job.began_at - job.submitted_at)],
            (row, HEIGHT),
            color=WAIT,
        )
        for begin, end, local in pieces(job, one.timeline):
            axes.broken_barh([(begin - first, end - begin)], (row, HEIGHT), color=RUN[local])
    makespan, mean = one.figures["makespan_s"], one.figures["completion_s_mean"]
    axes.set_title(
        f"{one.arm}: all done after {makespan:.0f} s, a job after {mean:.0f} s", fontsize=9
    )
    axes.set_ylabel("job")
    axes.grid(alpha=0.3, axis="x")
