"""Finds what limits a training: input, model, network, or that they do not overlap. Pure.

Three rates are compared, in samples a second: the loader's alone (its ceiling), the model's alone
on a batch that is there already, and both together. Micron (SDC 2021) prints training / ceiling;
DLIO and MLPerf Storage the accelerator's utilisation (AU).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Literal

from base.figures import figure
from measure.statistics import Summary

Limit = Literal["input", "compute", "network", "overlap"]

REACHED = 0.95
"""Share of a rate alone at which both together count as having reached it."""
BUSY = 0.8
"""Share of the workers' time that makes decoding the limit of the loader."""
MOSTLY = 0.5


def limit(
    ceiling: float, model: float, together: float, *, exposed: float | None = None
) -> Limit | None:
    """Return what limits; ``exposed`` is the share of a step in bare communication.

    None without three rates above zero. A training that reaches both is limited by the model: a
    faster input would gain nothing.
    """
    if not all(math.isfinite(rate) and rate > 0 for rate in (ceiling, model, together)):
        return None
    if together >= REACHED * model:
        return "network" if exposed is not None and exposed > MOSTLY else "compute"
    return "input" if together >= REACHED * ceiling else "overlap"


def certain(
    ceiling: Summary, model: Summary, together: Summary, *, exposed: float | None = None
) -> bool:
    """Return whether the verdict is the same at every end of the three intervals."""
    ends = ([s.low, s.high] for s in (ceiling, model, together))
    return len({limit(c, m, t, exposed=exposed) for c, m, t in product(*ends)}) == 1


@dataclass(slots=True, frozen=True, kw_only=True)
class LoadingEvidence:
    """What a remedy is drawn from. Rates in samples a second."""

    ceiling: float
    model: float
    together: float
    deeper: float | None
    """Together with ``deeper_batches`` read ahead; None where that was not tried."""
    workers: int
    prefetch: int
    deeper_batches: int
    sample_bytes: int
    reading: float | None
    """Share of the workers' time in reads while the loader runs alone."""
    decoding: float | None


def remedy(found: Limit | None, seen: LoadingEvidence) -> str:
    """Return what to change, with the figures behind it; empty without a verdict."""
    match found:
        case "input":
            return _input_remedy(seen)
        case "overlap":
            return _overlap_remedy(seen)
        case "compute":
            return (
                f"none for the input: it gives {figure(seen.ceiling / seen.model)} times what the"
                " model reads"
            )
        case "network":
            return "communication fills the step: see `lightloom comms` and `lightloom compare`"
        case None:
            return ""


def _input_remedy(seen: LoadingEvidence) -> str:
    asked, given = (rate * seen.sample_bytes / 1e6 for rate in (seen.model, seen.ceiling))
    if seen.decoding is not None and seen.decoding >= BUSY:
        enough = math.ceil(seen.workers * seen.model / seen.ceiling)
        return (
            f"decoding takes {seen.decoding:.0%} of the workers' time: {enough} workers instead of"
            f" {seen.workers} would feed the model, if as many cores are free; or store samples"
            " that are decoded already"
        )
    share = "" if seen.reading is None else f" takes {seen.reading:.0%} of the workers' time and"
    return (
        f"reading{share} gives {figure(given)} MB/s, the model reads {figure(asked)} MB/s:"
        " a faster volume,"
        " data in memory or smaller samples; `lightloom measure storage` shows whether more"
        " workers get more from this volume"
    )


def _overlap_remedy(seen: LoadingEvidence) -> str:
    most = min(seen.ceiling, seen.model)
    reached = f"{figure(seen.together, 4)} of {figure(most, 4)} samples/s"
    head = f"loader and model wait for each other: {reached}"
    if seen.deeper is None:
        return f"{head}; read further ahead than {seen.prefetch} batches"
    gain = seen.deeper / seen.together - 1
    if seen.deeper >= REACHED * most:
        return (
            f"read {seen.deeper_batches} batches ahead instead of {seen.prefetch}: measured"
            f" {figure(seen.deeper, 4)} samples/s ({gain:+.0%})"
        )
    return (
        f"{head}, and {seen.deeper_batches} batches ahead give"
        f" {figure(seen.deeper, 4)} ({gain:+.0%}):"
        " they share something else, such as processor cores"
    )
