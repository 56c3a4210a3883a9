"""Reads site and state files into frozen values, with errors that name file, path and fix."""

from sitefile.engine import EnginePolicy
from sitefile.errors import FileProblem, SiteFileError
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
from sitefile.scheduling import RegroupPolicy, Scheduling, SiteLinkRates
from sitefile.schema import site_schema

__all__ = [
    "AggregatorCable",
    "CabledSite",
    "EmulatedVolume",
    "Emulation",
    "EndpointCable",
    "EnginePolicy",
    "Fiber",
    "FileProblem",
    "PasswordRef",
    "Port",
    "Registry",
    "RegroupPolicy",
    "Scheduling",
    "Server",
    "SiteFileError",
    "SiteLinkRates",
    "SwitchCable",
    "Uplink",
    "load_planner_site",
    "load_site",
    "load_state",
    "site_schema",
]
