"""What was measured of packet switches. Part of the state."""

from __future__ import annotations

from dataclasses import dataclass

from controller.devices.profile import Profile
from controller.state.kinds.kind import Kind


@dataclass(slots=True, frozen=True, kw_only=True)
class ProfileRecord:
    """The last profile of one aggregator."""

    aggregator: str
    measured_at: float
    """Seconds since 1970."""
    profile: Profile


PROFILES = Kind(
    "profiles",
    ProfileRecord,
    key="aggregator",
    order="aggregator",
    columns=(),
)
