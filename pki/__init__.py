"""Who may speak to whom: one authority a site, one certificate a daemon, mutual TLS.

Imports no other part, so that both ends of a connection read the same names and checks.
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
