"""Settings of a measurement of links: defaults, limits and checks."""

from __future__ import annotations

from collections.abc import Mapping

from measure.envelope import Json, Row
from measure.given import RequestSettings
from measure.kinds import PROBE_IMAGE, MeasuredSite

BANDWIDTH_FROM = 65536
"""Bytes from which bandwidth is measured, and groups and anomalies mean the path; below, latency
is measured, which the processor decides."""
LATENCY_SIZES = (1, 4096)
FACTOR = 4
EMULATED_LARGEST = 2**22
LARGEST = 2**26
MOST_SIZE = 2**28
SECONDS = 0.1
"""Seconds of a repetition: fifteen pairs, five repetitions, both directions end in 3 minutes."""
TOGETHER_SECONDS = 0.25
"""Seconds of one repetition at the rate alone; pairs that share a link take longer."""
TOGETHER_SIZE = 2**18
WAITS = ("poll", "sleep")
"""How a side waits for messages: ``poll`` keeps a core busy."""
TRANSPORTS = ("tcp", "rc", "ud", "cuda,rc", "cuda,tcp")


def complete(given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
    """Return all settings with their defaults. Raises SettingsError."""
    asked = RequestSettings(given)
    together = asked.flag("together", default=False)
    usual = TOGETHER_SECONDS if together else SECONDS
    seconds = asked.number("seconds", usual, 0.01, 30.0)
    default = [TOGETHER_SIZE] if together else default_sizes(fabric, seconds)
    known = {
        "sizes": sorted(asked.sizes("sizes", default, 1, MOST_SIZE)),
        "repetitions": asked.integer("repetitions", 5, 3, 100),
        "seconds": seconds,
        "together": together,
        "all": asked.flag("all", default=False),
        "transport": asked.choice("transport", "tcp", TRANSPORTS),
        "wait": asked.choice("wait", "sleep" if fabric.emulated else "poll", WAITS),
        "image": asked.text("image", r"[!-~]+", "the name of an image") or PROBE_IMAGE,
    }
    asked.only(list(known))
    return known


def default_sizes(fabric: MeasuredSite, seconds: float) -> list[int]:
    """Return the sizes to measure alone if the caller names none.

    Where the rates of links are known, a message of the largest takes no longer than a repetition.
    """
    largest = EMULATED_LARGEST if fabric.emulated else LARGEST
    known = (fabric.access_bps, fabric.inter_aggregator_bps)
    slowest = min((bps for bps in known if bps is not None), default=None)
    sizes = [*LATENCY_SIZES, BANDWIDTH_FROM]
    while (size := sizes[-1] * FACTOR) <= largest:
        if slowest is not None and 8.0 * size > slowest * seconds:
            break
        sizes.append(size)
    return sizes
