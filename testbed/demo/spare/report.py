"""Builds the result as one document and as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import RenderableType

from testbed.demo.api import Document
from testbed.demo.errors import DemoError
from testbed.demo.report import tabled
from testbed.demo.spare.arms import STORE_BYTES_PER_S, SpareArm, SparePlan
from testbed.demo.spare.measure import SpareResult


def document(
    site: str,
    plan: SparePlan,
    done: Sequence[SpareResult],
    *,
    plots: Sequence[str],
    emulated: Sequence[str],
) -> Document:
    """Return the result. ``loss_equal`` compares final losses bit by bit."""
    usual = next(one.figures for one in done if one.arm is SpareArm.UNDISTURBED)
    arms = {}
    for one in done:
        extra = one.figures["completion_s"] - usual["completion_s"]
        arms[one.arm.value] = {
            **one.figures,
            "loss_equal": one.figures["final_loss"] == usual["final_loss"],
            "extra_s": round(extra, 3),
        }
    return {
        "case": "spare",
        "site": site,
        "plan": dataclasses.asdict(plan),
        "store_bytes_per_s": STORE_BYTES_PER_S,
        "arms": arms,
        "plots": list(plots),
        "emulated": list(emulated),
    }


def check(result: Document) -> None:
    """Raise DemoError(failed) when the figures do not compare the same training."""
    for name, arm in result["arms"].items():
        if not arm["loss_equal"]:
            raise DemoError(
                "failed",
                f"its final loss {arm['final_loss']!r} differs from the undisturbed arm's",
                object=f"arm/{name}",
                hint="the figures are written; see its log",
            )
    swap = result["arms"].get(SpareArm.SPARE.value)
    if swap is not None and not any(one["how"] == "swap" for one in swap["recoveries"]):
        why = "; ".join(one["why"] or one["how"] for one in swap["recoveries"])
        raise DemoError(
            "failed",
            f"no spare was used: {why or 'the controller recorded no loss'}",
            object="arm/spare",
            hint="see: lightloom get events",
        )


def render(result: Document) -> RenderableType:
    """Return the result as tables."""
    plan = result["plan"]
    cells = {}
    for name, arm in result["arms"].items():
        loss = arm["loss"] or {}
        cells[name] = (
            *(_seconds(loss.get(key)) for key in ("total_s", "until_started_s", "import_s")),
            *(_seconds(loss.get(key)) for key in ("load_s", "first_step_s", "caught_up_s")),
            str(loss.get("steps_lost", "")),
            *(_seconds(arm[key]) for key in ("completion_s", "extra_s")),
            _seconds(arm["blocked_s_median"], 3),
            _seconds(arm["step_s_median_after"], 3),
            f"{arm['final_loss']:.8f}",
            "yes" if arm["loss_equal"] else "NO",
        )
    notes = [
        f"checkpoints every {plan['every']} steps; the shared store accepts "
        f"{result['store_bytes_per_s'] / 1e6:g} MB/s",
        *_swap_notes(result["arms"].get(SpareArm.SPARE.value)),
        f"emulated: {', '.join(result['emulated'])}",
    ]
    headings = (
        *("GPU death to first step s", "until started", "import", "load", "first step"),
        "caught up",
        *("steps lost", "completion s", "extra s", "blocked a checkpoint s", "step s after"),
        *("final loss", "equal"),
    )
    title = f"A GPU is lost after {plan['lost_after']} of {plan['steps']} steps"
    return tabled(title, headings, cells, notes, result["plots"])


PHASES = (
    *("detect", "decide", "stop", "light", "fetch", "start", "import", "first_step"),
    *("total", "own"),
)


def _swap_notes(arm: Document | None) -> list[str]:
    """Return the controller's own account of the loss."""
    notes = []
    for one in arm["recoveries"] if arm else ():
        phases = (f"{p} {one[f'{p}_s']:.3f}" for p in PHASES if one.get(f"{p}_s") is not None)
        places = ", ".join(f"{spare} for {dead}" for dead, spare in one["swaps"].items())
        notes.append(f"{one['how']} {places}: {', '.join(phases)} s".replace("  ", " "))
    return notes


def _seconds(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"
