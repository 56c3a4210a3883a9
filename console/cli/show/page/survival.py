"""Section of a page about what survived: a job's checkpoints, and its recoveries' phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from base.figures import figure
from console.cli.show.checkpoints import STATES, parts_text, remarks
from console.cli.show.page.html import clock, escaped, listed, small, table
from console.cli.show.plot import PALETTE
from console.cli.show.recovery import OWN, Phase, costs, headline, outcome, phases, steps
from console.cli.show.text import NONE, size

Document = Mapping[str, Any]

MOST_STEPS = 40
MOST_RECOVERIES = 20
_W, _LEFT, _RIGHT, _ROW, _BASE = 900, 90, 70, 20, 22
_COLOURS = {OWN: PALETTE[0], "program": PALETTE[1]}


def checkpointed(view: Document) -> str:
    """Return the section of a job's checkpoints."""
    rows = [
        (
            step["step"],
            step["epoch"],
            step["state"],
            parts_text(step),
            size(step["bytes"]),
            *(_clock(step[f"{state}_at"]) for state in ("written", "protected", "persistent")),
            step["why"] or NONE,
        )
        for step in view["steps"]
    ]
    shown = {step["state"] for step in view["steps"]}
    heads = ("Step", "Run", "State", "Parts", "Size", "Written", "Protected", "Persistent", "Why")
    legend = [f"{state}: {text}" for state, text in STATES.items() if state in shown]
    said = [line for line in remarks(view) if line and line not in legend]
    return "<h2>Checkpoints</h2>" + table(heads, rows, MOST_STEPS) + listed(legend) + listed(said)


def recovered(view: Document) -> str:
    """Return the section of a job's recoveries; empty for a job that lost no rank."""
    found: Sequence[Document] = view["recoveries"]
    if not found:
        return ""
    ettr = "not known" if view["ettr"] is None else f"{view['ettr']:.3f}"
    rows = [
        (
            r["number"],
            clock(r["failed_at"]),
            ", ".join(r["objects"]) or r["cause"],
            outcome(r),
            steps(r),
            _seconds(r["total_s"]),
            _seconds(r["own_s"]),
            r["why"] or NONE,
        )
        for r in found
    ]
    heads = ("No.", "Time", "What", "Then", "Steps", "To the first step", "Lightloom's", "Why")
    drawn = "".join(
        f"<h3>{escaped(r['number'])}. {escaped(headline(r))}</h3>{timeline(r)}"
        for r in found[-MOST_RECOVERIES:]
    )
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{whose}</span>'
        for whose, colour in ((OWN, _COLOURS[OWN]), ("the program's own", _COLOURS["program"]))
    )
    return "".join(
        (
            "<h2>Recoveries</h2>",
            small(f"ETTR {ettr}: the share of the time in which steps were made that counted."),
            table(heads, rows),
            drawn,
            f'<p class="small legend">{legend}</p>',
            "<h3>GPU-hours lost</h3>",
            table(("Cause", "GPU-hours"), costs(view["gpu_hours_lost"])),
        )
    )


def timeline(recovery: Document) -> str:
    """Draw a recovery's phases, one a row, over the seconds since the failure."""
    shown = phases(recovery)
    end = max((phase.ends_s for phase in shown), default=0.0)
    if end <= 0.0:
        return small("No phase has ended.")
    height = len(shown) * _ROW + _BASE
    parts = [
        f'<svg viewBox="0 0 {_W} {height}" role="img" '
        f'aria-label="{escaped("; ".join(map(_words, shown)))}">'
    ]
    parts += [_bar(row, phase, end) for row, phase in enumerate(shown)]
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        parts.append(
            f'<text x="{_x(share):.1f}" y="{height - 6}" font-size="11" text-anchor="{anchor}" '
            f'fill="currentColor">{figure(share * end)} s</text>'
        )
    return "".join((*parts, "</svg>"))


def _bar(row: int, phase: Phase, end: float) -> str:
    y = row * _ROW
    left, right = _x(phase.begins_s / end), _x(phase.ends_s / end)
    return (
        f'<text x="{_LEFT - 6}" y="{y + 14}" font-size="11" text-anchor="end" '
        f'fill="currentColor">{escaped(phase.name)}</text>'
        f'<rect x="{left:.1f}" y="{y + 4}" width="{max(1.5, right - left):.1f}" '
        f'height="{_ROW - 7}" fill="{_COLOURS[phase.whose]}"><title>{escaped(_words(phase))}'
        f'</title></rect><text x="{right + 5:.1f}" y="{y + 14}" font-size="11" '
        f'fill="currentColor">{phase.takes_s:.2f} s</text>'
    )


def _x(share: float) -> float:
    return _LEFT + share * (_W - _LEFT - _RIGHT)


def _words(phase: Phase) -> str:
    return f"{phase.name}: {phase.takes_s:.2f} s from {phase.begins_s:.2f} s on"


def _clock(moment: float | None) -> str:
    return NONE if moment is None else clock(moment)


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f} s"
