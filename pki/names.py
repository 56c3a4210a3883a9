"""Defines the names in certificates, which identify a daemon and not its address.

An agent's certificate is bound to its server's name in the site file, so a stolen one
cannot impersonate another server; addresses may change without a new certificate.
"""

from __future__ import annotations

CONTROLLER = "controller.lightloom"
"""DNS name in the controller's certificate; an agent accepts commands from this name only."""

_AGENT_DOMAIN = "agent.lightloom"
_AGGREGATOR_DOMAIN = "aggregator.lightloom"


def agent_name(server: str) -> str:
    """Return the DNS name in the certificate of the agent of ``server``."""
    return f"{server}.{_AGENT_DOMAIN}"


def aggregator_name(aggregator: str) -> str:
    """Return the DNS name in the certificate of ``aggregator``, a packet switch."""
    return f"{aggregator}.{_AGGREGATOR_DOMAIN}"
