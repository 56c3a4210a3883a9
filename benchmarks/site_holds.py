"""Measures how long looks at a whole site hold the loop, at 4,096 endpoints and 2,000 ended jobs.

``python -m benchmarks.site_holds`` prints one JSON document, as ``benchmarks.loop_holds`` does:
the observation of all containers; the same on an older copy of the store, when all jobs run in
later epochs; the look for drift at all switches and containers; the beginning of a transaction
that moves every endpoint. Devices are simulated. The goal is 50 ms each.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import structlog

from benchmarks.api_holds import service_of
from benchmarks.loop_holds import TRIES, document, longest_hold
from controller.service.service import Service
from controller.transaction.circuits import EndpointEnd, changes_between
from controller.transaction.model import Cause
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.see import Parts
from tests.parts.controller.switch import FakeOcs

LATER = 1_000_000
"""Epochs that the copy of the store is behind."""


async def wired(service: Service) -> Parts:
    """Return the parts of a controller whose switches and agents are as its state says."""
    parts = Parts.of(service)
    state = parts.state
    drivers = service.features.core.switches._switches  # type: ignore[attr-defined]
    lit = {EndpointEnd(e): at for e, at in state.light.attachments.items()}
    for change in changes_between(state.site, dict.fromkeys(lit), lit):
        for link in change.make:
            cast(FakeOcs, drivers[change.switch].driver).add(link.a, link.b)
    service.features.core.switches.start()
    while len(service.features.core.switches.connected()) < len(state.site.switches):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    state.light.foreign_points = {switch.name: frozenset() for switch in state.site.switches}
    observed(service, later=0)
    return parts


def observed(service: Service, *, later: int) -> None:
    """Let the agents report all containers, ``later`` epochs after what the store knows."""
    engine = cast(FakeEngine, service.features.core.engine)
    statuses = [
        replace(s, epoch=s.epoch + later) for s in service.features.core.state.jobs.statuses
    ]
    engine.statuses = {(s.job, s.rank): s for s in statuses}


def exchanged(parts: Parts) -> dict[str, str | None]:
    """Return moves of all endpoints, by pairs on one switch that change their places."""
    homes, by_switch = parts.state.light.homes(), dict[str, dict[str | None, list[str]]]()
    for name, home in homes.items():
        switch = parts.state.cables[name].fiber.device
        by_switch.setdefault(switch, {}).setdefault(home, []).append(name)
    moves: dict[str, str | None] = {}
    for by_home in by_switch.values():
        places = list(by_home.items())
        for (here, ours), (there, theirs) in zip(places[::2], places[1::2], strict=False):
            for one, other in zip(ours, theirs, strict=False):
                moves |= {one: there, other: here}
    return moves


async def measured() -> dict[str, float]:
    """Return the holds, in seconds of CPU time of the loop's thread."""
    with tempfile.TemporaryDirectory() as folder:
        service = service_of(Path(folder))
        parts = await wired(service)
        moves = exchanged(parts)

        async def begun() -> None:
            rewiring = await parts.mover.foreseen(moves)
            running = parts.mover.begin(Cause.REGROUP, moves, rewiring=rewiring)
            parts.mover.call_off(running, "only measured")

        held = {
            "observation": await least(parts.watch.observe),
            "look for drift": await least(parts.drift.check),
            f"beginning of {len(moves)} moves": await least(begun),
        }
        parts.state.took_command()
        observed(service, later=LATER)
        held["observation on an older store"] = await longest_hold(parts.watch.observe)
        await parts.switches.stop()
        await service.features.core.state.store.close()  # type: ignore[attr-defined]
    return held


async def least(work: Callable[[], Awaitable[None]]) -> float:
    """Return the shortest hold of some tries."""
    return min([await longest_hold(work) for _ in range(TRIES)])


def holds() -> dict[str, Any]:
    """Return the document of this benchmark."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return document("site_holds", asyncio.run(measured()))


def main() -> None:
    """Print one JSON document."""
    print(json.dumps(holds(), indent=2))


if __name__ == "__main__":
    main()
