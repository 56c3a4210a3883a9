"""Telemetry of a site of one real and one emulated GPU, with a job on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentlink.ranks import RankKey
from container_mgr.hardware import nvml
from container_mgr.ranks.living import LiveSample
from container_mgr.rpc import messages
from controller.devices.agents.messages import samples_of
from controller.devices.engine import RankSample
from controller.schema.live import SeriesView
from controller.telemetry.throughput import Telemetry
from controller.views.series import series_of
from testbed.simulated.loop import settled

START = 1_800_000_000.0


def sampled(reading: nvml.GpuReadings, time: float) -> RankSample:
    """Encode and decode a reading as the agents do."""
    container: Any = SimpleNamespace(key=RankKey("red", 0, 1), endpoint="gpu0")
    one = LiveSample(container, reading.values, real=True)
    (found,) = samples_of(messages.telemetry_of(time, [one], {}), time)
    return found


class Told:
    """An engine of which only samples come."""

    def __init__(self) -> None:
        self.samples: asyncio.Queue[RankSample] = asyncio.Queue()

    async def telemetry(self) -> AsyncIterator[RankSample]:
        while True:
            yield await self.samples.get()


@dataclass
class Site:
    """Telemetry of a site of one real and one emulated GPU, with a job on both."""

    state: Any
    engine: Told
    telemetry: Telemetry

    async def tell(self, sample: RankSample) -> None:
        inbox = asyncio.create_task(self.telemetry.run_samples())
        self.engine.samples.put_nowait(sample)
        async with asyncio.timeout(60):
            while self.telemetry.sample("red", 0) != sample:
                await settled()
        inbox.cancel()

    async def series(self) -> SeriesView:
        one = self.telemetry
        return await series_of(self.state, one.history, 60, one.gpu_history)


def site(directory: Path | None, now: list[float]) -> Site:
    job: Any = SimpleNamespace(
        name="red",
        holding=True,
        state="running",
        endpoints=("gpu0", "gpu1"),
        started_at=START,
        finished_at=None,
    )
    cables = [
        SimpleNamespace(name=name, emulated=name != "gpu0", server="s0")
        for name in ("gpu0", "gpu1")
    ]
    state: Any = SimpleNamespace(
        site=SimpleNamespace(endpoints=cables),
        cables={cable.name: cable for cable in cables},
        light=SimpleNamespace(attachments={}),
        jobs={"red": job},
        clock=lambda: now[0],
        events=SimpleNamespace(markers=lambda since: []),
    )
    unused: Any = None
    engine: Any = Told()
    return Site(state, engine, Telemetry(state, unused, engine, directory))
