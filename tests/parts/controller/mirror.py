"""A client that keeps the controller's lists current from the stream alone, as the console does.

On a ``changed`` frame it reads only what the frame names, so an object that changes without a
frame stays wrong.
"""

from __future__ import annotations

import asyncio
from typing import Any

from controller.schema.base import View
from controller.schema.fabric import EventView
from controller.schema.stream import ChangedView, TransactionFrameView
from controller.service.service import Service
from controller.stream.feed import Frame

MEASURED = {
    *("rx_bps", "tx_bps", "utilisation", "gpu", "source", "memory_bytes", "steps", "readings")
}
"""Fields that no ``changed`` frame announces: samples, or the next reading, bring them."""
Shown = dict[str, dict[str, Any]]
Lists = dict[str, Shown]


def plain(view: View) -> dict[str, Any]:
    """Return a view without measured values."""
    return strip(view.model_dump())


def strip(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if k not in MEASURED}
    return [strip(v) for v in value] if isinstance(value, list) else value


async def _listed(service: Service, kind: str) -> Shown:
    """Read one kind of object, with everything that its frames announce."""
    desks = service.desks
    lists = {
        "job": (desks.jobs.jobs, "name"),
        "endpoint": (desks.fabric.endpoints, "name"),
        "aggregator": (desks.fabric.aggregators, "name"),
    }
    if kind in lists:
        read, name = lists[kind]
        return {getattr(one, name): plain(one) for one in await read()}  # type: ignore[operator]
    if kind == "measurement":
        return {one.id: plain(one) for one in desks.measurements.views()}
    if kind == "quarantine":
        return {one.object: plain(one) for one in desks.quarantine.views()}
    if kind == "switch":
        circuits, power = service.desks.fabric.circuits(), service.desks.live.power()
        return {
            s.name: {
                "switch": plain(s),
                "circuits": [plain(c) for c in circuits if c.switch == s.name],
                "power": [plain(p) for p in power if p.switch == s.name],
            }
            for s in service.desks.fabric.switches()
        }
    containers = await service.desks.jobs.containers()
    return {
        n.name: {
            "node": plain(n),
            "containers": sorted(
                (plain(c) for c in containers if c.server == n.name), key=lambda c: c["name"]
            ),
        }
        for n in service.desks.fabric.nodes()
    }


KINDS = ("job", "endpoint", "aggregator", "switch", "node", "quarantine", "measurement")


async def truth(service: Service) -> Lists:
    """Read all lists."""
    lists = {kind: await _listed(service, kind) for kind in KINDS}
    lists["transaction"] = {t.id: plain(t) for t in service.desks.plans.transactions()}
    lists["event"] = {str(e.id): plain(e) for e in service.desks.fabric.events(0, 10_000)}
    return lists


class Mirror:
    """Follows the stream; ``lists`` is the client's copy."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._reader = service.desks.feed.read(None)
        self.lists: Lists = {}
        self.frames: list[Frame] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.lists = await truth(self._service)
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        self._reader.close()
        if self._task is not None:
            await self._task

    async def _follow(self) -> None:
        while batch := await self._reader.batch():
            for item in batch:
                self.frames.append(item)
                await self._take(item)

    async def _take(self, item: Frame) -> None:
        match item.data:
            case EventView() as event:
                self.lists["event"][str(event.id)] = plain(event)
            case TransactionFrameView() as moving:
                shown = plain(moving)
                del shown["circuits"], shown["waits_for"]
                self.lists["transaction"][moving.id] = shown
            case ChangedView() as changed:
                now, mine = await _listed(self._service, changed.kind), self.lists[changed.kind]
                if not changed.name:
                    self.lists[changed.kind] = now
                elif changed.name in now:
                    mine[changed.name] = now[changed.name]
                else:
                    mine.pop(changed.name, None)

    async def differences(self) -> list[str]:
        """Return the objects that are wrong or missing in the client's copy."""
        found: list[str] = []
        for kind, shown in (await truth(self._service)).items():
            mine = self.lists[kind]
            found += [
                f"{kind}/{name}: copy {mine.get(name)}, list {shown.get(name)}"
                for name in sorted(shown.keys() | mine.keys())
                if shown.get(name) != mine.get(name)
            ]
        return found
