"""Models one synchronous data-parallel step: compute, and a partly hidden ring all-reduce."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class StepProfile:
    """The parts of a job's step, independent of its placement.

    Rates are relative to an endpoint's access link: 1.0 is its full rate.
    """

    compute_s: float
    """Seconds of compute per step on one endpoint."""
    ring_s: float
    """Seconds to send one copy of the gradients over an access link."""
    hide: float = 0.5
    """Share of the compute, at its end, that may overlap communication: 0 to 1."""
    hop_s: float = 0.0
    """Latency of one of the ring's 2 (N - 1) hops."""
    calls: float = 1.0
    """All-reduces of a step; each passes every hop."""
    dispatch_s: float = 0.0
    """Seconds of communication that no rate shortens: dispatch, copies, waiting for a rank."""
    input_s: float = 0.0
    """Least seconds between two batches of a loader that runs ahead: no step is shorter."""

    def wire_s(self, size: int) -> float:
        """Return the seconds to send the ring's bytes at rate 1: 2 (N - 1) / N copies."""
        return 2.0 * (size - 1) / size * self.ring_s

    def latency_s(self, size: int) -> float:
        """Return the time of a step's communication besides its bytes: all hops, and dispatch."""
        return 2.0 * (size - 1) * self.hop_s * self.calls + self.dispatch_s

    def exposed_compute_s(self) -> float:
        """Return the seconds of compute before communication may begin."""
        return (1.0 - self.hide) * self.compute_s

    def step_s(self, size: int, rate: float = 1.0) -> float:
        """Return the time of a step of ``size`` ranks whose ring runs at ``rate`` throughout.

        Raises ValueError for a size below 1 or a rate that is not positive.
        """
        if size < 1 or rate <= 0:
            raise ValueError(f"a step needs ranks and a rate above 0, not {size} at {rate}")
        ring = self.latency_s(size) + self.wire_s(size) / rate
        return max(self.input_s, self.compute_s, self.exposed_compute_s() + ring)


PAPER_PROFILE = StepProfile(compute_s=420.0, ring_s=151.0, hide=0.5)
"""Fit to the four completion times of Yan et al. (OFC 2022): totals over all samples in
GPU-seconds, so one "step" of it is one sample of the whole data set on one GPU."""

PAPER_CORE_RATE = 1.0 / 2.24
"""Rate of the link between the paper's two aggregators, relative to an access link."""
