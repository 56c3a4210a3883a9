"""Simulates the steps of few jobs over time, phase by phase.

Steady fair shares assume that every ring sends all the time. Here a ring sends only in its
communication phase, so two jobs contend only while their phases overlap. Exact for the fluid
model, but its cost grows with the number of steps: the caller limits it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler.steptime.profile import StepProfile
from scheduler.steptime.rings import Link, Loads, max_min

_NEVER = float("inf")
_SETTLED = 2
"""Steps of every job before rates are averaged: all start together, which they do not."""
_AVERAGED = 12
"""Steps of every ring that its mean rate covers."""


@dataclass(slots=True, frozen=True)
class Trainer:
    """A job of ``steps`` steps over a ring; afterwards it continues as background load."""

    name: str
    profile: StepProfile
    size: int
    loads: Loads
    """How often the ring crosses each shared link."""
    steps: int = 0


class _Progress:
    """The progress of one job within its step."""

    __slots__ = ("compute", "lead", "steps", "trainer", "wait", "wire")

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.steps = 0
        self.begin()

    def begin(self) -> None:
        profile, size = self.trainer.profile, self.trainer.size
        self.lead = profile.exposed_compute_s()
        self.compute = profile.compute_s - self.lead
        self.wait = profile.latency_s(size)
        self.wire = profile.wire_s(size)

    @property
    def sends(self) -> bool:
        return self.lead <= 0 and self.wait <= 0 and self.wire > 0

    def until(self, rate: float) -> float:
        """Return the seconds until the next change of phase of this job."""
        if self.lead > 0:
            return self.lead
        pending = [self.compute] if self.compute > 0 else []
        if self.wait > 0:
            pending.append(self.wait)
        elif self.wire > 0:
            pending.append(self.wire / rate)
        return min(pending, default=0.0)

    def pass_(self, seconds: float, rate: float) -> None:
        """Advance the job, at most to its next change of phase."""
        if self.lead > 0:
            self.lead = _less(self.lead, seconds)
            return
        self.compute = _less(self.compute, seconds)
        if self.wait > 0:
            self.wait = _less(self.wait, seconds)
        elif self.wire > 0:
            self.wire = _less(self.wire, seconds * rate)

    def finish_step(self) -> None:
        if self.lead <= 0 and self.compute <= 0 and self.wait <= 0 and self.wire <= 0:
            self.steps += 1
            self.begin()


def _less(amount: float, spent: float) -> float:
    left = amount - spent
    return left if left > 1e-12 * max(amount, 1e-300) else 0.0


def completion_s(trainers: Sequence[Trainer], capacity: Mapping[Link, float], focus: str) -> float:
    """Return when ``focus`` has completed its steps; all start together and none leaves.

    ``capacity`` is relative to an access link. Raises StopIteration without such a trainer
    and ValueError for one whose step lasts 0 s.
    """
    jobs = [_Progress(trainer) for trainer in trainers]
    main = next(job for job in jobs if job.trainer.name == focus)
    if any(t.profile.compute_s <= 0 and t.profile.wire_s(t.size) <= 0 for t in trainers):
        raise ValueError("a step without duration never ends")
    now = 0.0
    for seconds, _ in _phases(jobs, capacity):
        now += seconds
        if main.steps >= main.trainer.steps:
            break
    return now


def mean_rates(
    trainers: Sequence[Trainer], capacity: Mapping[Link, float], most: int
) -> dict[str, float] | None:
    """Return each ring's mean rate while it sends, relative to an access link.

    ``most`` bounds the cost, in phases times jobs; None when it did not suffice for a whole step
    of every ring, or for a job whose step lasts 0 s. A ring that never sends has no rate.
    """
    if not trainers or any(
        t.profile.compute_s <= 0 and t.profile.wire_s(t.size) <= 0 for t in trainers
    ):
        return None
    jobs = [_Progress(trainer) for trainer in trainers]
    sent, seconds_sent = [0.0] * len(jobs), [0.0] * len(jobs)
    begun: list[int] | None = None
    for number, (seconds, rates) in enumerate(_phases(jobs, capacity), 1):
        if begun is not None:
            for i, rate in rates.items():
                sent[i] += seconds * rate
                seconds_sent[i] += seconds
        elif all(job.steps >= _SETTLED for job in jobs):
            begun = [job.steps for job in jobs]
        done = (
            min((j.steps - b for j, b in zip(jobs, begun, strict=True)), default=0) if begun else 0
        )
        if done >= _AVERAGED:
            break
        if number * len(jobs) >= most:
            if done < 1:
                return None
            break
    return {
        job.trainer.name: sent[i] / seconds_sent[i]
        for i, job in enumerate(jobs)
        if seconds_sent[i] > 0
    }


def _phases(
    jobs: Sequence[_Progress], capacity: Mapping[Link, float]
) -> Iterator[tuple[float, Mapping[int, float]]]:
    """Advance the jobs phase by phase, without end; yield its length and the rates of senders."""
    known: dict[frozenset[int], dict[int, float]] = {}
    while True:
        sending = frozenset(i for i, job in enumerate(jobs) if job.sends)
        rates = known.get(sending)
        if rates is None:
            found = max_min({i: jobs[i].trainer.loads for i in sending}, capacity)
            rates = known[sending] = {i: found[i] for i in sending}
        step = min((job.until(rates.get(i, 1.0)) for i, job in enumerate(jobs)), default=_NEVER)
        for i, job in enumerate(jobs):
            job.pass_(step, rates.get(i, 1.0))
            job.finish_step()
        yield step, rates
