"""Simulates a large site with its controller in this process, for the reconfiguration benchmarks.

A pod is one optical switch (320 ports) with 8 aggregators of 18 fibers each and up to 128
endpoints; aggregators connect to their pod's spine, spines to one core. A job has 16 endpoints (or
two jobs share a smaller site), half of them under the neighbouring aggregator, so that a regroup
moves every second endpoint. ``benchmarks.reconfig_devices`` provides the devices.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path

from base.processes import Worker
from benchmarks.reconfig_devices import Clock, SimAggregators, SimEngine, SimOcs
from controller.devices.aggregators import AggregatorEvent, AttachPoint
from controller.devices.openflow.flows import FlowKeeper
from controller.devices.optical import SwitchBank
from controller.reconcile.drift_policy import DriftPolicy
from controller.schema.plans import PlanView
from controller.service.service import Service
from controller.store.store import Store
from controller.transaction.circuits import recognise
from sitefile.model import (
    AggregatorCable,
    CabledSite,
    EndpointCable,
    Fiber,
    Port,
    Server,
    SwitchCable,
    Uplink,
)

POD, JOB, FIBERS = 128, 16, 18
UPLINK, DOWNLINK = 100, 1000
LOOK_EVERY_S = 0.01
"""Poll interval until a controller has no drift; a poll itself takes time."""


def make_site(endpoints: int) -> CabledSite:
    """Return a site with this many endpoints; a site of up to one job has two aggregators."""
    size = JOB if endpoints > JOB else -(-endpoints // 2)
    leaves = -(-endpoints // size)
    pods = -(-endpoints // POD)
    aggregators, uplinks, cables = [], [], []
    homes: dict[str, str] = {}
    for leaf in range(leaves):
        pod = leaf * size // POD
        fibers = {p: Port(f"ocs{pod}", f"a{leaf}.{p}") for p in range(1, FIBERS + 1)}
        aggregators.append(AggregatorCable(f"as{leaf}", leaf + 1, fibers, {}))
        uplinks.append(Uplink(Port(f"as{leaf}", str(UPLINK)), Port(f"spine{pod}", str(leaf + 1))))
    for pod in range(pods):
        aggregators.append(AggregatorCable(f"spine{pod}", 1_000_000 + pod, {}, {}))
        core = Port("core", str(pod + 1))
        uplinks.append(Uplink(Port(f"spine{pod}", str(DOWNLINK * 100)), core))
    aggregators.append(AggregatorCable("core", 2_000_000, {}, {}))
    for n in range(endpoints):
        name, leaf = f"gpu{n}", n // size
        neighbour = leaf ^ 1 if n % 2 and (leaf ^ 1) < leaves else leaf
        homes[name] = f"as{neighbour}"
        cables.append(
            EndpointCable(
                name=name,
                server=f"srv{n // 8}",
                ip=f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}",
                prefix_len=8,
                fibers=(
                    Fiber(
                        f"e-{n}",
                        ":".join(f"{byte:02x}" for byte in (2, 0x4C, *n.to_bytes(4))),
                        Port(f"ocs{n // POD}", f"e{n}"),
                    ),
                ),
            )
        )
    return CabledSite(
        name=f"sim{endpoints}",
        servers=tuple(Server(f"srv{n}", "127.0.0.1:1") for n in range(-(-endpoints // 8))),
        endpoints=tuple(cables),
        aggregators=tuple(aggregators),
        switches=tuple(SwitchCable(f"ocs{p}", "calient+tl1://sim:3082", None) for p in range(pods)),
        uplinks=tuple(uplinks),
        homes=homes,
        subnet="10.0.0.0/8",
        openflow_listen="127.0.0.1:0",
        openflow_netns=None,
    )


def jobs_of(site: CabledSite) -> dict[str, list[str]]:
    """Return the jobs: endpoints on common servers, but not under one aggregator."""
    names = [e.name for e in site.endpoints]
    size = JOB if len(names) > JOB else -(-len(names) // 2)
    return {f"job-{n // size}": names[n : n + size] for n in range(0, len(names), size)}


class World:
    """A controller over simulated devices; ``up`` again after ``down`` is a restart."""

    def __init__(self, site: CabledSite, state_dir: Path, planner: Worker | None = None) -> None:
        self.site = site
        self.planner = planner
        self.clock = Clock()
        self.switches = {switch.name: SimOcs(self.clock) for switch in site.switches}
        self.engine = SimEngine(site)
        self.aggregators: SimAggregators
        self.service: Service
        self._state_dir = state_dir

    async def up(self) -> float:
        """Start a controller; return the seconds until it has no drift.

        Garbage is not collected until then, as in the daemon (``controller.daemon.compose``).
        """
        gc.collect()
        gc.disable()
        try:
            return await self._up()
        finally:
            gc.enable()

    async def _up(self) -> float:
        began = time.monotonic()
        self.store = Store(self._state_dir / "controller.sqlite")

        def aggregators(post: Callable[[AggregatorEvent], None]) -> FlowKeeper:
            kept = self.aggregators.programs if hasattr(self, "aggregators") else {}
            self.aggregators = SimAggregators(self.site, self.switches, post)
            self.aggregators.programs = kept
            return FlowKeeper(self.site, self.aggregators)

        self.service = Service(
            self.site,
            self.store,
            switches=lambda on_change: SwitchBank(dict(self.switches), on_change),
            aggregators=aggregators,
            engine=self.engine,
            default_image="image:1",
            drift=DriftPolicy.REPAIR,
            planner=self.planner,
        )
        await self.service.start()
        while not await self._whole():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        return time.monotonic() - began

    async def _whole(self) -> bool:
        if self.service.features.reconciled.interrupted:
            return False
        return (self.service.desks.health.health()).status == "ok"

    async def crash(self) -> None:
        """End the controller without clean-up, like SIGKILL."""
        await self.service.features.core.tasks.stop()
        await self.service.features.core.switches.stop()
        await self.store.close()

    async def down(self) -> None:
        """Stop the controller; the devices do not change."""
        await self.service.stop()
        await self.store.close()

    async def together(self) -> PlanView:
        """Return an explicit plan that moves every job under its first aggregator."""
        now = {e.name: e.home for e in await self.service.desks.fabric.endpoints()}
        homes = {
            name: self.site.homes[ends[0]] for ends in jobs_of(self.site).values() for name in ends
        }
        moves = [
            {"endpoint": e, "from": now[e], "to": home}
            for e, home in homes.items()
            if now[e] != home
        ]
        return PlanView.model_validate(
            {
                **{"id": "by-hand", "epoch": self.service.desks.epoch, "site": self.site.name},
                **{"moves": moves, "homes_after": {**now, **homes}, "optimal": False},
                **{"excess_span_before": 0, "excess_span_after": 0, "running_moves": 0},
                **{"jobs_paused": [], "paused_gpus": 0, "pause_gpu_seconds": 0.0},
                "bound": {"excess_span": 0, "running_moves": 0, "paused_gpus": 0},
                "solver_seconds": 0.0,
            }
        )

    def light(self) -> dict[str, AttachPoint]:
        """Return the attach point of every endpoint's light."""
        found: dict[str, AttachPoint] = {}
        for name, ocs in self.switches.items():
            pairs = [(c.a, c.b) for c in dict.fromkeys(ocs.at.values())]
            found.update(recognise(self.site, name, pairs).attachments)
        return found
