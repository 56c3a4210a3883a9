"""Models how much slower a job runs at its present placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from scheduler.model import Site
from scheduler.sim.gavel import GavelTable
from scheduler.sim.trace import TraceJob
from scheduler.steptime.profile import PAPER_CORE_RATE, PAPER_PROFILE, StepProfile
from scheduler.steptime.rings import RingRates


class Slowdown(Protocol):
    """Returns the slowdowns that change with a placement."""

    def moved(self, job: TraceJob, places: Mapping[int, int], excess: int) -> Mapping[str, float]:
        """Record the place of a job: endpoints per aggregator, and its excess span.

        Returns the new slowdown (1 or more) of every job whose slowdown changed.
        """
        ...

    def gone(self, job: TraceJob) -> Mapping[str, float]:
        """Record the end of a job; returns as ``moved`` does."""
        ...


class GavelSlowdown:
    """Gavel's throughput ratio of one server to several, for jobs with excess span.

    A job without a model in the trace gets a random one, drawn from ``seed``: the same for
    every policy.
    """

    def __init__(self, table: GavelTable, seed: int = 0) -> None:
        self._table = table
        self._seed = seed
        self._known: dict[str, float] = {}
        self._scattered: dict[str, None] = {}

    def ratio(self, job: TraceJob) -> float:
        """Return the measured ratio of this job: its slowdown when scattered."""
        ratio = self._known.get(job.name)
        if ratio is None:
            model = job.model
            if not model and job.gpus > 1:
                # Seeded with the job's line, so that the order of events does not matter.
                draw = np.random.default_rng((self._seed, job.line)).integers(
                    len(self._table.models)
                )
                model = self._table.models[int(draw)]
            ratio = self._known[job.name] = self._table.slowdown(model, job.gpus)
        return ratio

    def moved(self, job: TraceJob, places: Mapping[int, int], excess: int) -> Mapping[str, float]:
        """Return the slowdown of the job if it becomes scattered or compact."""
        del places
        if excess > 0:
            self._scattered[job.name] = None
            return {job.name: self.ratio(job)}
        if job.name in self._scattered:
            del self._scattered[job.name]
            return {job.name: 1.0}
        return {}

    def gone(self, job: TraceJob) -> Mapping[str, float]:
        """Return no change: other jobs are not affected."""
        self._scattered.pop(job.name, None)
        return {}


class ModelSlowdown:
    """The step-time model: rings share the aggregators' uplinks max-min fairly.

    Every aggregator has ``ports / oversubscription`` access rates to a non-blocking core;
    ring orders are grouped, so a ring leaves each of its aggregators once. A job at its least
    span, alone, has slowdown 1. Jobs without a profile use the one fitted to Yan et al.
    Rings send all the time, which gives an upper bound.
    """

    def __init__(
        self,
        ports: Mapping[int, int],
        least: Mapping[int, int],
        oversubscription: float = 4.0,
    ) -> None:
        """``ports`` per aggregator number; ``least`` span by job size."""
        if oversubscription <= 0:
            raise ValueError("oversubscription must be above 0")
        capacity = {a: max(n / oversubscription, PAPER_CORE_RATE) for a, n in ports.items()}
        self._capacity = capacity
        self._rates = RingRates(dict(capacity))
        self._least = least
        self._jobs: dict[str, TraceJob] = {}
        self._basis: dict[str, tuple[StepProfile, float]] = {}

    @staticmethod
    def of(site: Site, sizes: Iterable[int], oversubscription: float = 4.0) -> ModelSlowdown:
        """Return the model of a site for jobs of these sizes."""
        ports = {a: aggregator.size for a, aggregator in enumerate(site.aggregators)}
        widest = max(ports.values(), default=1) or 1
        least = {size: -(-size // widest) for size in sizes}
        return ModelSlowdown(ports, least, oversubscription)

    def _of(self, job: TraceJob) -> tuple[StepProfile, float]:
        found = self._basis.get(job.name)
        if found is None:
            profile = PAPER_PROFILE
            if job.profile is not None and job.gpus > 1:
                compute, comm = job.profile  # as measured when compact, nothing hidden
                copies = 2.0 * (job.gpus - 1) / job.gpus
                profile = StepProfile(compute, comm / copies, 0.0)
            alone = 1.0
            if self._least.get(job.gpus, 1) > 1:
                alone = min(1.0, max(self._capacity.values()))
            found = self._basis[job.name] = profile, profile.step_s(job.gpus, alone)
        return found

    def moved(self, job: TraceJob, places: Mapping[int, int], excess: int) -> Mapping[str, float]:
        """Update the shared uplinks; a ring under one aggregator uses none."""
        del excess
        crosses = len(places) > 1
        if not crosses and job.name not in self._jobs:
            return {}
        loads = dict.fromkeys(places, 1) if crosses else None
        self._jobs[job.name] = job
        changed = self._slowdowns(self._rates.change({job.name: loads}))
        if not crosses:
            del self._jobs[job.name]
            changed[job.name] = 1.0
        return changed

    def gone(self, job: TraceJob) -> Mapping[str, float]:
        """Free the uplinks of the job for the others."""
        if self._jobs.pop(job.name, None) is None:
            return {}
        return self._slowdowns(self._rates.change({job.name: None}))

    def _slowdowns(self, rates: Mapping[object, float]) -> dict[str, float]:
        found = {}
        for name, rate in rates.items():
            job = self._jobs[str(name)]
            profile, basis = self._of(job)
            found[job.name] = max(profile.step_s(job.gpus, rate) / basis, 1.0)
        return found
