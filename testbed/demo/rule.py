"""Computes the link rates by rule and the number of samples by formula, without a search. Pure.

The paper gives four completion times and no link rate. A model with three unknowns (compute
time, communication time, ratio of access to inter-aggregator rate) explains all four within
1.1 % without overlap of communication and computation, and within 0.4 % when half of the
communication may overlap, with

    M / B_access = 0.725 t_c  at overlap h = 0,      M / B_access = 0.36 t_c  at h = 0.5,
    B_inter = B_access / 2.2,

where M is the size of the gradient and t_c the part of a step that does not depend on the link
rates. The rule is the straight line through both points. The trainer's own t_c, M and h are
measured; the rates follow. t_c is the step of a ring of two ranks on links that are not shaped
(``Base.RING``), so it holds the start of the collective and the copies to the sockets, which a
step of one rank (``Base.ALONE``) lacks. It is measured at the batch that a rank has in
both cases (48 images), so both run at the same rates. docs/adr/0006 has the reasons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

CALIBRATION_BATCH = 48
"""Images per rank for the measurement of t_c, as in both cases."""
ACCESS_RATIO = 2.2
LEAST_TRAINING_S = 60.0
"""The fragmented arm trains at least this long."""
MARGIN = 1.35
"""Factor on the predicted step time. The model assumes rings that always compete, but rings
drift apart in phase and then use the link alone, so the fragmented arm may be faster."""


class Base(StrEnum):
    """The measured step that the rule uses for t_c."""

    RING = "ring"
    """That of two ranks, on links that are not shaped."""
    ALONE = "alone"
    """That of one rank, which does not communicate."""


@dataclass(slots=True, frozen=True)
class TrainerCalibration:
    """Measurements of the trainer: seconds per step, bytes per gradient, overlap 0 to 1."""

    compute_s: float
    """Seconds of a step of one rank alone."""
    gradient_bytes: int
    overlap: float
    ring_s: float
    """Length of a step of two ranks under one aggregator, on links that are not shaped."""

    @property
    def constant_s(self) -> float:
        """Part of a ring's step that is neither computing nor sending at the links' rates."""
        return max(0.0, self.ring_s - self.compute_s)


@dataclass(slots=True, frozen=True)
class LinkRates:
    """Link rates in bit/s and the text of their rule."""

    access_bps: float
    inter_aggregator_bps: float
    rule: str


def measured_overlap(compute_s: float, comm_s: float, step_s: float) -> float:
    """Return the fraction of the compute time that overlapped with communication.

    The overlap is the sum of both parts minus the step's length.
    """
    return min(1.0, max(0.0, (compute_s + comm_s - step_s) / compute_s))


def derive_rates(measured: TrainerCalibration, base: Base = Base.RING) -> LinkRates:
    """Apply the rule. It is not extrapolated above h = 0.9, where no fit supports it."""
    bits = 8 * measured.gradient_bytes
    ratio = 0.725 - 0.73 * min(measured.overlap, 0.9)
    step_s = measured.ring_s if base is Base.RING else measured.compute_s
    access = round(bits / (ratio * step_s))
    inter = round(access / ACCESS_RATIO)
    what = "of a ring on unshaped links" if base is Base.RING else "of a rank alone"
    rule = (
        f"M / B_access = (0.725 - 0.73 h) t_c, B_inter = B_access / {ACCESS_RATIO}; "
        f"measured t_c = {step_s:.3f} s ({what}) at {CALIBRATION_BATCH} images a rank, "
        f"M = {bits / 1e6:.2f} Mbit, h = {measured.overlap:.2f}"
    )
    return LinkRates(float(access), float(inter), rule)


def crossings(order: Sequence[str], homes: Mapping[str, str | None]) -> int:
    """Return how many times a ring crosses the busiest direction between two aggregators."""
    edges = Counter(
        (homes[name], homes[order[(i + 1) % len(order)]]) for i, name in enumerate(order)
    )
    return max((count for (a, b), count in edges.items() if a != b), default=0)


def predicted_step_s(
    measured: TrainerCalibration, rates: LinkRates, ranks: int, batch: int, *, own: int, others: int
) -> float:
    """Predict a step of a ring that competes with others on the inter-aggregator link.

    ``batch`` is images per rank; ``own`` and ``others`` are crossings of that link. A ring is
    one flow with one rate (its edges wait for each other), and rings share equally:
    rate = min(B_access, B_inter / (own + others)); every edge carries 2 (N - 1) / N gradients.
    The constant part of a step is the same for every batch and ring.
    """
    rate = rates.access_bps
    if own:
        rate = min(rate, rates.inter_aggregator_bps / (own + others))
    bits = 2 * (ranks - 1) / ranks * 8 * measured.gradient_bytes
    compute_s = measured.compute_s * batch / CALIBRATION_BATCH
    hidden_s = compute_s * measured.overlap
    return measured.constant_s + compute_s - hidden_s + max(bits / rate, hidden_s)


def fixed_samples(step_s: float, global_batch: int) -> int:
    """Return the samples of every arm: whole steps, enough for the fragmented arm's time."""
    return math.ceil(LEAST_TRAINING_S * MARGIN / step_s) * global_batch
