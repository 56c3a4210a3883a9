"""Plots over time as inline SVG, without scripts, fonts or external resources."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from base.figures import figure

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""Okabe and Ito: distinct for colour-blind readers, too."""
_W, _H, _LEFT, _BOTTOM, _TOP = 900, 220, 70, 24, 22
_POINTS = 900
"""Most points of a line; of more samples, means are drawn."""


Place = Callable[[float], float]


@dataclass(slots=True, frozen=True)
class Line:
    """One line; NaN is a gap."""

    name: str
    values: Sequence[float]


@dataclass(slots=True, frozen=True)
class Marker:
    """A vertical line at a moment."""

    time: float
    text: str


def plot(
    title: str,
    times: Sequence[float],
    lines: Sequence[Line],
    markers: Sequence[Marker],
    *,
    unit: str,
) -> str:
    """Return one plot with its legend."""
    first, last = times[0], max(times[-1], times[0] + 1)
    known = [v for line in lines for v in line.values if not math.isnan(v)]
    top = _nice(max(known, default=1.0) or 1.0)

    def x(moment: float) -> float:
        return _LEFT + (moment - first) / (last - first) * (_W - _LEFT - 5)

    def y(value: float) -> float:
        return _H - _BOTTOM - value / top * (_H - _BOTTOM - _TOP)

    parts = [
        f'<svg viewBox="0 0 {_W} {_H}" role="img" aria-label="{_e(title)} over time">',
        f'<text x="{_LEFT}" y="13" font-size="12" fill="currentColor">{_e(title)}</text>',
    ]
    for step in range(5):
        value = top * step / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{_W - 5}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="currentColor" stroke-opacity="0.15"/>'
            f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" font-size="11" text-anchor="end" '
            f'fill="currentColor">{_e(_short(value, unit))}</text>'
        )
    for share in (0.0, 0.5, 1.0):
        moment = first + share * (last - first)
        anchor = {0.0: "start", 0.5: "middle", 1.0: "end"}[share]
        clock = time.strftime("%H:%M:%S", time.localtime(moment))
        parts.append(
            f'<text x="{x(moment):.1f}" y="{_H - 7}" font-size="11" text-anchor="{anchor}" '
            f'fill="currentColor">{clock}</text>'
        )
    for marker in markers:
        if first <= marker.time <= last:
            at = x(marker.time)
            parts.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_H - _BOTTOM}" '
                'stroke="#d55e00" stroke-dasharray="4 3" stroke-width="1.5">'
                f"<title>{_e(marker.text)}</title></line>"
            )
    for number, line in enumerate(lines):
        color = PALETTE[number % len(PALETTE)]
        parts += [
            f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{points}">'
            f"<title>{_e(line.name)}</title></polyline>"
            for points in _pieces(times, line.values, x, y)
        ]
    parts.append("</svg>")
    legend = "".join(
        f'<span><i style="background:{PALETTE[n % len(PALETTE)]}"></i>{_e(line.name)}</span>'
        for n, line in enumerate(lines)
    )
    return "".join(parts) + f'<p class="small legend">{legend}</p>'


def _pieces(times: Sequence[float], values: Sequence[float], x: Place, y: Place) -> list[str]:
    """Return the points of a line, split at its gaps and reduced to ``_POINTS``."""
    stride = max(1, math.ceil(len(times) / _POINTS))
    pieces: list[list[str]] = [[]]
    for start in range(0, len(times), stride):
        part = [v for v in values[start : start + stride] if not math.isnan(v)]
        if part:
            at, mean = times[start], sum(part) / len(part)
            pieces[-1].append(f"{x(at):.1f},{y(mean):.1f}")
        elif pieces[-1]:
            pieces.append([])
    # A polyline needs two points: double a single sample between two gaps.
    return [" ".join(p if len(p) > 1 else p * 2) for p in pieces if p]


def _nice(value: float) -> float:
    scale = 10.0 ** math.floor(math.log10(value))
    return next(
        step * scale for step in (1.0, 2.0, 2.5, 5.0, 10.0) if value <= step * scale * 1.0001
    )


def _short(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.0f} %"
    for prefix in ("", "k", "M", "G"):
        if value < 1000:
            return f"{figure(value)} {prefix}{unit}"
        value /= 1000
    return f"{figure(value)} T{unit}"


def _e(text: str) -> str:
    return html.escape("".join(c if c.isprintable() else "?" for c in text), quote=True)
