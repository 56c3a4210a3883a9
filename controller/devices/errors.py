"""The errors that devices answer with."""

from __future__ import annotations

from controller.base.errors import ServiceError
from controller.devices.aggregators import AggregatorError
from controller.devices.engine import EngineError
from ocs_driver.errors import OcsError

DEVICE_ERRORS = (ServiceError, OcsError, AggregatorError, EngineError, OSError, TimeoutError)
"""Everything a device, an agent or the store may answer with."""
