"""Reads site and state files into frozen values, with errors that name file, path and fix."""

from sitefile.engine import EnginePolicy
from sitefile.errors import Problem, SiteFileError
from sitefile.load import load_planner_site, load_site, load_state
from sitefile.model import (
    AggregatorCable,
    CabledSite,
    EmulatedVolume,
    Emulation,
    EndpointCable,
    Fiber,
    Port,
    Server,
    SwitchCable,
    Uplink,
)
from sitefile.passwords import PasswordRef
from sitefile.registries import Registry
from sitefile.scheduling import Rates, RegroupPolicy, Scheduling
from sitefile.schema import site_schema

__all__ = [
    "AggregatorCable",
    "CabledSite",
    "EmulatedVolume",
    "Emulation",
    "EndpointCable",
    "EnginePolicy",
    "Fiber",
    "PasswordRef",
    "Port",
    "Problem",
    "Rates",
    "Registry",
    "RegroupPolicy",
    "Scheduling",
    "Server",
    "SiteFileError",
    "SwitchCable",
    "Uplink",
    "load_planner_site",
    "load_site",
    "load_state",
    "site_schema",
]
