"""Bars with intervals and marks, and a heat map, as inline SVG; every figure is text, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from console.cli.show.page.html import escaped, small
from console.cli.show.plot import PALETTE

_W, _ROW, _NAME, _TEXT = 900, 22, 210, 330
MOST_BARS = 40
MOST_CELLS = 64
"""Most rows and columns of a heat map: a page is read as a whole."""
_STOPS = ((0, 32, 77), (61, 78, 108), (124, 123, 120), (187, 173, 108), (255, 234, 70))
"""Cividis (Nuñez, Anderton and Renslow, 2018)."""
_HATCHES: tuple[tuple[tuple[float, float, float, float], ...], ...] = (
    ((0, 0.5, 0.5, 0), (0, 1, 1, 0), (0.5, 1, 1, 0.5)),
    ((0, 0.5, 0.5, 1), (0, 0, 1, 1), (0.5, 0, 1, 0.5)),
    ((0, 1, 1, 0), (0, 0, 1, 1)),
    ((0, 0.3, 1, 0.3), (0, 0.7, 1, 0.7)),
    ((0.3, 0, 0.3, 1), (0.7, 0, 0.7, 1)),
)
"""Lines of a group over a cell of size 1: x, y of both ends."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Bar:
    """One bar. ``low`` and ``high`` are a whisker, ``mark`` frames a prediction."""

    name: str
    value: float | None
    text: str
    low: float | None = None
    high: float | None = None
    mark: tuple[float, float] | None = None
    colour: int = 0


def bars(title: str, found: Sequence[Bar]) -> str:
    """Return bars over one scale that includes 0; nothing without any."""
    shown = found[:MOST_BARS]
    if not shown:
        return ""
    figures = [v for b in shown for v in (b.value, b.low, b.high, *(b.mark or ())) if v is not None]
    low, high = min([0.0, *figures]), max([0.0, *figures])
    width = _W - _NAME - _TEXT

    def x(value: float) -> float:
        part: float = (value - low) / (high - low or 1.0)
        return _NAME + part * width

    height = 20 + _ROW * len(shown)
    parts = [
        f'<svg viewBox="0 0 {_W} {height}" role="img" aria-label="{escaped(title)}">',
        f'<text x="0" y="13" font-size="12" fill="currentColor">{escaped(title)}</text>',
    ]
    for number, bar in enumerate(shown):
        top = 20 + _ROW * number
        parts += [
            f'<text x="{_NAME - 8}" y="{top + 14}" font-size="12" text-anchor="end" '
            f'fill="currentColor">{escaped(_short(bar.name))}</text>',
            f'<text x="{_W - _TEXT + 8}" y="{top + 14}" font-size="12" '
            f'fill="currentColor">{escaped(bar.text)}</text>',
        ]
        if bar.value is not None:
            parts.append(_rect(x(0.0), x(bar.value), top + 3, 14, PALETTE[bar.colour]))
        if bar.low is not None and bar.high is not None:
            parts.append(_rect(x(bar.low), x(bar.high), top + 9, 2, "currentColor"))
        if bar.mark is not None:
            left, right = x(bar.mark[0]), x(bar.mark[1])
            parts.append(
                f'<rect x="{left:.1f}" y="{top + 1}" width="{max(right - left, 3):.1f}" '
                'height="18" fill="none" stroke="currentColor" stroke-width="2"/>'
            )
    more = small(f"And {len(found) - MOST_BARS} more.") if len(found) > MOST_BARS else ""
    return "".join(parts) + "</svg>" + more


def _rect(one: float, other: float, top: float, height: float, colour: str) -> str:
    left, right = sorted((one, other))
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{max(right - left, 1.0):.1f}" '
        f'height="{height}" fill="{colour}"/>'
    )


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:29]}…"


@dataclass(slots=True, frozen=True)
class Cell:
    """One cell of a heat map; a value of None was not measured, and is crossed out."""

    value: float | None
    group: int | None
    text: str


def heat_map(
    title: str,
    names: Sequence[str],
    cells: Mapping[tuple[int, int], Cell],
    write: Callable[[float], str],
) -> str:
    """Return a square of cells (row, column): colour by value, hatching by group."""
    if not names or not cells or len(names) > MOST_CELLS:
        return ""
    values = [c.value for c in cells.values() if c.value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    side = max(9, min(26, 700 // len(names)))
    left, top = 90, 84
    size = side * len(names)
    parts = [
        f'<svg viewBox="0 0 {_W} {top + size + 26}" role="img" aria-label="{escaped(title)}">',
        f'<text x="0" y="13" font-size="12" fill="currentColor">{escaped(title)}</text>',
    ]
    for number, name in enumerate(names):
        at = number * side + side / 2
        label = escaped(_short(name)[:14])
        parts.append(
            f'<text x="{left - 5}" y="{top + at + 4:.1f}" font-size="10" text-anchor="end" '
            f'fill="currentColor">{label}</text>'
            f'<text transform="translate({left + at + 3:.1f} {top - 5}) rotate(-90)" '
            f'font-size="10" fill="currentColor">{label}</text>'
        )
    for (row, column), cell in cells.items():
        x, y = left + column * side, top + row * side
        said = f"<title>{escaped(cell.text)}</title>"
        box = f'x="{x}" y="{y}" width="{side - 1}" height="{side - 1}"'
        if cell.value is None:
            cross = f"M{x} {y}l{side - 1} {side - 1}M{x + side - 1} {y}l{1 - side} {side - 1}"
            parts.append(f'<path d="{cross}" stroke="currentColor" fill="none">{said}</path>')
            continue
        parts.append(f'<rect {box} fill="{_shade(cell.value, low, high)}">{said}</rect>')
        if cell.group is not None and cell.group > 0:
            parts.append(_hatch(cell.group, x, y, side - 1))
    key = f"dark {write(low)}, bright {write(high)}; hatching: the group; crossed: not measured"
    parts.append(
        f'<text x="{left}" y="{top + size + 18}" font-size="11" '
        f'fill="currentColor">{escaped(key)}</text></svg>'
    )
    return "".join(parts)


def _hatch(group: int, x: int, y: int, side: int) -> str:
    """Return the lines of a group; white beside black shows on every shade."""
    lines = _HATCHES[(group - 1) % len(_HATCHES)]
    path = "".join(
        f"M{x + a * side:.1f} {y + b * side:.1f}L{x + c * side:.1f} {y + d * side:.1f}"
        for a, b, c, d in lines
    )
    return (
        f'<path d="{path}" stroke="#000" stroke-opacity="0.55" pointer-events="none"/>'
        f'<path d="{path}" stroke="#fff" stroke-opacity="0.55" pointer-events="none" '
        'transform="translate(1 0)"/>'
    )


def _shade(value: float, low: float, high: float) -> str:
    if low > 0 and high / low > 20:
        value, low, high = math.log(value), math.log(low), math.log(high)
    part = 1.0 if high <= low else (value - low) / (high - low)
    place = part * (len(_STOPS) - 1)
    first = min(int(place), len(_STOPS) - 2)
    mixed = (
        round(a + (b - a) * (place - first))
        for a, b in zip(_STOPS[first], _STOPS[first + 1], strict=True)
    )
    return "rgb({} {} {})".format(*mixed)
