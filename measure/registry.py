"""Every type of measurement, by name."""

from __future__ import annotations

from collections.abc import Mapping

from measure.collectives.kind import COLLECTIVES
from measure.compare.kind import COMPARE
from measure.kinds import MeasurementKind
from measure.links.kind import LINKS
from measure.loading.kind import INPUT
from measure.scaling.kind import SCALING
from measure.storage.kind import STORAGE

_ALL: tuple[MeasurementKind, ...] = (LINKS, COLLECTIVES, SCALING, STORAGE, INPUT, COMPARE)
KINDS: Mapping[str, MeasurementKind] = {kind.name: kind for kind in _ALL}
"""The types that the controller can run."""
