"""What a job holds and for how long: the values of the accounting. Pure; time is an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ChargedJob:
    """The job that holds endpoints, and whom that is charged to."""

    job: str
    submitted_at: float
    """In seconds since 1970; distinguishes jobs of one name."""
    project: str
    user: str
    """Empty for a job whose submitter is not known."""


@dataclass(slots=True, frozen=True)
class Level:
    """What a job holds at one moment."""

    endpoints: int
    """Its spares included."""
    frozen: bool = False
    """Its containers are frozen, or a regroup has stopped them."""
    weight: float = 1.0
    """Its span divided by the least span that its endpoints can have."""


@dataclass(slots=True, frozen=True)
class UsageSums:
    """Usage in endpoint-seconds, and how many jobs it is the beginning of."""

    held_s: float = 0.0
    frozen_s: float = 0.0
    dark_s: float = 0.0
    weighted_s: float = 0.0
    """Held, times the job's span divided by its least possible span."""
    jobs: int = 0
    """Jobs that took their first endpoints."""

    def __add__(self, other: UsageSums) -> UsageSums:
        return UsageSums(
            self.held_s + other.held_s,
            self.frozen_s + other.frozen_s,
            self.dark_s + other.dark_s,
            self.weighted_s + other.weighted_s,
            self.jobs + other.jobs,
        )


@dataclass(slots=True, frozen=True, kw_only=True)
class UsageInterval:
    """One level of one job from ``since`` to ``until``, in seconds since 1970.

    Everything in it is spread evenly over it, so the sums of windows that meet add up.
    """

    id: int
    """Increases by one with every interval of the site."""
    account: ChargedJob
    level: Level
    since: float
    until: float | None = None
    """None while it goes on."""
    first: bool = False
    """The job takes its first endpoints."""
    dark_s: float = 0.0
    """Endpoint-seconds without light, in all."""

    def sums(self, since: float, until: float) -> UsageSums:
        """Return its part in the window from ``since`` up to, not including, ``until``.

        An interval that goes on counts up to the window's end.
        """
        end = until if self.until is None else self.until
        length = max(0.0, min(end, until) - max(self.since, since))
        held = self.level.endpoints * length
        return UsageSums(
            held_s=held,
            frozen_s=held if self.level.frozen else 0.0,
            dark_s=self.dark_s * length / (end - self.since) if length else 0.0,
            weighted_s=held * self.level.weight,
            jobs=int(self.first and since <= self.since < until),
        )
