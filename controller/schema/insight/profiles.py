"""REST documents of what was measured of packet switches."""

from __future__ import annotations

from typing import Literal

from controller.schema.base import Severity, View
from controller.schema.visibility import Plain


class TableView(View):
    """What a switch says of one table of the pipeline."""

    table: int
    max_entries: int
    needed: int
    """Rules that one job of all the site's endpoints takes at most."""
    metadata_match: Plain
    """A mask, in hexadecimal."""
    metadata_write: Plain
    matches: list[Plain]


class TrialView(View):
    """One kind of rule or group that was tried and removed."""

    name: Plain
    outcome: Literal["same", "altered", "refused", "unknown"]
    detail: Plain = ""


class ProfileFindingView(View):
    """One thing that is missing or unknown."""

    fact: Plain
    severity: Severity
    text: Plain
    mend: Plain = ""


class ProfileView(View):
    """One aggregator as measured; null is a fact that it did not answer."""

    name: Plain
    measured_at: float
    manufacturer: Plain = ""
    hardware: Plain = ""
    software: Plain = ""
    serial: Plain = ""
    tables: int | None = None
    metadata_bits: int | None = None
    """Widest metadata that was kept and matched; 0: none was."""
    barrier: bool | None = None
    """Whether rules were readable right after the barrier's reply."""
    durations: bool | None = None
    features: list[TableView]
    trials: list[TrialView]
    findings: list[ProfileFindingView]
