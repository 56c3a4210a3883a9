"""Formats values for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from base.figures import figure
from console.cli.errors import CliError, usage
from readings.reading import Reading, Unit

_BARS = "▁▂▃▄▅▆▇█"
NONE = "-"


def plain(value: object) -> str:
    """Return ``value`` with control characters escaped, so that it cannot control a terminal."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def rate(bps: float | None) -> str:
    """Format a rate in decimal units: ``114 Mbit/s``."""
    return NONE if bps is None else _scaled(bps, 1000.0, "bit/s", ("", "k", "M", "G", "T"))


def size(count: float | None) -> str:
    """Format a size in binary units: ``12 GiB``."""
    return NONE if count is None else _scaled(count, 1024.0, "B", ("", "Ki", "Mi", "Gi", "Ti"))


def _scaled(value: float, base: float, unit: str, prefixes: Sequence[str]) -> str:
    for prefix in prefixes[:-1]:
        if abs(value) < base - 0.5:
            return f"{figure(value)} {prefix}{unit}"
        value /= base
    return f"{figure(value)} {prefixes[-1]}{unit}"


def celsius(degrees: float | None) -> str:
    """Format a temperature: ``61 °C``."""
    return NONE if degrees is None else f"{degrees:.0f} °C"


def watts(power: float | None) -> str:
    """Format a power: ``350 W``."""
    return NONE if power is None else _scaled(power, 1000.0, "W", ("", "k", "M"))


def hertz(clock: float | None) -> str:
    """Format a clock: ``1.98 GHz``."""
    return NONE if clock is None else _scaled(clock, 1000.0, "Hz", ("", "k", "M", "G"))


def percent(fraction: float | None) -> str:
    """Format a fraction: ``38 %``."""
    return NONE if fraction is None else f"{100 * fraction:.0f} %"


def age(seconds: float | None) -> str:
    """Format a duration in its two largest units: ``3m12s``."""
    if seconds is None:
        return NONE
    left = max(0, int(seconds))
    if left < 60:
        return f"{left}s"
    if left < 3600:
        return f"{left // 60}m{left % 60:02d}s"
    if left < 86400:
        return f"{left // 3600}h{left % 3600 // 60:02d}m"
    return f"{left // 86400}d{left % 86400 // 3600:02d}h"


_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


def duration_s(text: str) -> float:
    """Parse a duration: ``90``, ``90s``, ``15m``, ``1h30m``, ``2d``; CliError for other text."""
    found = _DURATION.fullmatch(text.strip())
    parts = [float(part) if part else 0.0 for part in found.groups()] if found else []
    total = sum(
        part * unit for part, unit in zip(parts, (86400.0, 3600.0, 60.0, 1.0), strict=False)
    )
    if total <= 0:
        raise usage(f"{text!r} is not a duration above 0", "for example 90, 15m, 1h30m or 2d")
    return total


def moment_s(text: str, now: float) -> float:
    """Parse a moment: ``10m`` before ``now``, or an ISO 8601 time (of this machine's zone if it
    names none). Returns seconds since 1970; CliError for other text.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return max(0.0, now - duration_s(text))
    except CliError:
        raise usage(
            f"{text!r} is not a moment", "for example 10m, 2h30m or 2026-01-31T12:00:00"
        ) from None


def instant(seconds: float) -> str:
    """Format a moment in UTC: ``2026-01-31T12:00:00.123Z``."""
    written = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return written.replace("+00:00", "Z")


def spread(counts: Mapping[str, int] | None) -> str:
    """Format endpoints per aggregator: ``as0:2 as1:2``."""
    return " ".join(f"{name}:{count}" for name, count in sorted((counts or {}).items())) or NONE


def names(values: Sequence[object]) -> str:
    """Format a list of names or figures."""
    return ",".join(NONE if v is None else str(v) for v in values) or NONE


def sparkline(values: Sequence[float | None], floor: float = 0.0) -> str:
    """Draw a series with one block character a value, from ``floor`` to its largest."""
    top = (max((v for v in values if v is not None), default=0.0) - floor) or 1.0
    return "".join(
        " "
        if v is None
        else _BARS[min(len(_BARS) - 1, int((v - floor) / top * (len(_BARS) - 1) + 0.5))]
        for v in values
    )


def thinned(values: Sequence[float | None], count: int) -> list[float | None]:
    """Return at most ``count`` means of the known values, in order."""
    if len(values) <= count:
        return list(values)
    edges = [len(values) * i // count for i in range(count + 1)]
    found = []
    for first, last in pairwise(edges):
        known = [v for v in values[first:last] if v is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def written(reading: Reading, value: Any) -> str:
    """Format a value of a reading; None is one that nothing reports."""
    return NONE if value is None else _FORMS[reading.unit](value)


_FORMS: Mapping[Unit, Callable[[Any], str]] = {
    Unit.RATIO: percent,
    Unit.BYTES: size,
    Unit.CELSIUS: celsius,
    Unit.WATTS: watts,
    Unit.HERTZ: hertz,
    Unit.BITS_PER_SECOND: rate,
    Unit.COUNT: str,
    Unit.NUMBER: figure,
    Unit.WORDS: names,
}


def plural(count: int, word: str) -> str:
    """Format a count with its word: ``1 move``, ``2 moves``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
