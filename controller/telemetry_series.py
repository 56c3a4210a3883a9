"""The history of containers: whose endpoint a sample was, and what happened beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.records import JobRecord
from controller.ring_buffer import GPU_COLUMNS, RingBuffer, Times, Values
from controller.state import State
from controller.views import MarkerView, SeriesLineView, SeriesView


def series_of(
    state: State,
    history: RingBuffer,
    since_s: float,
    gpus: RingBuffer | None = None,
    jobs: Iterable[JobRecord] | None = None,
) -> SeriesView:
    """Return the containers of ``jobs`` (None is all) over the last ``since_s`` seconds.

    A sample belongs to the job that held the endpoint at that time.
    """
    now = state.clock()
    window = history.read(now - since_s, now)
    told = _Gpus(gpus, now - since_s, now, window.times) if gpus is not None else None
    place = {name: i for i, name in enumerate(history.endpoints)}
    lines = []
    for job in state.jobs.values() if jobs is None else jobs:
        if job.started_at is None or (job.finished_at or now) < now - since_s:
            continue
        held = _held(job, window.times, window.interval_s)
        if not held.any():
            continue
        for rank, endpoint in enumerate(job.endpoints):
            if endpoint in place:
                server = state.cables[endpoint].server
                mine = np.where(held[:, None], window.values[:, place[endpoint]], np.nan)
                line = _line(job.name, rank, endpoint, server, mine)
                lines.append(line.model_copy(update=told.of(endpoint, held)) if told else line)
    return SeriesView(
        interval_s=window.interval_s,
        times=window.times.tolist(),
        containers=sorted(lines, key=lambda line: (line.job, line.rank)),
        markers=[
            MarkerView(time=e.time, reason=e.reason, object=e.object, message=e.message)
            for e in state.events.markers(now - since_s)
        ],
    )


class _Gpus:
    """What GPUs said, on the grid of times of the throughput."""

    def __init__(self, ring: RingBuffer, after: float, before: float, times: Times) -> None:
        window = ring.read(after, before)
        _, here, there = np.intersect1d(
            times, window.times, assume_unique=True, return_indices=True
        )
        self._values = np.full((len(times), *window.values.shape[1:]), np.nan)
        self._values[here] = window.values[there]
        self._place = {name: i for i, name in enumerate(ring.endpoints)}

    def of(self, endpoint: str, held: NDArray[np.bool_]) -> dict[str, list[float | None]]:
        """Return the lists of an endpoint that said anything while its job held it."""
        if endpoint not in self._place:
            return {}
        mine = np.where(held[:, None], self._values[:, self._place[endpoint]], np.nan)
        return {
            name: _listed(column)
            for name, column in zip(GPU_COLUMNS, mine.T, strict=True)
            if not np.isnan(column).all()
        }


def _listed(column: NDArray[np.floating[Any]]) -> list[float | None]:
    return [None if math.isnan(v) else v for v in column.tolist()]


def _held(job: JobRecord, times: Times, interval_s: float) -> NDArray[np.bool_]:
    """Which intervals the job was running in, wholly or in part."""
    assert job.started_at is not None  # noqa: S101 - the caller asked
    held = times + interval_s > job.started_at
    if job.finished_at is not None:
        held &= times < job.finished_at
    return held


def _line(job: str, rank: int, endpoint: str, server: str, values: Values) -> SeriesLineView:
    rx, tx, busy = (_listed(column) for column in values.T)
    return SeriesLineView(
        job=job,
        rank=rank,
        endpoint=endpoint,
        server=server,
        rx_bps=rx,
        tx_bps=tx,
        utilisation=busy,
    )
