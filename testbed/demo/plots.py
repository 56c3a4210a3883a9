"""Draws plots like the paper's figure 3: throughput per container and utilisation over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from testbed.demo.api import Document
from testbed.demo.measure import CaseResult

COLOURS = {
    "red": ("#7f0000", "#c62828", "#ef5350", "#ff8a65"),
    "blue": ("#0d47a1", "#1e88e5", "#64b5f6"),
}
TAIL_S = 2.0
"""Seconds shown after red's last step."""


def draw(case: str, arms: Sequence[CaseResult], out_dir: Path) -> list[str]:
    """Write one plot per arm and one with the arms side by side; return the files."""
    files = []
    for measured in arms:
        figure = Figure(figsize=(8, 6), layout="constrained")
        axes = figure.subplots(2, 1, sharex=True, squeeze=False)
        _arm(axes[:, 0], measured)
        _finish(figure, axes)
        figure.suptitle(f"case {case}, {measured.arm}")
        files.append(save(figure, out_dir / f"demo-{case}-{measured.arm}.png"))
    figure = Figure(figsize=(4.2 * len(arms), 6), layout="constrained")
    axes = figure.subplots(2, len(arms), sharey="row", squeeze=False)
    for column, measured in enumerate(arms):
        _arm(axes[:, column], measured)
        seconds = measured.figures["completion_s"]
        axes[0, column].set_title(f"{measured.arm}: {seconds:.0f} s")
    _finish(figure, axes)
    figure.suptitle(f"case {case}: the same {arms[0].samples} samples in every arm")
    files.append(save(figure, out_dir / f"demo-{case}.png"))
    return files


def _arm(axes: Any, measured: CaseResult) -> None:
    throughput, utilisation = axes
    series = measured.series
    times = [at - measured.started_at for at in series["times"]]
    taken = {"red": 0, "blue": 0}
    for line in sorted(series["containers"], key=lambda c: (c["job"] != measured.red, c["rank"])):
        role = "red" if line["job"] == measured.red else "blue"
        colour = COLOURS[role][taken[role] % len(COLOURS[role])]
        taken[role] += 1
        label = f"{role} {line['rank']}"
        throughput.plot(times, _scaled(line, "rx_bps", 1e-6), color=colour, label=label, lw=1)
        utilisation.plot(times, _scaled(line, "utilisation", 100.0), color=colour, lw=1)
    if measured.regroup is not None:
        begin, end = (at - measured.started_at for at in measured.regroup)
        for ax in axes:
            ax.axvspan(begin, end, color="#2e7d32", alpha=0.35)
        throughput.text(end, 0.97, " regroup", transform=throughput.get_xaxis_transform(), va="top")
    for ax in axes:
        ax.axvline(measured.ended_at - measured.started_at, color="black", ls=":", lw=1)
        ax.set_xlim(0, measured.ended_at - measured.started_at + TAIL_S)
        ax.grid(alpha=0.3)
    utilisation.set_xlabel("s since red's first step")


def _finish(figure: Figure, axes: Any) -> None:
    """Label rows and lines once; all columns share the scale of their row."""
    axes[0, 0].set_ylabel("received per container, Mbit/s")
    axes[1, 0].set_ylabel("utilisation (GPU's stand-in), %")
    for row in axes:
        row[0].set_ylim(bottom=0)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)


def _scaled(line: Document, name: str, factor: float) -> list[float]:
    """Return a series with gaps for unknown values."""
    return [float("nan") if value is None else value * factor for value in line[name]]


def save(figure: Figure, file: Path) -> str:
    """Write a plot; return its file."""
    FigureCanvasAgg(figure).print_png(str(file), metadata={"Software": "lightloom"})
    return str(file)
