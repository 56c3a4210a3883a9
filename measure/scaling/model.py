"""Predicts a step from two others: compute per FLOP, and bytes over a rate."""

from __future__ import annotations

from dataclasses import dataclass

from measure.envelope import Row
from measure.scaling.steps import ScalingSteps


@dataclass(slots=True, frozen=True)
class ScalingFit:
    """A step is ``fixed_s + flops * flop_s + gradient_bytes * byte_s``."""

    fixed_s: float
    """Seconds of a step that do not depend on its net."""
    flop_s: float
    """Seconds for each FLOP of one rank."""
    byte_s: float
    """Seconds for each byte of the gradient."""

    def step_s(self, flops: float, gradient_bytes: float) -> float:
        """Return the predicted step."""
        return self.fixed_s + flops * self.flop_s + gradient_bytes * self.byte_s

    def document(self) -> Row:
        """Return it as the envelope has it."""
        return {"fixed_s": self.fixed_s, "flop_s": self.flop_s, "byte_s": self.byte_s}


def predict(low: tuple[Row, ScalingSteps], high: tuple[Row, ScalingSteps]) -> ScalingFit | None:
    """Return the fit through two steps of the same batch and ranks; None if x did not differ.

    What a step does beside its all-reduce is a line through both over their FLOPs; the
    communication is proportional to the bytes of both together.
    """
    (row_low, one), (row_high, other) = low, high
    apart = row_high["flops"] - row_low["flops"]
    if apart <= 0:
        return None
    local = one.step_s - one.comm_s, other.step_s - other.comm_s
    flop_s = (local[1] - local[0]) / apart
    fixed_s = local[0] - flop_s * row_low["flops"]
    byte_s = (one.comm_s + other.comm_s) / (row_low["gradient_bytes"] + row_high["gradient_bytes"])
    return ScalingFit(fixed_s, flop_s, byte_s)
