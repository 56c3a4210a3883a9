"""Provides mutual TLS for the daemons: one authority per site, one certificate per daemon.

It imports no other package, so that both ends of a connection use the same names and checks.
"""

from pki.authority import Authority, Issued
from pki.credentials import Credentials
from pki.diagnosis import why_refused
from pki.errors import TrustError
from pki.names import CONTROLLER, agent_name, aggregator_name

__all__ = [
    "CONTROLLER",
    "Authority",
    "Credentials",
    "Issued",
    "TrustError",
    "agent_name",
    "aggregator_name",
    "why_refused",
]
