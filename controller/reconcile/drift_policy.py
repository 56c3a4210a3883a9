"""What the operator wants done about drift."""

from __future__ import annotations

from enum import StrEnum


class DriftPolicy(StrEnum):
    """What happens when a device is not as it was left."""

    ADOPT = "adopt"
    """What is found is the new intent, for circuits; flows and containers are put right."""
    REPAIR = "repair"
    """What a job needs is put right; the light of idle endpoints stays where it is found."""
    ALARM = "alarm"
    """An event; nothing is changed."""
