"""Curves over a quantity that is not time, as inline SVG: points, 95 % bands, logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from console.cli.show.page.html import escaped, small
from console.cli.show.plot import PALETTE

_W, _H, _LEFT, _BOTTOM, _TOP = 900, 240, 90, 42, 24
_MOST_LINES = 12
_MOST_TICKS = 9
_DASHES = ("", "8 4", "2 3", "12 4 2 4", "4 4", "16 5")

Write = Callable[[float], str]


@dataclass(slots=True, frozen=True)
class Axis:
    """One axis; with ``log`` only positive values are drawn."""

    label: str
    write: Write
    log: bool = False

    def fits(self, value: float) -> bool:
        """Whether a value can be drawn."""
        return math.isfinite(value) and (value > 0 or not self.log)

    def at(self, value: float) -> float:
        """Return where a value lies, in any linear measure."""
        return math.log10(value) if self.log else value


@dataclass(slots=True, frozen=True)
class Point:
    """One point; ``low`` and ``high`` bound it with 95 %."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(slots=True, frozen=True)
class Curve:
    """One line; a prediction is dashed."""

    name: str
    points: Sequence[Point]
    predicted: bool = False


def curves(title: str, lines: Sequence[Curve], x: Axis, y: Axis) -> str:
    """Return one plot with its legend; nothing without points."""
    drawn = [
        Curve(line.name, found, line.predicted)
        for line in lines
        if (found := sorted(_fitting(line.points, x, y), key=lambda p: p.x))
    ]
    if not drawn:
        return ""
    shown = drawn[:_MOST_LINES]
    across = _Scale.of([p.x for line in shown for p in line.points], x, _LEFT + 12, _W - 20)
    values = [v for line in shown for p in line.points for v in (p.y, p.low, p.high)]
    known = [v for v in values if v is not None and y.fits(v)]
    up = _Scale.of([*known, *([] if y.log else [0.0])], y, _H - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {_W} {_H}" role="img" aria-label="{escaped(title)}">',
        f'<text x="{_LEFT}" y="13" font-size="12" fill="currentColor">{escaped(title)}</text>',
        *_grid(across, up, x, y, shown),
    ]
    for number, line in enumerate(shown):
        parts += _line(line, number, across, up, y)
    parts.append("</svg>")
    legend = "".join(
        f'<span><i style="background:{_colour(n)}"></i>{escaped(line.name)}</span>'
        for n, line in enumerate(shown)
    )
    left = small(f"And {len(drawn) - _MOST_LINES} more.") if len(drawn) > _MOST_LINES else ""
    return "".join(parts) + f'<p class="small legend">{legend}</p>{left}'


@dataclass(slots=True, frozen=True)
class _Scale:
    """From values of an axis to the drawing."""

    axis: Axis
    low: float
    high: float
    first: float
    last: float

    @classmethod
    def of(cls, values: Sequence[float], axis: Axis, first: float, last: float) -> _Scale:
        places = [axis.at(v) for v in values]
        low, high = min(places), max(places)
        pad = (high - low or abs(high) or 1.0) * 0.03
        return cls(axis, low - (pad if axis.log else 0), high + pad, first, last)

    def __call__(self, value: float) -> float:
        part = (self.axis.at(value) - self.low) / (self.high - self.low)
        return self.first + part * (self.last - self.first)

    def ticks(self) -> list[float]:
        """Return round values: powers of ten on a logarithmic axis."""
        if not self.axis.log:
            return [self.low + (self.high - self.low) * i / 4 for i in range(5)]
        decades = range(math.ceil(self.low), math.floor(self.high) + 1)
        found = [10.0**n for n in decades]
        step = max(1, math.ceil(len(found) / _MOST_TICKS))
        return found[::step] or [10**self.low, 10**self.high]


def _fitting(points: Sequence[Point], x: Axis, y: Axis) -> list[Point]:
    return [p for p in points if x.fits(p.x) and y.fits(p.y)]


def _grid(across: _Scale, up: _Scale, x: Axis, y: Axis, shown: Sequence[Curve]) -> list[str]:
    parts = []
    for value in up.ticks():
        at = up(value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_W - 5}" y1="{at:.1f}" y2="{at:.1f}" '
            'stroke="currentColor" stroke-opacity="0.15"/>'
            f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" font-size="11" text-anchor="end" '
            f'fill="currentColor">{escaped(y.write(value))}</text>'
        )
    places = sorted({p.x for line in shown for p in line.points})
    step = max(1, math.ceil(len(places) / _MOST_TICKS))
    parts += [
        f'<text x="{across(place):.1f}" y="{_H - _BOTTOM + 16}" font-size="11" '
        f'text-anchor="middle" fill="currentColor">{escaped(x.write(place))}</text>'
        for place in places[::step]
    ]
    parts.append(
        f'<text x="{(_LEFT + _W) / 2:.0f}" y="{_H - 6}" font-size="11" text-anchor="middle" '
        f'fill="currentColor">{escaped(x.label)}</text>'
    )
    return parts


def _line(line: Curve, number: int, across: _Scale, up: _Scale, y: Axis) -> list[str]:
    colour = _colour(number)
    dash = "5 5" if line.predicted else _DASHES[number % len(_DASHES)]
    band = [
        (across(p.x), up(p.low), up(p.high))
        for p in line.points
        if p.low is not None and p.high is not None and y.fits(p.low) and y.fits(p.high)
    ]
    parts = []
    if len(band) > 1:
        edge = [f"{at:.1f},{low:.1f}" for at, low, _ in band]
        edge += [f"{at:.1f},{high:.1f}" for at, _, high in reversed(band)]
        points = " ".join(edge)
        parts.append(f'<polygon fill="{colour}" fill-opacity="0.18" points="{points}"/>')
    places = [f"{across(p.x):.1f},{up(p.y):.1f}" for p in line.points]
    parts.append(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}" '
        f'points="{" ".join(places)}"><title>{escaped(line.name)}</title></polyline>'
    )
    parts += [
        f'<circle cx="{place.split(",")[0]}" cy="{place.split(",")[1]}" r="2.6" fill="{colour}"/>'
        for place in places
    ]
    return parts


def _colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]
