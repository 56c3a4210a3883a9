"""Submits a ring of TCP senders as a job and parses its ranks' reports; see testbed.ring_rank."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed import ring_rank

COMMAND = ("python3", "-c", Path(ring_rank.__file__).read_text(encoding="utf-8"))


@dataclass(slots=True, frozen=True)
class Gap:
    """A rank received nothing for ``gap_s`` seconds, until ``ended_at`` (wall clock)."""

    rank: int
    gap_s: float
    ended_at: float


@dataclass(slots=True)
class RankSeen:
    """The latest counts and all gaps of one rank."""

    rx_bytes: int = 0
    silent_s: float | None = None
    connections: int = 0
    """Connections that carried a message."""
    strangers: int = 0
    lost: int = 0
    """Skipped message numbers; ``repeated`` counts repeated or late messages."""
    repeated: int = 0
    at: float = 0.0
    gaps: list[Gap] = field(default_factory=list)


def request(name: str, endpoints: Sequence[str], policy: str = "pause") -> dict[str, Any]:
    """Return the request body for a ring on exactly these endpoints, in this order."""
    return {
        "name": name,
        "count": len(endpoints),
        "endpoints": list(endpoints),
        "policy": policy,
        "rank_order": "placed",
        "command": list(COMMAND),
    }


def read(lines: Iterable[Mapping[str, Any]]) -> dict[int, RankSeen]:
    """Collect the ranks' reports by rank; ``lines`` are log lines as the API streams them."""
    ranks: dict[int, RankSeen] = {}
    for line in lines:
        try:
            told = json.loads(line["text"])
        except ValueError:
            continue
        if not isinstance(told, dict) or "event" not in told:
            continue
        seen = ranks.setdefault(told["rank"], RankSeen())
        if told["event"] == "gap":
            seen.gaps.append(Gap(told["rank"], told["gap_s"], told["ended_at"]))
        seen.rx_bytes = told["rx_bytes"]
        seen.silent_s = told["silent_s"]
        seen.connections = told["connections"]
        seen.strangers = told["strangers"]
        seen.lost = told["lost"]
        seen.repeated = told["repeated"]
        seen.at = told["at"]
    return ranks


def longest_gap_s(ranks: Mapping[int, RankSeen], since: float, until: float) -> float:
    """Return the longest gap of any rank that ended between two moments (wall clock)."""
    gaps = (gap for seen in ranks.values() for gap in seen.gaps)
    return max((gap.gap_s for gap in gaps if since <= gap.ended_at <= until), default=0.0)
