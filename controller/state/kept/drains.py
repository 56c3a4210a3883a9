"""What is being taken out of use on purpose, what lost runs left, and what is to be lit again.

Part of the state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.devices.aggregators import AttachPoint
from controller.schema.checkpoints import DrainKind
from sitefile import CabledSite

WORDS: Mapping[DrainKind, str] = {"node": "server", "aggregator": "aggregator", "switch": "switch"}


@dataclass(slots=True, frozen=True)
class DrainedObject:
    """One object that is being drained; ``since`` in seconds since 1970."""

    kind: DrainKind
    name: str
    since: float
    now: bool = False
    """Its jobs do not wait for a checkpoint."""

    @property
    def object(self) -> str:
        """Return ``node/srv2``."""
        return f"{self.kind}/{self.name}"

    @property
    def why(self) -> str:
        """Why its endpoints get nothing new."""
        return f"{WORDS[self.kind]} {self.name} is being drained"


@dataclass(slots=True, frozen=True)
class LeftContainers:
    """Endpoints of one server on which containers of a run may live that was given up."""

    job: str
    epoch: int
    """Of that run; a later run of the job is not meant."""
    server: str
    endpoints: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class DrainDecisions:
    """Drains by object, and the endpoints that may have gone dark with one, to get light again."""

    of: Mapping[str, DrainedObject]
    unlit: frozenset[str]

    def facts(self) -> dict[str, str]:
        """Return it for a durable write."""
        drains = [[d.kind, d.name, d.since, d.now] for d in self.of.values()]
        return {"drains": json.dumps(drains), "unlit": json.dumps(sorted(self.unlit))}


class Drains:
    """Drains by object, endpoints to clean up when their servers answer, and those to light."""

    def __init__(self, site: CabledSite) -> None:
        self._site = site
        self.of: dict[str, DrainedObject] = {}
        self.left: tuple[LeftContainers, ...] = ()
        self.unlit: frozenset[str] = frozenset()
        """Endpoints that may have gone dark with a drain or a lost run, and get light again."""

    def restore(self, facts: Mapping[str, str]) -> None:
        """Take over the stored facts, as far as the site file still has the objects."""
        found = [DrainedObject(*row) for row in json.loads(facts.get("drains", "[]"))]
        known = {
            *(f"node/{server.name}" for server in self._site.servers),
            *(f"aggregator/{aggregator.name}" for aggregator in self._site.aggregators),
            *(f"switch/{switch.name}" for switch in self._site.switches),
        }
        self.of = {drain.object: drain for drain in found if drain.object in known}
        places = [tuple(row) for row in json.loads(facts.get("left_places", "[]"))]
        runs = dict.fromkeys(tuple(row[:3]) for row in json.loads(facts.get("left_runs", "[]")))
        self.left = tuple(
            LeftContainers(job, epoch, server, tuple(at))
            for job, epoch, server in runs
            for at in [at for *of, at in places if of == [job, epoch, server]]
            or [self._all_of(server)]
        )
        self.unlit = frozenset(json.loads(facts.get("unlit", "[]"))) & self._site.homes.keys()

    @property
    def now(self) -> DrainDecisions:
        """What operators have decided, as a value."""
        return DrainDecisions(dict(self.of), self.unlit)

    def put(self, record: DrainDecisions) -> None:
        """Replace what operators have decided."""
        self.of, self.unlit = dict(record.of), record.unlit

    def _all_of(self, server: str) -> tuple[str, ...]:
        """Return the endpoints of a server: what an older release meant, which stored no places."""
        return tuple(e.name for e in self._site.endpoints if e.server == server)

    def left_facts(self) -> dict[str, str]:
        """Return what lost runs left, for a durable write.

        The places are apart, so that an older release reads the rest.
        """
        runs = dict.fromkeys((e.job, e.epoch, e.server) for e in self.left)
        places = [[e.job, e.epoch, e.server, e.endpoints] for e in self.left]
        return {"left_runs": json.dumps(list(runs)), "left_places": json.dumps(places)}

    def leave(self, job: str, epoch: int, endpoints: Iterable[str]) -> None:
        """Remember endpoints where containers of a run may live: they get nothing new."""
        servers = {cable.name: cable.server for cable in self._site.endpoints}
        at: dict[str, list[str]] = {}
        for name in endpoints:
            if name in servers:  # else it left the site file
                at.setdefault(servers[name], []).append(name)
        found = (LeftContainers(job, epoch, server, tuple(names)) for server, names in at.items())
        self.left = tuple(dict.fromkeys((*self.left, *found)))

    def cleaned(self, gone: Iterable[LeftContainers]) -> None:
        """Forget what was cleaned up."""
        done = frozenset(gone)
        self.left = tuple(entry for entry in self.left if entry not in done)

    def endpoints(self, drain: DrainedObject, at: Mapping[str, AttachPoint]) -> tuple[str, ...]:
        """Return the endpoints that use the object, in site order."""
        return tuple(
            e.name
            for e in self._site.endpoints
            if (drain.kind == "node" and e.server == drain.name)
            or (drain.kind == "switch" and e.fiber.device == drain.name)
            or (
                drain.kind == "aggregator"
                and (e.fiber.device == drain.name or _under(at.get(e.name), drain.name))
            )
        )

    def drained(self, at: Mapping[str, AttachPoint]) -> dict[str, str]:
        """Return the endpoints that drains keep from anything new, and why."""
        return {e: drain.why for drain in self.of.values() for e in self.endpoints(drain, at)}

    def left_at(self) -> dict[str, str]:
        """Return the endpoints on which containers of a lost run may live, and whose."""
        return {
            e: f"containers of a former run of job {entry.job} may be there"
            for entry in self.left
            for e in entry.endpoints
        }


def _under(point: AttachPoint | None, aggregator: str) -> bool:
    return point is not None and point.aggregator == aggregator
