"""Judges what was lost, from reports of devices and agents. Pure.

A silent agent does not mean a lost server: its containers run on. A lost session does not mean a
lost aggregator or switch: both keep forwarding. Something is lost when it is silent *and* jobs
cannot work through it: carriers are gone at the aggregators' ports or at the servers' NICs, or its
job has stalled. The caller requires that to last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.devices.aggregators import AttachPoint
from controller.state.kept.recoveries import RecoveryCause
from sitefile import CabledSite

_SURE = frozenset({"lost", "xid"})


def surely_lost(fault: str) -> bool:
    """Whether an agent's code means that a GPU is gone; a driver that hangs may come back."""
    return fault in _SURE


@dataclass(slots=True, frozen=True, kw_only=True)
class HealthSnapshot:
    """The state of servers, devices and links at one moment."""

    answering: Mapping[str, bool]
    """Servers whose agent answers."""
    sessions: frozenset[str]
    """Aggregators whose session is up; only their ports count."""
    switches: frozenset[str]
    """Optical switches whose session is up."""
    carriers: Mapping[AttachPoint, bool]
    """Of the ports of aggregators with a session, as far as known."""
    nics: Mapping[str, bool]
    """Carriers of endpoints' NICs, as far as agents that answer know them."""
    stalled: Mapping[str, tuple[str, ...]]
    """Jobs that have stopped communicating, and their endpoints."""
    endpoints: frozenset[str]
    """Those of jobs that run; all others prove nothing."""


@dataclass(slots=True, frozen=True)
class Lost:
    """An object that is silent and through which its jobs cannot work."""

    cause: RecoveryCause
    name: str
    endpoints: tuple[str, ...]
    """Of jobs that run; they are lost with it."""

    @property
    def object(self) -> str:
        """Return ``server/srv2``."""
        return f"{self.cause}/{self.name}"

    @property
    def why(self) -> str:
        """Say what is lost, for each of its endpoints."""
        if self.cause == "endpoint":
            return "its carrier is lost"
        return f"{self.cause} {self.name} is lost"


def judge(
    site: CabledSite, at: Mapping[str, AttachPoint], seen: HealthSnapshot
) -> tuple[Lost, ...]:
    """Return what is lost at this moment; each endpoint under one object, the largest."""
    carriers = {
        name: seen.carriers[at[name]]
        for name in seen.endpoints
        if name in at and at[name] in seen.carriers
    }
    nics = {name: seen.nics[name] for name in seen.endpoints if name in at and name in seen.nics}
    unlit = {name for name, up in nics.items() if not up}
    dark = unlit | {name for name, up in carriers.items() if not up}
    stalled = {name for names in seen.stalled.values() for name in names}
    found: list[Lost] = []
    taken: set[str] = set()

    def lost(cause: RecoveryCause, name: str, endpoints: Iterable[str]) -> None:
        mine = tuple(e for e in endpoints if e not in taken)
        if mine:
            taken.update(mine)
            found.append(Lost(cause, name, mine))

    by_switch: defaultdict[str, list[str]] = defaultdict(list)
    by_server: defaultdict[str, list[str]] = defaultdict(list)
    by_home: defaultdict[str, list[str]] = defaultdict(list)
    for e in site.endpoints:
        by_switch[e.fiber.device].append(e.name)
        by_server[e.server].append(e.name)
    for endpoint in sorted(seen.endpoints & at.keys()):
        by_home[at[endpoint].aggregator].append(endpoint)
    for switch in site.switches:
        mine = by_switch[switch.name]
        known = [name for name in mine if name in carriers or name in nics]
        if switch.name not in seen.switches and known and dark.issuperset(known):
            lost("switch", switch.name, [n for n in mine if n in seen.endpoints and n in at])
    for aggregator in site.aggregators:
        name = aggregator.name
        under = by_home[name]
        hangs = bool(under) and stalled.issuperset(under)
        gone = bool(under) and unlit.issuperset(under)
        if name not in seen.sessions and (hangs or gone or _cut_off(site, name, seen)):
            lost("aggregator", name, under)
    for server in site.servers:
        used = [name for name in by_server[server.name] if name in seen.endpoints]
        known = [name for name in used if name in carriers]
        gone = bool(known) and dark.issuperset(known)
        hangs = bool(used) and stalled.issuperset(used)
        if not seen.answering.get(server.name, False) and (gone or hangs):
            lost("server", server.name, used)
    servers = {e.name: e.server for e in site.endpoints}
    for endpoint in sorted(dark - taken):
        if seen.answering.get(servers[endpoint], False):
            lost("endpoint", endpoint, [endpoint])
    return tuple(found)


def _cut_off(site: CabledSite, name: str, seen: HealthSnapshot) -> bool:
    """Whether all neighbours of an aggregator see no carrier from it."""
    ends: list[bool] = []
    for uplink in site.uplinks:
        for near, far in ((uplink.a, uplink.b), (uplink.b, uplink.a)):
            point = AttachPoint(far.device, int(far.port))
            if near.device == name and point in seen.carriers:
                ends.append(seen.carriers[point])
    return bool(ends) and not any(ends)
