"""The errors of calls to devices."""

from __future__ import annotations

from controller.devices.aggregators import AggregatorError
from controller.devices.engine import EngineError
from ocs_driver.errors import OcsError

DEVICE_ERRORS = (OcsError, AggregatorError, EngineError, OSError, TimeoutError)
"""All errors of calls to optical switches, aggregators and agents."""
