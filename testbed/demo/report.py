"""Builds the demo's result as one document and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.demo.api import Document
from testbed.demo.cases import CaseArm, PaperCase
from testbed.demo.errors import DemoError
from testbed.demo.rule import LEAST_TRAINING_S, LinkRates

LOSS_TOLERANCE = 1e-3
"""Relative tolerance. On one machine the losses are bit-identical; see testbed/trainer.py."""


def document(
    case: PaperCase,
    site: str,
    rates: LinkRates,
    arms: Mapping[CaseArm, Document],
    *,
    plots: Sequence[str],
    emulated: Sequence[str],
) -> Document:
    """Return the result; reductions are fractions of the fragmented arm's completion time."""
    fragmented = arms.get(CaseArm.FRAGMENTED)
    reduction = {
        arm.value: round(1 - figures["completion_s"] / fragmented["completion_s"], 4)
        for arm, figures in arms.items()
        if fragmented is not None and arm is not CaseArm.FRAGMENTED
    }
    return {
        "case": case.name,
        "site": site,
        "rates": {
            "access_bps": rates.access_bps,
            "inter_aggregator_bps": rates.inter_aggregator_bps,
            "rule": rates.rule,
        },
        "arms": {arm.value: figures for arm, figures in arms.items()},
        "reduction": reduction,
        "paper": {
            "fragmented_s": case.paper.fragmented_s,
            "regrouped_s": case.paper.regrouped_s,
            "reduction": case.paper.reduction,
        },
        "plots": list(plots),
        "emulated": list(emulated),
    }


def check(result: Document) -> None:
    """Raise DemoError(failed) when the arms are not comparable, so that the figures are invalid."""
    losses = {name: arm["final_loss"] for name, arm in result["arms"].items()}
    first = next(iter(losses.values()))
    for name, loss in losses.items():
        if abs(loss - first) > LOSS_TOLERANCE * abs(first):
            raise DemoError(
                "failed",
                f"the arms trained differently: final loss {loss:.6f} instead of {first:.6f}",
                object=f"arm/{name}",
                hint=f"the tolerance is {LOSS_TOLERANCE:g}, relative; the raw figures are written",
            )
    for name, arm in result["arms"].items():
        if arm["container_restarts"]:
            raise DemoError(
                "failed",
                f"{arm['container_restarts']} containers were restarted",
                object=f"arm/{name}",
                hint="see: lightloom get events; the raw figures are written",
            )
    fragmented = result["arms"].get(CaseArm.FRAGMENTED.value)
    if fragmented is not None and fragmented["completion_s"] < LEAST_TRAINING_S:
        raise DemoError(
            "failed",
            f"the fragmented arm trained {fragmented['completion_s']:.1f} s,"
            f" less than {LEAST_TRAINING_S:.0f} s",
            object="arm/fragmented",
            hint="the calibration does not fit this machine's load: run with --recalibrate",
        )


def render(result: Document) -> RenderableType:
    """Return the result as a table with the paper's figures."""
    cells = {
        name: (
            f"{arm['completion_s']:.1f}",
            _percent(result["reduction"].get(name)),
            *_paper(result["paper"], name),
            f"{arm['samples_per_s']:.0f}",
            f"{arm['step_s_median']:.3f}",
            _percent(arm["exposed_comm_fraction"]),
            _percent(arm["utilisation"]),
            f"{arm['longest_gap_s']:.2f}",
            f"{arm['dark_time_s']:.3f}",
            str(arm["container_restarts"]),
            f"{arm['final_loss']:.6f}",
        )
        for name, arm in result["arms"].items()
    }
    rates = result["rates"]
    notes = [
        f"links: access {rates['access_bps'] / 1e6:.1f} Mbit/s, between aggregators "
        f"{rates['inter_aggregator_bps'] / 1e6:.1f} Mbit/s, by rule: {rates['rule']}",
        f"final losses are equal within {LOSS_TOLERANCE:g} (relative)",
        f"emulated: {', '.join(result['emulated'])}",
    ]
    headings = (
        *("completion s", "reduction", "paper s", "paper red.", "samples/s", "step s"),
        *("exposed comm.", "utilisation", "longest gap s", "dark s", "restarts", "final loss"),
    )
    return tabled(f"Case {result['case']}: the red job", headings, cells, notes, result["plots"])


def tabled(
    title: str,
    headings: Sequence[str],
    cells: Mapping[str, Sequence[str]],
    notes: Sequence[str],
    plots: Sequence[str],
) -> RenderableType:
    """Return a table with a row per arm, the notes below it, and the files of the plots."""
    table = Table(title=title, title_justify="left")
    table.add_column("arm")
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, row in cells.items():
        table.add_row(name, *row)
    return Group(table, *map(Text, (*notes, *(f"plot: {plot}" for plot in plots))))


def _paper(paper: Mapping[str, Any], arm: str) -> tuple[str, str]:
    if arm == CaseArm.FRAGMENTED:
        return f"{paper['fragmented_s']:.0f}", ""
    if arm == CaseArm.REGROUPED:
        return f"{paper['regrouped_s']:.0f}", _percent(paper["reduction"])
    return "", ""


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.1f} %"
