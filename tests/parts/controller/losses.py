"""Racks that lose hardware, and checkpoints that jobs continue from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints.ledger import Key, Ledger, StepRecord
from checkpoints.restore import Restore
from controller.service import features
from controller.state.kept.checkpoints import RunEnd
from sitefile import load_site
from sitefile.recovery import RecoveryPolicy
from tests.parts.controller.aggregators import FakeAggregators
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER


def rack_with(folder: Path, *spares: str) -> Rack:
    """Return the paper's rack with some endpoints kept as spares of the site."""
    folder.mkdir(exist_ok=True)
    return Rack(folder, replace(load_site(PAPER), recovery=RecoveryPolicy(frozenset(spares))))


@dataclass
class FakeCheckpoints:
    """What jobs have written: restorable steps are ``whole``, protected ones ``safe``."""

    whole: dict[str, list[Key]] = field(default_factory=dict)
    safe: dict[str, list[Key]] = field(default_factory=dict)
    gathers: bool = True
    """Fewer ranks can load them."""
    size: dict[str, int] = field(default_factory=dict)
    """Ranks that wrote a job's steps."""
    prefetched: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    ends: list[tuple[str, RunEnd]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def write(self, job: str, step: int, epoch: int, *, ranks: int, safe: bool = True) -> None:
        self.size[job] = ranks
        self.whole.setdefault(job, []).append(Key(step, epoch))
        if safe:
            self.safe.setdefault(job, []).append(Key(step, epoch))

    def ledger(self, name: str) -> Ledger | None:
        if name not in self.whole:
            return None
        return Ledger(steps={key: StepRecord() for key in self.whole[name]})

    def newest(self, name: str, *, protected: bool = False) -> Key | None:
        return max((self.safe if protected else self.whole).get(name, ()), default=None)

    async def planned(self, name: str, endpoints: Sequence[str]) -> Restore:
        key = self.newest(name)
        if key is None:
            return Restore(None, why="it has no checkpoint")
        if len(endpoints) != self.size[name] and not self.gathers:
            return Restore(None, why=f"it has {self.size[name]} parts")
        return Restore(key)

    async def prefetch(self, name: str, endpoints: Sequence[str]) -> Restore:
        self.prefetched.append((name, tuple(endpoints)))
        return await self.planned(name, endpoints)

    def ended(self, name: str, end: RunEnd) -> None:
        self.ends.append((name, end))

    def stepped(self, name: str) -> None:
        self.steps.append(name)


def with_checkpoints(monkeypatch: pytest.MonkeyPatch, kept: FakeCheckpoints) -> None:
    """Let recoveries of the services that are made from now on ask these checkpoints."""
    made = features.SwapParts

    def parts(**given: Any) -> features.SwapParts:
        return made(**given | {"checkpoints": kept})

    monkeypatch.setattr(features, "SwapParts", parts)


KEEPS: dict[str, Any] = {
    "checkpoint": {
        "complete": "dcp",
        "local": {"size_bytes": 2**20},
        "copies": {"scheme": "single"},
    }
}


def lose(rack: Rack, server: str) -> None:
    """Cut a server's power as the controller sees it: no agent and no carriers."""
    rack.engine.lost.add(server)
    gone = {e.name for e in rack.site.endpoints if e.server == server}
    was = FakeAggregators.carrier

    def carrier(as_name: str) -> dict[int, bool]:
        light = rack.aggregators.light().items()
        dark = {at.port for e, at in light if e in gone and at.aggregator == as_name}
        return {
            port: up and not (port in dark and server in rack.engine.lost)
            for port, up in was(rack.aggregators, as_name).items()
        }

    rack.aggregators.carrier = carrier  # type: ignore[method-assign]
