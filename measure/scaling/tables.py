"""Prints a result of scaling."""

from __future__ import annotations

from collections.abc import Mapping

from measure.envelope import Json, Row

_HEAD = (
    f"{'x':>4} {'batch':>6} {'ranks':>5} {'intensity':>9} {'grad MB':>8} {'step ms':>9} "
    f"{'compute':>9} {'exposed':>9} {'share':>6} {'speedup':>7} {'eff.':>6} {'predicted':>9} "
    f"{'error':>7}\n"
)


def table(result: Mapping[str, Json]) -> str:
    """Return a line for each run; times in milliseconds."""
    return _HEAD + "".join(map(_line, result["rows"]))


def _line(row: Row) -> str:
    share = row["exposed_s"] / row["step_s"] if row["step_s"] else None
    line = (
        f"{row['x']:>4} {row['batch']:>6} {row['ranks']:>5} {row['intensity']:>9.2f} "
        f"{row['gradient_bytes'] / 1e6:>8.2f} {_ms(row['step_s'])} {_ms(row['compute_s'])} "
        f"{_ms(row['exposed_s'])} {_share(share, 6)} {_plain(row['speedup'])} "
        f"{_share(row['efficiency'], 6)} {_ms(row['predicted_step_s'])} {_share(row['error'], 7)}"
    )
    return f"{line}  {row['reason']}".rstrip() + "\n"


def _ms(value: float | None) -> str:
    return f"{value * 1e3:>9.1f}" if value is not None else f"{'—':>9}"


def _share(value: float | None, width: int) -> str:
    return f"{value:>{width}.1%}" if value is not None else f"{'—':>{width}}"


def _plain(value: float | None) -> str:
    return f"{value:>7.2f}" if value is not None else f"{'—':>7}"
