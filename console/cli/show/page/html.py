"""Text and tables of a page. Everything from outside is escaped."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence


def escaped(value: object) -> str:
    """Return a value as text of a page, with control characters made visible."""
    text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(value))
    return html.escape(text, quote=True)


def clock(moment: float) -> str:
    """Return a moment as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def small(text: str) -> str:
    """Return a paragraph that explains."""
    return f'<p class="small">{escaped(text)}</p>'


def listed(lines: Sequence[str], most: int = 50) -> str:
    """Return a list of texts, the first ``most``."""
    shown = "".join(f"<li>{escaped(line)}</li>" for line in lines[:most])
    left = f"<li>and {len(lines) - most} more</li>" if len(lines) > most else ""
    return f"<ul>{shown}{left}</ul>" if shown else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], most: int | None = None) -> str:
    """Return a table, of long ones the first ``most`` rows; empty heads are left out."""
    if not rows:
        return small("None.")
    head = "".join(f"<th>{escaped(h)}</th>" for h in heads) if any(heads) else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{escaped(c)}</td>" for c in row) + "</tr>" for row in rows[:most]
    )
    left = small(f"And {len(rows) - most} more rows.") if most and len(rows) > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{left}"
