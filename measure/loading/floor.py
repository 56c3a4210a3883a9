"""The shortest step that an input allows, from a result of ``measure input``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, frozen=True, kw_only=True)
class Floor:
    """No step is shorter while its batches come from this loader."""

    step_s: float
    """Seconds of the loader alone for a rank's batch."""
    measurement: str
    volume: str
    batch: int
    """Samples of a rank's step, as it was measured."""


def floor_of(
    result: Mapping[str, Any], io_bps: int | None = None, memory_bytes: int | None = None
) -> Floor | None:
    """Return the floor for a job with these limits; None where they were not measured.

    The ceiling counts the samples of all ranks a second: a rank's batch takes ranks x batch /
    ceiling.
    """
    settings = result.get("settings") or {}
    for row in result.get("rows") or ():
        same = (row.get("io_limit_bps"), row.get("memory_bytes")) == (io_bps, memory_bytes)
        ceiling = row.get("ceiling_samples_s")
        if same and ceiling:
            return Floor(
                step_s=settings["batch"] * row["ranks"] / ceiling,
                measurement=str(result.get("id")),
                volume=str(settings["volume"]),
                batch=int(settings["batch"]),
            )
    return None
