"""What a job's volumes require: checked at submit, explained while the job waits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from container_mgr.values import AgentError
from container_mgr.volumes import rules
from controller.base.errors import ServiceError
from controller.schema.submit.request import JobRequest
from controller.state.offers import Offers, denial
from controller.state.records import JobRecord, JobVolume
from scheduler.queue.model import QueueHold
from sitefile import CabledSite, EndpointCable

_NAMED = 6
"""Most servers that one message lists."""
_NO_ENDPOINTS = frozenset({"no_match", "not_enough_endpoints"})
"""Codes of waits for endpoints that the site does not have."""


def volumes_of(site: CabledSite, request: JobRequest) -> tuple[JobVolume, ...]:
    """Return a request's volumes, each with its mode.

    ServiceError ``invalid`` when the job may not have one of them.
    """
    what = f"job/{request.name}"
    try:
        rules.check_mounts([(v.volume, v.path) for v in request.volumes], what)
    except AgentError as error:
        raise ServiceError("invalid", error.message, object=what, hint=error.hint) from None
    found = []
    for asked in request.volumes:
        volume = site.volumes.get(asked.volume)
        offered = volume is None or volume.read_only
        mode = offered if asked.read_only is None else asked.read_only
        mount = JobVolume(asked.volume, asked.path, mode)
        if (refused := denial(site, request.project, mount)) is not None:
            raise ServiceError("invalid", refused.message, object=what, hint=refused.hint)
        found.append(mount)
    return tuple(found)


def check_offered(
    site: CabledSite, offers: Offers, answering: Mapping[str, bool], request: JobRequest
) -> None:
    """Refuse a job (ServiceError ``invalid``) whose volumes too few servers have.

    A server that is away, or whose volume has a problem now, may have it later: the job waits.
    """
    names = list(dict.fromkeys(v.volume for v in request.volumes))
    if not names:
        return
    without = {
        server.name: lacking
        for server in site.servers
        if answering.get(server.name)
        and (lacking := [name for name in names if offers.never(server.name, name)])
    }
    matching = [e for e in site.endpoints if _matches(e, request)]
    able = sum(e.server not in without for e in matching)
    if not without or able >= request.count:
        return
    volumes = list(dict.fromkeys(name for lacking in without.values() for name in lacking))
    raise ServiceError(
        "invalid",
        f"{request.count} endpoints requested, {able} are on servers with"
        f" volume {' and '.join(volumes)}: {_reasons(offers, without, answering)}",
        object=f"job/{request.name}",
        hint=f"start their agents with --volume {volumes[0]}=DIRECTORY, or request fewer",
    )


def _matches(endpoint: EndpointCable, request: JobRequest) -> bool:
    return (
        request.model in (None, endpoint.model)
        and endpoint.memory_bytes >= request.min_memory_bytes
        and (not request.endpoints or endpoint.name in request.endpoints)
    )


class Explainer:
    """Explains why jobs wait whose volumes too few servers have; for one round of the queue."""

    def __init__(self, site: CabledSite, offers: Offers, answering: Mapping[str, bool]) -> None:
        self._site = site
        self._offers = offers
        self._answering = answering
        self._known: dict[tuple[str, ...], str] = {}

    def hold(self, hold: QueueHold, job: JobRecord) -> QueueHold:
        """Return why a job waits, naming its volumes and servers when these are the reason."""
        if hold.code not in _NO_ENDPOINTS or not job.request.volumes:
            return hold
        names = tuple(sorted({v.volume for v in job.request.volumes}))
        why, count = self._why(names), job.request.count
        if not why:
            return hold
        return replace(
            hold,
            code="volumes",
            reason=f"needs volume {' and '.join(names)} on the servers of {count}"
            f" endpoint{'' if count == 1 else 's'}: {why}",
            remedy="the volumes become usable there; see `lightloom get volumes`",
        )

    def _why(self, names: tuple[str, ...]) -> str:
        if names not in self._known:
            without = {
                server.name: lacking
                for server in self._site.servers
                if (lacking := [n for n in names if self._offers.lack(server.name, n)])
            }
            self._known[names] = _reasons(self._offers, without, self._answering)
        return self._known[names]


def _reasons(
    offers: Offers, without: Mapping[str, Iterable[str]], answering: Mapping[str, bool]
) -> str:
    """Return which servers lack which volumes, and why."""
    said = [
        f"{server}: {'; '.join(f'{name}: {offers.why(server, name)}' for name in lacking)}"
        if answering.get(server)
        else f"{server}: its agent does not answer"
        for server, lacking in list(without.items())[:_NAMED]
    ]
    rest = [f"and {len(without) - _NAMED} more"] if len(without) > _NAMED else []
    return ", ".join([*said, *rest])
