"""Detects jobs that have stopped communicating. ``judge`` is pure.

Ranks of a training job exchange gradients every step. When one of them hangs, the others
wait for it and no rank sends. Frameworks notice after minutes (torch: 1,800 s) or never;
the aggregators' port counters show it within seconds, with any transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controller.state.records import JobRecord
from controller.state.state import State
from controller.telemetry.throughput import EndpointRates

LEAST_S = 6.0
"""Silence shorter than this is never a stall. A rank's hang is reported within 10 s: data in the
kernel's buffers is still sent for some seconds, and rates are checked once a second."""
BUSY_S = 3
"""A job that has sent in fewer seconds has found its peers and loads its libraries: it does not
train yet, and its silence is not a stall."""
NOISE_BPS = 10_000.0
NOISE_SHARE = 0.01
"""Heartbeats and TCP probes continue in a stalled job: less than this, or less than a
hundredth of the job's best second, is silence."""


@dataclass(slots=True, frozen=True)
class History:
    """Observations of one job: when each rank last sent, and the longest silence."""

    last: tuple[float, ...]
    busy_s: int = 0
    """Observations in which a rank sent."""
    peak_bps: float = 0.0
    longest_s: float = 0.0
    """Longest silence that ended by itself, such as a checkpoint or an evaluation."""


@dataclass(slots=True, frozen=True)
class Stall:
    """No rank sends. ``rank`` fell silent first, None if several did at once."""

    rank: int | None
    silent_s: float


def judge(
    history: History | None, rates_bps: Sequence[float | None], now: float
) -> tuple[History | None, Stall | None]:
    """Judge the ranks' present throughput, both directions together, None if unknown.

    A job that never communicated, or of one rank, cannot stall. Ranks whose aggregator does not
    answer are left out; the history begins again when no rank's rate is known.
    """
    known = [rate for rate in rates_bps if rate is not None]
    if len(rates_bps) < 2 or not known:
        return None, None
    if history is None or len(history.last) != len(rates_bps):
        if len(known) < len(rates_bps):
            return None, None
        history = History(last=(now,) * len(rates_bps))
    peak = max(history.peak_bps, *known)
    noise = max(NOISE_BPS, NOISE_SHARE * peak)
    last = tuple(
        now if rate is not None and rate > noise else before
        for rate, before in zip(rates_bps, history.last, strict=True)
    )
    silent_s = now - max(history.last)
    if any(rate > noise for rate in known):
        longest = max(history.longest_s, silent_s) if history.busy_s else history.longest_s
        return History(last, history.busy_s + 1, peak_bps=peak, longest_s=longest), None
    kept = replace(history, last=last, peak_bps=peak)
    if history.busy_s < BUSY_S or silent_s < max(LEAST_S, 2 * history.longest_s):
        return kept, None
    if len(known) < len(rates_bps):
        return kept, Stall(None, silent_s)
    first = min(last)
    rank = last.index(first) if last.count(first) == 1 else None
    return kept, Stall(rank, silent_s)


class StallWatch:
    """Reports jobs that stall. ``rates`` returns an endpoint's throughput over the last second."""

    def __init__(self, state: State, rates: Callable[[str], EndpointRates]) -> None:
        self._state = state
        self._rates = rates
        self._histories: dict[str, History] = {}

    def check(self) -> None:
        """Judge every running job; a job that is paused or moved loses its history."""
        state, kept = self._state, {}
        for job in state.jobs.values():
            if job.state != "running" or state.transactions.of_job(job.name) is not None:
                continue
            history, stall = judge(
                self._histories.get(job.name), self._throughput(job), state.clock()
            )
            if history is not None:
                kept[job.name] = history
            if stall is None:
                self._report_progress(job.name)
            elif job.name not in state.jobs.stalled:
                first = "no rank sends" if stall.rank is None else f"rank {stall.rank} fell silent"
                text = f"{first}; nothing sent for {stall.silent_s:.0f} s"
                state.jobs.stalled[job.name] = (state.clock(), text)
                state.events.add("warning", f"job/{job.name}", "JobStalled", text)
        self._histories = kept
        for name in state.jobs.stalled.keys() - kept.keys():
            del state.jobs.stalled[name]

    def _report_progress(self, name: str) -> None:
        if self._state.jobs.stalled.pop(name, None) is not None:
            self._state.events.add("info", f"job/{name}", "JobProgresses", "its ranks send again")

    def _throughput(self, job: JobRecord) -> list[float | None]:
        found: list[float | None] = []
        for endpoint in job.endpoints:
            rates = self._rates(endpoint)
            known = rates.rx_bps is not None and rates.tx_bps is not None
            found.append((rates.rx_bps or 0.0) + (rates.tx_bps or 0.0) if known else None)
        return found
