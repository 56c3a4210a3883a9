"""Defines a workload trace: jobs with their submission times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite


class TraceError(ValueError):
    """A trace that cannot be replayed: source, line (0: the whole source), reason, fix."""

    def __init__(self, source: str, line: int, reason: str, fix: str = "") -> None:
        where = f"{source}:{line}" if line else source
        super().__init__(f"{where}: {reason}")
        self.source = source
        self.line = line
        self.reason = reason
        self.fix = fix


@dataclass(slots=True, frozen=True)
class TraceJob:
    """One job of a trace. Times are seconds; ``submit_s`` counts from the trace's start."""

    name: str
    submit_s: float
    gpus: int
    duration_s: float
    """Run time on endpoints under as few aggregators as possible."""
    model: str = ""
    """The model it trains, by its name in Gavel's table; empty if unknown."""
    profile: tuple[float, float] | None = None
    """Seconds of compute and of communication per step when compact, if known."""
    line: int = 0
    """Its line in the source."""


@dataclass(slots=True, frozen=True)
class Trace:
    """Jobs in order of submission, the first at time 0, and notes on omitted rows."""

    name: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()
    origin_s: float = 0.0
    """The first submission on the clock of the source."""

    @staticmethod
    def of(name: str, jobs: Iterable[TraceJob], notes: Sequence[str] = ()) -> Trace:
        """Check and order jobs and make names unique; time 0 is the first submission.

        Raises TraceError with the line of the first invalid job.
        """
        listed = list(jobs)
        for job in listed:
            _check(name, job)
        listed.sort(key=lambda job: job.submit_s)
        if not listed:
            raise TraceError(name, 0, "no jobs", "; ".join(notes))
        start = listed[0].submit_s
        taken: set[str] = set()
        for i, job in enumerate(listed):
            unique = job.name if job.name not in taken else f"{job.name}#{i}"
            taken.add(unique)
            if start or unique != job.name:
                listed[i] = replace(job, name=unique, submit_s=job.submit_s - start)
        return Trace(name, tuple(listed), tuple(notes), start)

    def first(self, count: int) -> Trace:
        """Return the trace with only its first jobs. Raises ValueError for a count below 1."""
        if count < 1:
            raise ValueError("at least one job must remain")
        return replace(self, jobs=self.jobs[:count])

    def up_to(self, gpus: int) -> Trace:
        """Return the trace without jobs of more endpoints, with a note of their number."""
        kept = [job for job in self.jobs if job.gpus <= gpus]
        lost = len(self.jobs) - len(kept)
        note = (f"{lost} jobs of more than {gpus} endpoints left out",) if lost else ()
        return Trace.of(self.name, kept, (*self.notes, *note))

    def load(self, endpoints: int) -> float:
        """Return the offered load: requested GPU-seconds over available GPU-seconds.

        The period spans the submissions; the load is infinite if it is an instant.
        """
        period = self.jobs[-1].submit_s
        asked = sum(job.gpus * job.duration_s for job in self.jobs)
        return asked / (endpoints * period) if period > 0 else float("inf")

    def at_load(self, load: float, endpoints: int) -> Trace:
        """Return the trace with arrivals compressed (or stretched) to an offered load.

        Raises ValueError for a load of 0 or less or a trace of one instant.
        """
        now = self.load(endpoints)
        if not (load > 0 and isfinite(load)) or not isfinite(now):
            raise ValueError(f"arrivals cannot be scaled from load {now} to {load}")
        factor = now / load
        return replace(
            self, jobs=tuple(replace(job, submit_s=job.submit_s * factor) for job in self.jobs)
        )


def _check(source: str, job: TraceJob) -> None:
    if job.gpus < 1:
        raise TraceError(source, job.line, f"job {job.name} asks for {job.gpus} GPUs", "ask for 1")
    if not (isfinite(job.submit_s) and job.submit_s >= 0):
        raise TraceError(
            source, job.line, f"job {job.name} is submitted at {job.submit_s} s", "count from 0"
        )
    if not (isfinite(job.duration_s) and job.duration_s > 0):
        raise TraceError(
            source, job.line, f"job {job.name} runs for {job.duration_s} s", "more than 0 s"
        )
