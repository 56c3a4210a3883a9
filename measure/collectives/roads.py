"""Rates of the rings that a run's groups form, by max-min fairness over the site's links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from measure.kinds import MeasuredSite
from scheduler.steptime.sites import SharedLinks


def ring_rates(
    order: Sequence[str],
    groups: Sequence[Sequence[int]],
    homes: Mapping[str, str | None],
    fabric: MeasuredSite,
) -> list[float | None]:
    """Return bytes/s of each group's ring when all send; None where it is unknown.

    A ring is as fast as the slowest link it crosses: the link's rate divided by how often
    rings cross it in that direction. Framing is not subtracted: with frames of 1,514 bytes for
    1,448 of data, 0.956 of it is what a program can see.
    """
    access, between = fabric.access_bps, fabric.inter_aggregator_bps
    if access is None:
        return [None] * len(groups)
    rings = {str(number): [order[rank] for rank in ranks] for number, ranks in enumerate(groups)}
    crossing = any(
        homes.get(first) != homes.get(second)
        for ring in rings.values()
        for first, second in zip(ring, [*ring[1:], ring[0]], strict=True)
    )
    if crossing and between is None:
        return [None] * len(groups)
    links = SharedLinks(access, between if between is not None else access, fabric.links)
    rates = links.rates(rings, homes)
    known = [rates.get(name) for name in rings]
    return [rate * access / 8 if rate is not None else None for rate in known]
