"""How often parts of the site fail, as counted since the store began. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoints.interval import Exposure
from controller.state.kept.recoveries import Recoveries
from controller.state.records import JobRecord
from sitefile import CabledSite, EndpointCable


def failures(recoveries: Recoveries, since: float) -> Mapping[str, int]:
    """Return the failures of each cause since then; see ``gpu_hours_lost``."""
    all_of_them = since <= recoveries.since
    found = {c: t.failures for c, t in recoveries.forgotten.items() if all_of_them}
    for record in recoveries.values():
        if record.failed_at >= since or all_of_them:
            found[record.cause] = found.get(record.cause, 0) + 1
    return dict(sorted(found.items()))


def gpu_hours_lost(recoveries: Recoveries, since: float) -> Mapping[str, float]:
    """Return the GPU-hours without progress of each cause, the largest first.

    ``since`` is in seconds since 1970; from the beginning of the counting on, recoveries that are
    no longer kept one by one count too.
    """
    all_of_them = since <= recoveries.since
    found = {c: t.gpu_hours for c, t in recoveries.forgotten.items() if all_of_them}
    for record in recoveries.values():
        if record.failed_at >= since or all_of_them:
            found[record.cause] = found.get(record.cause, 0.0) + record.gpu_hours
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def exposures(site: CabledSite, recoveries: Recoveries, now: float) -> Mapping[str, Exposure]:
    """Return failures and part-hours of each kind of part, since counting began.

    One loss counts once, however many jobs it took. ``now`` is in seconds since 1970.
    """
    hours = max(0.0, now - recoveries.since) / 3600
    parts = {
        "endpoint": len(site.endpoints),
        "server": len(site.servers),
        "aggregator": len(site.aggregators),
        "switch": len(site.switches),
    }
    events: dict[str, set[tuple[str, int]]] = {kind: set() for kind in parts}
    for record in recoveries.values():
        if record.cause in events:
            for name in record.objects:
                # Jobs report one loss within seconds of each other.
                events[record.cause].add((name, round(record.failed_at / 60)))
    return {
        kind: Exposure(
            len(events[kind])
            + (recoveries.forgotten[kind].failures if kind in recoveries.forgotten else 0),
            count * hours,
        )
        for kind, count in parts.items()
        if count
    }


def exposures_of(
    job: JobRecord,
    homes: Mapping[str, str | None],
    cables: Mapping[str, EndpointCable],
    rates: Mapping[str, Exposure],
) -> list[tuple[int, Exposure]]:
    """Return how many parts of each kind a job uses now, and how often such parts fail."""
    mine = [cables[name] for name in job.endpoints if name in cables]
    used: dict[str, set[str | None]] = {
        "endpoint": {cable.name for cable in mine},
        "server": {cable.server for cable in mine},
        "aggregator": {homes.get(cable.name) for cable in mine} - {None},
        "switch": {cable.fiber.device for cable in mine},
    }
    return [(len(used[kind]), rate) for kind, rate in rates.items()]
