"""The document of the containers' history: the samples of each job, with markers of events."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.base.slices import Turns, in_slices
from controller.schema.live import MarkerView, SeriesLineView, SeriesView
from controller.state.records import Event, JobRecord
from controller.state.state import State
from controller.telemetry.history import (
    COLUMNS,
    GPU_COLUMNS,
    HistoryWindow,
    RingBuffer,
    Times,
    Values,
)

MOST_SAMPLES = 120_000
"""Most samples of one answer, lines times moments: some 6 MB. Longer spans are thinned out."""


async def series_of(
    state: State,
    history: RingBuffer,
    since_s: float,
    gpus: RingBuffer | None = None,
    jobs: Collection[str] | None = None,
) -> SeriesView:
    """Return the containers of ``jobs`` (None is all) over the last ``since_s`` seconds.

    A sample belongs to the job that held the endpoint at that time. Only samples that are shown
    are read.
    """
    now = state.clock()
    known = frozenset(history.endpoints)
    shown = [
        (job, rank, endpoint)
        for job in _jobs_since(state, now - since_s, jobs)
        for rank, endpoint in enumerate(job.endpoints)
        if endpoint in known
    ][:MOST_SAMPLES]
    endpoints = list(dict.fromkeys(endpoint for _, _, endpoint in shown))
    share = max(1, MOST_SAMPLES * len(endpoints) // max(1, len(shown)))
    window = history.read(now - since_s, now, of=endpoints, most=share)
    place = {name: i for i, name in enumerate(endpoints)}
    figures = None
    if gpus is not None:
        real = frozenset(gpus.endpoints)
        names = [name for name in endpoints if name in real]
        rows = gpus.read(now - since_s, now, of=names, step=window.step)
        figures = _Gpus(rows, names, window.times)
    lines = []
    held_by: tuple[JobRecord | None, NDArray[np.bool_]] = (None, np.zeros(0, dtype=bool))
    with Turns() as turns:
        for job, rank, endpoint in shown:
            if held_by[0] is not job:
                held_by = job, _held(job, window.times, window.interval_s / window.step)
            held = held_by[1]
            if not held.any():
                continue
            mine = np.where(held[:, None], window.values[:, place[endpoint]], np.nan)
            line = _line(job.name, rank, endpoint, state.cables[endpoint].server, mine)
            lines.append(line.model_copy(update=figures.of(endpoint, held)) if figures else line)
            await turns.breathe()
    return SeriesView(
        interval_s=window.interval_s,
        times=window.times.tolist(),
        containers=sorted(lines, key=lambda line: (line.job, line.rank)),
        markers=await in_slices(_markers(state, now - since_s, jobs), _marker),
    )


def _markers(state: State, after: float, jobs: Collection[str] | None) -> list[Event]:
    """Return the events to mark: those of these jobs, and all that do not concern a job."""
    found = state.events.markers(after)
    if jobs is None:
        return found
    split = ((event, *event.object.partition("/")[::2]) for event in found)
    return [event for event, kind, name in split if kind != "job" or name in jobs]


def _marker(event: Event) -> MarkerView:
    return MarkerView(
        time=event.time, reason=event.reason, object=event.object, message=event.message
    )


def _jobs_since(state: State, after: float, names: Collection[str] | None) -> list[JobRecord]:
    """Return the jobs that ran after ``after``, in the order of submission."""
    jobs = state.jobs
    wanted = jobs.values() if names is None else (jobs[n] for n in names if n in jobs)
    return [
        job
        for job in wanted
        if job.started_at is not None and (job.finished_at is None or job.finished_at >= after)
    ]


class _Gpus:
    """The GPUs' figures at the times of the throughput samples."""

    def __init__(self, window: HistoryWindow, names: Sequence[str], times: Times) -> None:
        _, here, there = np.intersect1d(
            times, window.times, assume_unique=True, return_indices=True
        )
        self._values = np.full((len(times), *window.values.shape[1:]), np.nan)
        self._values[here] = window.values[there]
        self._place = {name: i for i, name in enumerate(names)}

    def of(self, endpoint: str, held: NDArray[np.bool_]) -> dict[str, list[float | None]]:
        """Return the columns of an endpoint that have a value while its job held it."""
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
    """Return in which intervals the job was running, wholly or in part."""
    assert job.started_at is not None  # noqa: S101 - the caller asked
    held = times + interval_s > job.started_at
    if job.finished_at is not None:
        held &= times < job.finished_at
    return held


def _line(job: str, rank: int, endpoint: str, server: str, values: Values) -> SeriesLineView:
    columns: Any = {name: _listed(one) for name, one in zip(COLUMNS, values.T, strict=True)}
    return SeriesLineView(job=job, rank=rank, endpoint=endpoint, server=server, **columns)
