"""The result of one check of ``doctor``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "emulated", "warning", "missing"]


@dataclass(slots=True, frozen=True)
class CheckResult:
    """One result. ``missing``: the emulated rack cannot run; ``emulated``: a stand-in is used."""

    name: str
    state: State
    found: str
    fix: str = ""

    def document(self) -> dict[str, str]:
        """Return the finding as ``-o json`` prints it."""
        return asdict(self)
