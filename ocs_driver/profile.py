"""Holds switch behaviour that the switch does not report: assumed, or measured by the probe."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ocs_driver.base import BusyPort
from ocs_driver.errors import OcsError


@dataclass(slots=True, frozen=True)
class SwitchProfile:
    """Behaviour and times in seconds; ``settle_s`` is the longest time from a make to light."""

    busy_port: BusyPort = BusyPort.UNKNOWN
    switch_time_s: float = 0.025
    bulk_time_s: float = 0.05
    settle_s: float = 1.0


def load_profile(path: Path) -> SwitchProfile:
    """Read a personality file from ``lightloom ocs probe``. Raises OcsError when it is invalid."""
    try:
        data = json.loads(path.read_text("utf-8"))
        timing = data["timing"]
        busy = data.get("behaviour", {}).get("busy")
        return SwitchProfile(
            BusyPort.UNKNOWN if busy is None else BusyPort(busy),
            float(timing["mirror_s"]),
            float(timing["bulk_s"]),
            max(1.0, 4 * float(timing["mirror_s"])),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OcsError(
            "bad_personality", str(path), f"not a personality file of ocs probe: {error}"
        ) from None
