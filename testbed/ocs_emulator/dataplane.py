"""Defines how packets follow the light of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol


class DataPlane(Protocol):
    """Follows the light. All calls come from one dedicated thread, one at a time; may block."""

    def open(self) -> None:
        """Make every port dark. Raises OSError when the data plane is not available."""

    def sync(self, paths: Mapping[str, str], carrier: Collection[str]) -> frozenset[str]:
        """Make packets follow ``paths`` (in port to out port) only.

        Ports in ``carrier`` on a complete path show carrier at their far ends, all others do
        not. Returns the ports whose link is missing.
        """

    def close(self) -> None:
        """Make every port dark and release the resources."""


class NoDataPlane:
    """A data plane without links, for tests of the control path."""

    def open(self) -> None:
        """Do nothing."""

    def sync(self, paths: Mapping[str, str], carrier: Collection[str]) -> frozenset[str]:
        """Return no missing links."""
        del paths, carrier
        return frozenset()

    def close(self) -> None:
        """Do nothing."""
