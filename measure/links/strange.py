"""Merges what stands out at each size of a measurement of links into anomalies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from measure.envelope import Row
from measure.kinds import MeasuredEndpoint
from measure.links.anomalies import LEAST_PAIRS, Bounds, LinkAnomaly, attribute
from measure.links.groups import lead, pooled_spread
from measure.links.points import Key, Ordered, PairPoint
from measure.links.schedule import class_of, link_of
from measure.links.settings import BANDWIDTH_FROM
from measure.statistics import median

LOOPBACKS = 3.0
"""A latency stands out by more than this multiple of the processor's own time."""
LATENCY_RATIO = 1.5
"""Least ratio of latencies that changes what a program notices."""
LEAST_LATENCY_S = {"poll": 1e-6, "sleep": 1e-4}
"""Least difference of latencies, by how sides wait: 200 m of fiber; time to wake a sleeper on one
core or another."""
_What = tuple[str, tuple[int, ...] | str]
_Found = Mapping[_What, Sequence[tuple[int, LinkAnomaly]]]


def standing_out(
    found: Mapping[Key, PairPoint],
    places: Sequence[MeasuredEndpoint],
    sizes: Sequence[int],
    loopback: Mapping[int, float],
    wait: str,
) -> list[Row]:
    """Return the anomalies; what stands out at half of the sizes or fewer is noise.

    Bandwidth and latency are judged apart: a longer fiber delays, a worse one slows.
    For bandwidth, the fastest plausible repetitions are compared (``PairPoint``). For latency,
    every repetition must be later than the class's usual median, by a ratio and a time that a
    program notices (``noticed_s``).
    """
    large = [size for size in sizes if size >= BANDWIDTH_FROM]
    small = [size for size in sizes if size < BANDWIDTH_FROM]
    slow = _at_most_sizes(
        {size: _bandwidth(found, places, size) for size in large},
    )
    late = _at_most_sizes(
        {size: _latency(found, places, size, noticed_s(size, loopback, wait)) for size in small},
    )
    rows = [_row(what, at, places, "time") for what, at in sorted(slow.items(), key=repr)]
    return rows + [_row(what, at, places, "latency") for what, at in sorted(late.items(), key=repr)]


def noticed_s(size: int, loopback: Mapping[int, float], wait: str) -> float:
    """Return the least difference of latencies of ``size`` bytes that is more than the processor's.

    ``loopback`` is the latency without any link, by size; ``wait`` is how sides wait.
    """
    return max(LOOPBACKS * loopback.get(size, 0.0), LEAST_LATENCY_S[wait])


def _bandwidth(
    found: Mapping[Key, PairPoint], places: Sequence[MeasuredEndpoint], size: int
) -> list[LinkAnomaly]:
    own = {key[:2]: p for key, p in found.items() if key[2] == size and p.bandwidth}
    return _attributed(
        {pair: point.fastest_s for pair, point in own.items()},
        places,
        Bounds(spread=lead([point.repetitions for point in own.values()])),
        best={pair: min(point.repetitions) for pair, point in own.items()},
    )


def _latency(
    found: Mapping[Key, PairPoint], places: Sequence[MeasuredEndpoint], size: int, least_s: float
) -> list[LinkAnomaly]:
    own = {key[:2]: p for key, p in found.items() if key[2] == size and p.latency}
    own |= {(b, a): p for (a, b), p in own.items()}  # half of a round trip has no direction
    seen = _attributed(
        {pair: point.fastest_s for pair, point in own.items()},
        places,
        Bounds(
            spread=pooled_spread([point.repetitions for point in own.values()]),
            ratio=LATENCY_RATIO,
            seconds=least_s,
            pairs=2 * LEAST_PAIRS,  # each stands there twice
        ),
        usual={pair: point.seconds for pair, point in own.items()},
    )
    return [one for one in seen if one.kind != "receives" and _once(one.object)]


def _once(about: tuple[int, ...] | str) -> bool:
    return isinstance(about, str) or len(about) == 1 or about[0] < about[1]


def _attributed(
    times: Mapping[Ordered, float],
    places: Sequence[MeasuredEndpoint],
    bounds: Bounds,
    *,
    usual: Mapping[Ordered, float] | None = None,
    best: Mapping[Ordered, float] | None = None,
) -> list[LinkAnomaly]:
    ends = {pair: (places[pair[0]], places[pair[1]]) for pair in times}
    classes = {pair: class_of(*of) for pair, of in ends.items()}
    links = {pair: name for pair, of in ends.items() if (name := link_of(*of)) is not None}
    return attribute(times, classes, links, bounds, usual=usual, best=best)


def _at_most_sizes(by_size: Mapping[int, Sequence[LinkAnomaly]]) -> _Found:
    seen: dict[_What, list[tuple[int, LinkAnomaly]]] = {}
    for size, findings in by_size.items():
        for finding in findings:
            seen.setdefault((finding.kind, finding.object), []).append((size, finding))
    return {what: at for what, at in seen.items() if 2 * len(at) > len(by_size)}


def _row(
    what: _What,
    at: Sequence[tuple[int, LinkAnomaly]],
    places: Sequence[MeasuredEndpoint],
    figure: str,
) -> Row:
    kind, about = what
    ratio = median([finding.ratio for _, finding in at])
    if isinstance(about, str):
        objects = [f"aggregator/{name}" for name in about.split(" to ")]
        name = about
    else:
        names = [places[rank].endpoint for rank in about]
        objects = [f"endpoint/{name}" for name in names]
        word = kind if figure == "time" else "latency"
        name = " to ".join(names) if kind == "path" else f"{names[0]} ({word})"
    pairs, count = at[0][1].pairs, len(at)
    return {
        "kind": {"path": "path", "link": "link"}.get(kind, "endpoint"),
        "object": name,
        "objects": objects,
        "figure": figure,
        "ratio": ratio,
        "sizes": [size for size, _ in at],
        "evidence": f"{ratio:.2f} times the {figure} of others of its class, over"
        f" {pairs} pair{'s' * (pairs != 1)} at {count} size{'s' * (count != 1)}",
    }
