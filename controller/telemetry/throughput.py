"""Throughput and utilisation at 1 Hz, and their history.

Throughput comes from the aggregators' port counters and the aggregator's own clock, which are
exact on every device (flow counters lag on hardware). What a container receives is what its
aggregator port sends. Utilisation comes from the agents.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from base import clock
from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.counters import PortBlock
from controller.devices.engine import ExecutionEngine, RankSample, ServerSample
from controller.devices.errors import DEVICE_ERRORS
from controller.state.state import State
from controller.telemetry.history import COLUMNS, GPU_COLUMNS, MEASURED, RingBuffer
from controller.telemetry.latest import LatestReadings
from controller.telemetry.rates import RateTable
from readings.reading import Object, Values

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
COUNTERS_TIMEOUT_S = 2.0
AT_ONCE = 16
SPREAD_S = 0.4
"""At most AT_ONCE aggregators are read at once, and all of them are asked within SPREAD_S: every
session has its own threads, and a thousand that wake together compete for the interpreter. Rates
are not affected, since every aggregator sends its own clock with its counters."""
STARTS_S = 0.3
"""Offset of a reading into the second: it ends well before the next one, also on large sites."""
FRESH_S = 3.5
"""Utilisation samples that are older are not shown."""
RETRY_S = 2.0


Move = tuple[str, AttachPoint, AttachPoint]
"""An endpoint, its previous port, its present port."""


@dataclass(slots=True, frozen=True)
class EndpointRates:
    """One endpoint's throughput in bit/s, None if it is not known."""

    rx_bps: float | None = None
    tx_bps: float | None = None


class Telemetry:
    """Reads counters, receives samples, keeps their history."""

    def __init__(
        self,
        state: State,
        aggregators: Aggregators,
        engine: ExecutionEngine,
        directory: Path | None = None,
    ) -> None:
        """Keep the history in ``directory``, or in memory if it is None. ServiceError."""
        self._state = state
        self._aggregators = aggregators
        self._engine = engine
        self._on_tick: Callable[[Telemetry], None] | None = None
        self._names = [cable.name for cable in state.site.endpoints]
        self._place = {name: i for i, name in enumerate(self._names)}
        self.history = RingBuffer(directory, self._names)
        gpus = [cable.name for cable in state.site.endpoints if not cable.emulated]
        self._gpu_place = {name: i for i, name in enumerate(gpus)}
        self.gpu_history = (
            RingBuffer(directory, gpus, stem="gpu", columns=GPU_COLUMNS) if gpus else None
        )
        """History of NVML's figures; None on a site without GPUs."""
        self._table = RateTable()
        self._attached: dict[str, AttachPoint] = {}
        self._layout = -1
        self._ports_of: NDArray[np.intp] = np.full(len(self._names), -1)
        """Per endpoint: position of its port in the table, -1 for none."""
        self._seen: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        self._ports: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        """The endpoints whose port is in the table (``_seen``), and the positions of the ports."""
        self._now: NDArray[np.float32] = self._blank()
        """Per endpoint: its COLUMNS of the last second, from its container's side."""
        self._samples: dict[tuple[str, int], RankSample] = {}
        self.readings = LatestReadings(state.clock)
        """Of what is not a rank."""

    # --- latest values -------------------------------------------------------------------

    def report_to(self, on_tick: Callable[[Telemetry], None]) -> None:
        """Call ``on_tick`` with this object after each second has been recorded."""
        self._on_tick = on_tick

    def sent_bps(self, endpoint: str) -> float | None:
        """Return what an endpoint sends; None when that is not known."""
        return self.rates(endpoint).tx_bps

    def rates(self, endpoint: str) -> EndpointRates:
        """Return an endpoint's throughput over the last second, from its container's side.

        The rates of an endpoint that is no longer in the site file are unknown.
        """
        place = self._place.get(endpoint)
        if place is None:
            return EndpointRates()
        rx, tx = self._now[place, :2].tolist()
        return EndpointRates(_known(rx), _known(tx))

    def port_rates(self, point: AttachPoint) -> EndpointRates:
        """Return an aggregator port's throughput over the last second, from the port's side."""
        position = self._table.position(point)
        if position < 0:
            return EndpointRates()
        rx, tx = self._table.rates[position].tolist()
        return EndpointRates(_known(rx), _known(tx))

    def all_ports(self) -> Mapping[AttachPoint, EndpointRates]:
        """Return the throughput of every aggregator port over the last second."""
        values = self._table.rates.tolist()
        return {
            point: EndpointRates(_known(values[i][0]), _known(values[i][1]))
            for point, i in self._table.points().items()
        }

    def sample(self, job: str, rank: int) -> RankSample | None:
        """Return a rank's latest sample, None if it has none or the sample is too old."""
        sample = self._samples.get((job, rank))
        if sample is None or self._state.clock() - sample.time > FRESH_S:
            return None
        return sample

    async def flush(self) -> None:
        """Wait until the disk has the whole histories, for a bounded time."""
        await self.history.flush()
        if self.gpu_history is not None:
            await self.gpu_history.flush()

    # --- gathering ------------------------------------------------------------------------

    async def run_counters(self) -> None:
        """Run a tick in every second, STARTS_S into it."""
        while True:
            await asyncio.sleep(INTERVAL_S - (self._state.clock() - STARTS_S) % INTERVAL_S)
            await self.tick()

    async def run_samples(self) -> None:
        """Receive the agents' samples."""
        while True:
            try:
                async for sample in self._engine.telemetry():
                    if isinstance(sample, ServerSample):
                        self.readings.report(Object.SERVER, sample.server, sample.values)
                        continue
                    job = self._state.jobs.get(sample.job)
                    if job and sample.endpoint in job.endpoints[sample.rank : sample.rank + 1]:
                        self._samples[sample.job, sample.rank] = sample
            except DEVICE_ERRORS as error:
                log.warning("telemetry_stream_broke", error=str(error))
            await asyncio.sleep(RETRY_S)

    async def tick(self) -> None:
        """Read all counters once, append one second to the history, call ``on_tick``."""
        names = sorted(self._aggregators.connected())
        slices = [names[i : i + AT_ONCE] for i in range(0, len(names), AT_ONCE)]
        async with asyncio.TaskGroup() as reading:
            read = []
            for number, some in enumerate(slices):
                if number:
                    await asyncio.sleep(SPREAD_S / len(slices))
                read += [reading.create_task(self._read(name)) for name in some]
        got = ((name, task.result()) for name, task in zip(names, read, strict=True))
        self.record({name: block for name, block in got if block is not None})
        if self._on_tick is not None:
            self._on_tick(self)

    def record(self, blocks: Mapping[str, PortBlock]) -> None:
        """Record one second from one reading of the aggregators that answered."""
        self._table.update(blocks, clock.monotonic())
        moves = self._follow()
        self._now = self._blank()
        # What the port sends is what the container receives.
        self._now[self._seen, :2] = self._table.rates[self._ports, ::-1]
        if moves:
            self._share(moves)
        gpus = self._add_samples()
        now = self._state.clock()
        self.history.append(now, self._now)
        if self.gpu_history is not None:
            self.gpu_history.append(now, gpus)

    async def _read(self, name: str) -> PortBlock | None:
        try:
            async with asyncio.timeout(COUNTERS_TIMEOUT_S):
                return await self._aggregators.port_counters(name)
        except DEVICE_ERRORS:
            return None

    def _follow(self) -> list[Move]:
        """Update the positions of the endpoints' ports; return the endpoints that changed ports."""
        before, now = self._attached, self._state.light.attachments
        if self._layout != self._table.layout:
            changed = {*before, *now}
        elif before == now:
            return []
        else:
            changed = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        for name in changed:
            at = now.get(name)
            self._ports_of[self._place[name]] = -1 if at is None else self._table.position(at)
        self._seen = np.flatnonzero(self._ports_of >= 0)
        self._ports = self._ports_of[self._seen]
        self._attached, self._layout = dict(now), self._table.layout
        return [
            (name, before[name], now[name])
            for name in changed
            if name in before and name in now and before[name] != now[name]
        ]

    def _share(self, moves: list[Move]) -> None:
        """In the second of a move, add the rates of the endpoint's old and new port.

        They are unknown if another endpoint used one of the ports in that second, because the
        counters do not separate the two.
        """
        touched = {at for _, was, now in moves for at in (was, now)}
        users = Counter(at for at in self._attached.values() if at in touched)
        for name, was, now in moves:
            rates = [
                self._table.rates[i] for at in (was, now) if (i := self._table.position(at)) >= 0
            ]
            known = [pair for pair in rates if not np.isnan(pair).any()]
            alone = not users[was] and users[now] == 1
            tx, rx = np.sum(known, axis=0) if alone and known else (np.nan, np.nan)
            self._now[self._place[name], :2] = rx, tx

    def _add_samples(self) -> NDArray[np.float32]:
        """Add the ranks' readings to the row of endpoints; return the row of the GPUs'."""
        gpus = np.full((len(self._gpu_place), len(GPU_COLUMNS)), np.nan, dtype=np.float32)
        oldest = self._state.clock() - FRESH_S
        jobs = [job for job in self._state.jobs.values() if job.holding and job.state != "starting"]
        places: list[int] = []
        gpu_places: list[int] = []
        measured: list[Values] = []
        of_gpus: list[Values] = []
        met = 0
        for job in jobs:
            for rank, endpoint in enumerate(job.endpoints):
                sample = self._samples.get((job.name, rank))
                if sample is None:
                    continue
                met += 1
                if sample.time < oldest:
                    continue
                places.append(self._place[endpoint])
                measured.append(sample.values)
                if sample.real and endpoint in self._gpu_place:
                    gpu_places.append(self._gpu_place[endpoint])
                    of_gpus.append(sample.values)
        _fill(self._now, places, MEASURED, measured)
        _fill(gpus, gpu_places, GPU_COLUMNS, of_gpus)
        if met != len(self._samples):
            live = {(job.name, rank) for job in jobs for rank in range(len(job.endpoints))}
            for key in self._samples.keys() - live:
                del self._samples[key]
        return gpus

    def _blank(self) -> NDArray[np.float32]:
        return np.full((len(self._names), len(COLUMNS)), np.nan, dtype=np.float32)


def _fill(
    rows: NDArray[np.float32], places: list[int], names: Sequence[str], found: list[Values]
) -> None:
    """Put readings into the last columns of some rows; NaN is not reported."""
    first = rows.shape[1] - len(names)
    for column, name in enumerate(names, first) if places else ():
        rows[places, column] = [values.get(name, np.nan) for values in found]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
