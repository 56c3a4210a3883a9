"""Picks the endpoints of a measurement, and describes the fabric to its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from controller.base.errors import ServiceError
from controller.state.state import State
from measure.kinds import MeasuredEndpoint, MeasuredSite


def pick(
    state: State,
    asked: Sequence[str],
    homes: Mapping[str, str],
    claimed: Mapping[str, str],
) -> MeasuredSite:
    """Return the fabric that a measurement may use: exactly ``asked``, or all that are idle.

    ``homes`` are where endpoints are moved first; ``claimed`` gives, by endpoint, which measurement
    has it. ServiceError ``not_found``, ``conflict`` or ``invalid``.
    """
    _check_names(state, asked, homes)
    busy = _busy(state, claimed)
    for name in asked:
        if name in busy:
            raise ServiceError(
                "conflict",
                f"{name} {busy[name]}",
                object=f"endpoint/{name}",
                hint="a measurement uses idle, lit, fit endpoints only: wait, or name others",
            )
    names = list(asked) or [name for name in state.cables if name not in busy]
    if not names:
        raise ServiceError(
            "conflict",
            "no endpoint is idle, lit and fit",
            object="endpoints",
            hint="see `lightloom get endpoints`",
        )
    for name in homes:
        if name not in names:
            why = busy.get(name, "is not one of the endpoints that are measured")
            raise ServiceError(
                "invalid", f"{name} {why}", object=f"endpoint/{name}", hint="leave its home out"
            )
    return _fabric(state, names, homes)


def _check_names(state: State, asked: Sequence[str], homes: Mapping[str, str]) -> None:
    for name in (*asked, *homes):
        if name not in state.cables:
            raise ServiceError(
                "not_found",
                f"the site has no endpoint {name}",
                object=f"endpoint/{name}",
                hint="see `lightloom get endpoints`",
            )
    twice = next((name for name, count in Counter(asked).items() if count > 1), None)
    if twice is not None:
        raise ServiceError(
            "invalid", f"{twice} is named twice", object=f"endpoint/{twice}", hint="name it once"
        )
    known = {aggregator.name for aggregator in state.site.aggregators}
    for home in homes.values():
        if home not in known:
            raise ServiceError(
                "not_found",
                f"the site has no aggregator {home}",
                object=f"aggregator/{home}",
                hint="see `lightloom get aggregators`",
            )


def _busy(state: State, claimed: Mapping[str, str]) -> dict[str, str]:
    """Return the endpoints that no measurement can use now, and why."""
    busy = {name: f"is measured by {ident}" for name, ident in claimed.items()}
    promised = state.jobs.promised_endpoints() - claimed.keys()
    busy |= dict.fromkeys(promised, "is reserved for a job")
    busy |= {name: f"is {why}" for name, why in state.unavailable().items()}
    engine = state.site.engine.kind if state.site.engine else ""
    busy |= dict.fromkeys(state.theirs, f"belongs to {engine}")
    homes = state.light.homes()
    busy |= {name: "is dark" for name in state.cables if homes.get(name) is None}
    busy |= {name: f"carries job {job.name}" for name, job in state.jobs.holders().items()}
    return busy


def _fabric(state: State, names: Sequence[str], homes: Mapping[str, str]) -> MeasuredSite:
    now = state.light.homes()
    places = tuple(
        MeasuredEndpoint(name, state.cables[name].server, homes.get(name) or now[name] or "")
        for name in names
    )
    emulation = state.site.emulation
    rates = state.site.scheduling.regroup.rates or emulation
    return MeasuredSite(
        places,
        access_bps=rates.access_bps if rates else None,
        inter_aggregator_bps=rates.inter_aggregator_bps if rates else None,
        links=Counter(frozenset((link.a.device, link.b.device)) for link in state.site.uplinks),
        free_ports=_free_ports(state, names),
        emulated=emulation is not None,
    )


def _free_ports(state: State, names: Iterable[str]) -> dict[str, int]:
    """Return, by aggregator, the ports for fibers that others do not use."""
    mine = set(names)
    blocked = state.blocked_points()
    taken = {at for name, at in state.light.attachments.items() if name not in mine} | blocked
    used = Counter(at.aggregator for at in taken & state.light.ports.keys())
    return {cable.name: len(cable.fibers) - used[cable.name] for cable in state.site.aggregators}
