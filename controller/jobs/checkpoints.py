"""Refuses checkpoints that the site can never keep as asked. Pure."""

from __future__ import annotations

from collections import Counter

from checkpoints.rules import parse_rule
from checkpoints.schemes import NotApartError, lay_out
from checkpoints.values import Apart, Place, Scheme
from controller.base.errors import ServiceError
from controller.schema.submit.request import CheckpointRequest, JobRequest, Replicas
from controller.state.offers import denial
from controller.state.records import JobVolume
from scheduler.model import OnLoss
from sitefile import CabledSite


def check_checkpoints(site: CabledSite, request: JobRequest) -> None:
    """Refuse (ServiceError ``invalid``) what can never work, naming the field and the fix."""
    asked = request.checkpoint
    found = _unasked(request) or (None if asked is None else _asked(site, request, asked))
    if found is not None:
        problem, hint = found
        raise ServiceError("invalid", problem, object=f"job/{request.name}", hint=hint)


Refused = tuple[str, str] | None
"""Problem and hint."""


def _unasked(request: JobRequest) -> Refused:
    asked = request.checkpoint
    if request.at_least > request.count:
        return (
            f"at_least: {request.at_least} ranks are more than its {request.count}",
            f"give at_least of at most {request.count}",
        )
    if request.on_loss is OnLoss.SHRINK:
        gathers = asked is not None and parse_rule(asked.complete).gathers
        if not gathers and (asked is None or asked.replicas is not Replicas.IDENTICAL):
            return (
                "on_loss: shrink: fewer ranks cannot load what more ranks wrote",
                "it needs checkpoint.complete: dcp or checkpoint.replicas: identical;"
                " or leave on_loss out",
            )
    return None


def _asked(site: CabledSite, request: JobRequest, asked: CheckpointRequest) -> Refused:
    copies, count = asked.copies, request.count
    if copies.scheme is Scheme.PARTNER and count < 2:
        return (
            "checkpoint.copies.scheme: partner needs a second rank",
            "use scheme: single, or leave it out",
        )
    if copies.scheme is Scheme.XOR and asked.replicas is Replicas.IDENTICAL:
        return (
            "checkpoint.copies.scheme: xor codes parts that differ, and replicas are identical",
            "use scheme: partner, or replicas: distinct",
        )
    if copies.scheme is Scheme.XOR and count < copies.set_size:
        return (
            f"checkpoint.copies.set_size: a set of {copies.set_size} needs as many ranks,"
            f" the job has {count}",
            f"use set_size of at most {count}, or scheme: partner"
            if count > 1
            else "use scheme: single",
        )
    store = None if asked.shared is None else _store(site, request, asked.shared.store)
    return store or _apart(site, request, asked)


def _store(site: CabledSite, request: JobRequest, name: str) -> Refused:
    refused = denial(site, request.project, JobVolume(name, "/store", read_only=False))
    if refused is None:
        return None
    if name in site.volumes and site.volumes[name].admits(request.project):
        return (
            f"checkpoint.shared.store: {refused.message}",
            "name a volume that the site file has with mode: rw",
        )
    return f"checkpoint.shared.store: {refused.message}", refused.hint


def _apart(site: CabledSite, request: JobRequest, asked: CheckpointRequest) -> Refused:
    """Refuse copies that no choice of endpoints and homes keeps apart."""
    copies, count = asked.copies, request.count
    scheme = copies.scheme or (Scheme.PARTNER if count > 1 else Scheme.SINGLE)
    if scheme is Scheme.SINGLE:
        return None
    most = count // 2 if scheme is Scheme.PARTNER else count // copies.set_size
    servers = Counter(
        e.server
        for e in site.endpoints
        if request.model in (None, e.model) and e.memory_bytes >= request.min_memory_bytes
    )
    if request.endpoints:
        # The endpoints are given: servers are known, homes are not.
        cables = {e.name: e for e in site.endpoints}
        there = [Place(n, cables[n].server) for n in request.endpoints if n in cables]
        try:
            lay_out(scheme, there, Apart.SERVER, copies.set_size)
        except NotApartError as error:
            return (
                f"checkpoint.copies: {error}",
                "name endpoints of more servers, leave endpoints out, or use scheme: single",
            )
    elif sum(min(most, held) for held in servers.values()) < count:
        return (
            f"checkpoint.copies: at most {most} of {count} ranks on one server keep copies apart,"
            f" and the site's {_plural(len(servers), 'server')} cannot hold them so",
            "request fewer endpoints, or use scheme: single",
        )
    if copies.apart is Apart.AGGREGATOR:
        ports = [len(a.fibers) + len(a.fixed) for a in site.aggregators]
        if sum(min(most, some) for some in ports) < count:
            return (
                f"checkpoint.copies.apart: at most {most} of {count} ranks under one aggregator"
                f" keep copies apart, and the site's {_plural(len(ports), 'aggregator')} cannot"
                " hold them so",
                "use apart: server, or request fewer endpoints",
            )
    return None


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
