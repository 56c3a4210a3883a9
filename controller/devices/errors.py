"""The errors that devices answer with."""

from __future__ import annotations

from controller.devices.aggregators import AggregatorError
from controller.devices.engine import EngineError
from ocs_driver.errors import OcsError

DEVICE_ERRORS = (OcsError, AggregatorError, EngineError, OSError, TimeoutError)
"""Everything that an optical switch, an aggregator or an agent may answer with."""
