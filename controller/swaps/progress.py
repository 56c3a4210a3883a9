"""When jobs wrote their steps, as seen by this controller: once a second, the latest only."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median

from checkpoints.ledger import Key
from controller.state.records import JobRecord
from controller.state.state import State
from controller.swaps.contract import JobCheckpoints

KEPT_STEPS = 32


class StepProgress:
    """The newest written and protected steps of running jobs, and when they were first seen."""

    def __init__(self, state: State, checkpoints: JobCheckpoints) -> None:
        self._state = state
        self._checkpoints = checkpoints
        self._written: dict[str, deque[tuple[Key, float]]] = {}
        self._protected: dict[str, deque[tuple[Key, float]]] = {}

    def update(self) -> None:
        """Read the steps of all running jobs."""
        jobs = [
            job.name
            for job in self._state.jobs.values()
            if job.holding and job.request.checkpoint is not None
        ]
        now = self._state.clock()
        for seen, protected in ((self._written, False), (self._protected, True)):
            for name in seen.keys() - set(jobs):
                del seen[name]
            for name in jobs:
                newest = self._checkpoints.newest(name, protected=protected)
                steps = seen.setdefault(name, deque(maxlen=KEPT_STEPS))
                if newest is not None and (not steps or steps[-1][0] < newest):
                    steps.append((newest, now))

    def written_at(self, job: JobRecord, step: Key | None) -> float | None:
        """Return when a step was written (None: when the job began); None if that is not known."""
        if step is None:
            return job.started_at
        return next((at for key, at in self._written.get(job.name, ()) if key == step), None)

    def protected_after(self, name: str, since: float) -> bool:
        """Whether a step became protected after ``since``, in seconds since 1970."""
        steps = self._protected.get(name)
        return bool(steps) and steps[-1][1] > since if steps else False

    def interval_s(self, name: str) -> float | None:
        """Return the median time between two protected steps; None before there are three."""
        times = [at for _, at in self._protected.get(name, ())]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        return median(gaps) if len(gaps) > 1 else None
