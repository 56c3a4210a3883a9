"""Submits rings that write checkpoints, and reads their output; see testbed.ring_checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from testbed import ring_checkpoint
from testbed.mortal import Mortal
from testbed.ring_checkpoint import expected

TEXT = Path(ring_checkpoint.__file__).read_text(encoding="utf-8")
Document = dict[str, Any]


@dataclass(slots=True, frozen=True)
class RingSize:
    """A ring's size: ranks, steps and their length, bytes of a checkpoint and steps between two."""

    ranks: int = 4
    steps: int = 120
    step_s: float = 0.1
    size: int = 4_000_000
    every: int = 5
    room: int = 8
    """Checkpoints for which a rank's folder has room."""

    def request(self, name: str, **changes: Any) -> Document:
        """Return a submission with partners' copies and one spare; ``changes`` replace keys."""
        sizes = (self.step_s, self.size, self.steps, self.every)
        room = self.room * self.size + 2**20
        return {
            "name": name,
            "count": self.ranks,
            "command": ["python3", "-c", TEXT, *map(str, sizes)],
            "restart": "on-failure:99",
            "spares": 1,
            "checkpoint": {
                "complete": "rename",
                "local": {
                    "where": "memory",
                    "size_bytes": room,
                    "keep": 2,
                },
                "copies": {"scheme": "partner", "apart": "server"},
            },
            **changes,
        }


@dataclass(slots=True)
class Said:
    """What the ranks of a ring printed over all runs, by rank and in the order of time."""

    ranks: dict[int, list[Document]] = field(default_factory=dict)

    def events(self, kind: str, rank: int = 0) -> list[Document]:
        """Return a rank's events of one kind."""
        return [event for event in self.ranks.get(rank, []) if event["event"] == kind]

    @property
    def starts(self) -> list[int]:
        """The steps from which the runs of rank 0 went on."""
        return [int(event["step"]) for event in self.events("start")]

    @property
    def faults(self) -> list[str]:
        """What must never happen, in any rank's words."""
        return [str(event["why"]) for rank in self.ranks for event in self.events("fault", rank)]

    def reached(self) -> int:
        """Return how many steps rank 0's present run has trained, with those it went on from."""
        mine = self.ranks.get(0, [])
        begun = max((n for n, event in enumerate(mine) if event["event"] == "begin"), default=0)
        steps = [int(e["step"]) + 1 for e in mine[begun:] if e["event"] == "step"]
        return max(steps, default=0)

    def as_undisturbed(self, ring: RingSize) -> bool:
        """Whether every rank ended with the state of a run without any loss."""
        last = [self.ranks.get(rank, [{}])[-1].get("digest") for rank in range(ring.ranks)]
        return last == expected(ring.ranks, ring.steps)


def read(lines: Iterable[Mapping[str, Any]]) -> Said:
    """Collect log lines as the API streams them."""
    printed = Said()
    for line in lines:
        with suppress(ValueError):
            event = json.loads(line["text"])
            if isinstance(event, dict) and {"event", "t"} <= event.keys():
                printed.ranks.setdefault(int(line["rank"]), []).append(event)
    for events in printed.ranks.values():
        events.sort(key=lambda event: float(event["t"]))
    return printed


def printed(mortal: Mortal, name: str) -> Said:
    """Return what a ring has printed so far; nothing before its first rank runs."""
    try:
        return read(mortal.log_lines(name))
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.NOT_FOUND:
            raise
        return Said()


def complete_steps(mortal: Mortal, name: str) -> list[int]:
    """Return the steps that a restart may use after any one loss, the newest first."""
    steps: list[Document] = mortal.get(f"/jobs/{name}/checkpoints").get("steps", [])
    return sorted((int(one["step"]) for one in steps if one["complete"]), reverse=True)
