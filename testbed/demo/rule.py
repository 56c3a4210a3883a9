"""Computes the link rates by rule and the number of samples by formula, without a search. Pure.

The paper gives four completion times and no link rate. A model with three unknowns (compute
time, communication time, ratio of access to inter-aggregator rate) explains all four within
1.1 % without overlap of communication and computation, and within 0.4 % when half of the
communication may overlap, with

    M / B_access = 0.725 t_c  at overlap h = 0,      M / B_access = 0.36 t_c  at h = 0.5,
    B_inter = B_access / 2.2,

where M is the size of the gradient and t_c the compute time of a step of one rank. The rule is
the straight line through both points. The trainer's own t_c, M and h are measured; the rates
follow. t_c is measured at the batch of case a (48 images) for both cases, so that both cases
run at the same rates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CALIBRATION_BATCH = 48
"""Images per rank for the measurement of t_c: red's share in case a."""
ACCESS_RATIO = 2.2
LEAST_TRAINING_S = 60.0
"""The fragmented arm trains at least this long."""
MARGIN = 1.35
"""Factor on the predicted step time. The model assumes rings that always compete, but rings
drift apart in phase and then use the link alone, so the fragmented arm may be faster."""


@dataclass(slots=True, frozen=True)
class Calibration:
    """Measurements of the trainer: seconds per step, bytes per gradient, overlap 0 to 1."""

    compute_s: float
    gradient_bytes: int
    overlap: float


@dataclass(slots=True, frozen=True)
class Rates:
    """Link rates in bit/s and the text of their rule."""

    access_bps: float
    inter_aggregator_bps: float
    rule: str


def measured_overlap(compute_s: float, comm_s: float, step_s: float) -> float:
    """Return the fraction of the compute time that overlapped with communication.

    The overlap is the sum of both parts minus the step's length.
    """
    return min(1.0, max(0.0, (compute_s + comm_s - step_s) / compute_s))


def derive_rates(measured: Calibration) -> Rates:
    """Apply the rule. It is not extrapolated above h = 0.9, where no fit supports it."""
    bits = 8 * measured.gradient_bytes
    ratio = 0.725 - 0.73 * min(measured.overlap, 0.9)
    access = round(bits / (ratio * measured.compute_s))
    inter = round(access / ACCESS_RATIO)
    rule = (
        f"M / B_access = (0.725 - 0.73 h) t_c, B_inter = B_access / {ACCESS_RATIO}; "
        f"measured t_c = {measured.compute_s:.3f} s at {CALIBRATION_BATCH} images a rank, "
        f"M = {bits / 1e6:.2f} Mbit, h = {measured.overlap:.2f}"
    )
    return Rates(float(access), float(inter), rule)


def crossings(order: Sequence[str], homes: Mapping[str, str | None]) -> int:
    """Return how many times a ring crosses the busiest direction between two aggregators."""
    edges = Counter(
        (homes[name], homes[order[(i + 1) % len(order)]]) for i, name in enumerate(order)
    )
    return max((count for (a, b), count in edges.items() if a != b), default=0)


def predicted_step_s(
    measured: Calibration, rates: Rates, ranks: int, batch: int, *, own: int, others: int
) -> float:
    """Predict a step of a ring that competes with others on the inter-aggregator link.

    ``batch`` is images per rank; ``own`` and ``others`` are crossings of that link. A ring is
    one flow with one rate (its edges wait for each other), and rings share equally:
    rate = min(B_access, B_inter / (own + others)); every edge carries 2 (N - 1) / N gradients.
    """
    rate = rates.access_bps
    if own:
        rate = min(rate, rates.inter_aggregator_bps / (own + others))
    bits = 2 * (ranks - 1) / ranks * 8 * measured.gradient_bytes
    compute_s = measured.compute_s * batch / CALIBRATION_BATCH
    return compute_s * (1 - measured.overlap) + max(bits / rate, compute_s * measured.overlap)


def fixed_samples(step_s: float, global_batch: int) -> int:
    """Return the samples of every arm: whole steps, enough for the fragmented arm's time."""
    return math.ceil(LEAST_TRAINING_S * MARGIN / step_s) * global_batch
