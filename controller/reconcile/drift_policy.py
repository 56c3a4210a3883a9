"""The operator's policy on drift."""

from __future__ import annotations

from enum import StrEnum


class DriftPolicy(StrEnum):
    """The reaction to a device that differs from the intent."""

    ADOPT = "adopt"
    """Circuits found become the intent; flows and containers are corrected."""
    REPAIR = "repair"
    """Jobs get back what they need; the light of idle endpoints stays where it is found."""
    ALARM = "alarm"
    """An event is emitted; nothing is changed."""
