"""What the light of the model does to packets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol


class DataPlane(Protocol):
    """Follows the light. All calls come from one thread of its own, one at a time; may block."""

    def open(self) -> None:
        """Make every port dark. OSError when the data plane cannot be had."""

    def sync(self, paths: Mapping[str, str], carrier: Collection[str]) -> frozenset[str]:
        """Make packets follow ``paths`` (in port to out port) and nothing else.

        Ports in ``carrier`` that lie on a complete path show carrier at their far ends,
        all others do not. Returns the ports whose link is missing.
        """

    def close(self) -> None:
        """Make every port dark and let go."""


class NoDataPlane:
    """A switch with nothing plugged into it but light: for tests of the control path."""

    def open(self) -> None:
        """Do nothing."""

    def sync(self, paths: Mapping[str, str], carrier: Collection[str]) -> frozenset[str]:
        """No link is ever missing."""
        del paths, carrier
        return frozenset()

    def close(self) -> None:
        """Do nothing."""
