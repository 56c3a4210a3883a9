"""Builds the result as one document and as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import RenderableType

from testbed.demo.api import Document
from testbed.demo.errors import DemoError
from testbed.demo.report import LOSS_TOLERANCE, tabled
from testbed.demo.slurm.measure import MixtureResult
from testbed.demo.slurm.mixture import MixturePlan


def document(
    site: str,
    plan: MixturePlan,
    done: Sequence[MixtureResult],
    *,
    plots: Sequence[str],
    emulated: Sequence[str],
) -> Document:
    """Return the result of all arms."""
    return {
        "case": "slurm",
        "site": site,
        "plan": dataclasses.asdict(plan),
        "arms": {one.arm.value: one.figures for one in done},
        "plots": list(plots),
        "emulated": list(emulated),
    }


def check(result: Document) -> None:
    """Raise DemoError(failed) when the arms did not train the same."""
    first: dict[str, float] = {}
    for name, arm in result["arms"].items():
        for job, loss in arm["losses"].items():
            if abs(loss - first.setdefault(job, loss)) > LOSS_TOLERANCE * abs(first[job]):
                raise DemoError(
                    "failed",
                    f"{job} ended with a loss of {loss!r}, and with {first[job]!r} in another arm",
                    object=f"arm/{name}",
                    hint="the figures are written; the arms are not comparable",
                )


def render(result: Document) -> RenderableType:
    """Return the result as a table."""
    plan = result["plan"]
    seconds = ("makespan_s", "completion_s_mean", "run_s_mean", "wait_s_mean", "wait_s_worst")
    cells = {
        name: (
            *(f"{arm[key]:.1f}" for key in seconds),
            "" if arm["local"] is None else f"{100 * arm['local']:.1f}",
            str(arm["pauses"]),
            str(arm["moves"]),
        )
        for name, arm in result["arms"].items()
    }
    notes = [
        "wait: from submit to start",
        "local: under the fewest aggregators possible; of jobs of 2 GPUs and more",
        f"emulated: {', '.join(result['emulated'])}; real: Slurm, Open vSwitch, TensorFlow",
    ]
    headings = (
        *("makespan s", "mean completion s", "mean run s", "mean wait s", "worst wait s"),
        *("GPU-time local %", "pauses", "moves"),
    )
    title = f"{plan['jobs']} trainings of 1 to {plan['most_ranks']} GPUs, seed {plan['seed']}"
    return tabled(title, headings, cells, notes, result["plots"])
