"""Emulates an optical switch: real wire protocols over one optical model, with real packets."""

from testbed.ocs_emulator.dataplane import DataPlane, NoDataPlane
from testbed.ocs_emulator.emulator import Emulator
from testbed.ocs_emulator.personality import Personality, load_personality, personalities

__all__ = [
    "DataPlane",
    "Emulator",
    "NoDataPlane",
    "Personality",
    "load_personality",
    "personalities",
]
