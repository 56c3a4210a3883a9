"""Runs the emulated rack: brings a whole site up on one Linux machine and takes it down."""

from testbed.rack.down import down
from testbed.rack.errors import RackError
from testbed.rack.losses import LossChange, lose, repair
from testbed.rack.process import Process
from testbed.rack.rates import set_rates
from testbed.rack.status import EmulatedPart, PartStatus, RackStatus, status
from testbed.rack.up import RUN_DIR, up

__all__ = [
    "RUN_DIR",
    "EmulatedPart",
    "LossChange",
    "PartStatus",
    "Process",
    "RackError",
    "RackStatus",
    "down",
    "lose",
    "repair",
    "set_rates",
    "status",
    "up",
]
