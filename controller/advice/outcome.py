"""How far a prediction was off. Pure."""

from __future__ import annotations

from dataclasses import replace

from controller.state.kept.predictions import PredictionRecord


def met(prediction: PredictionRecord, measured_s: float, now: float) -> PredictionRecord:
    """Return a prediction with the step that was measured, in seconds."""
    return replace(
        prediction,
        state="met",
        measured_s=measured_s,
        measured_at=now,
        error=error_of(prediction.low_s, prediction.high_s, measured_s),
    )


def error_of(low_s: float | None, high_s: float | None, measured_s: float) -> float | None:
    """Return |predicted - measured| / measured from the middle of the interval."""
    if low_s is None or high_s is None:
        return None
    return abs((low_s + high_s) / 2 - measured_s) / measured_s
