"""Has a job stopped talking? Pure: rates in, verdict out.

Ranks of a training job exchange gradients every step. When one of them hangs the others
wait for it, and nobody sends. Frameworks notice after minutes (torch: 1,800 s) or never;
the aggregators' port counters show it within seconds, whatever the transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controller.state.records import JobRecord
from controller.state.state import State
from controller.telemetry.throughput import Rates

LEAST_S = 6.0
"""Silence shorter than this is never a stall. Told within 10 s of a rank's hang: what is in the
kernel's buffers goes on for some seconds more, and a look comes once a second."""
NOISE_BPS = 10_000.0
NOISE_SHARE = 0.01
"""Heartbeats and TCP's probes go on in a stalled job: less than this, and less than a
hundredth of the job's best second, is silence."""


@dataclass(slots=True, frozen=True)
class History:
    """What was seen of one job: when each rank talked last, and how long it ever was silent."""

    last: tuple[float, ...]
    talked: bool = False
    peak_bps: float = 0.0
    longest_s: float = 0.0
    """Longest silence that ended by itself: a checkpoint, an evaluation."""


@dataclass(slots=True, frozen=True)
class Stall:
    """Nobody talks. ``rank`` went silent first, None when they all did together."""

    rank: int | None
    silent_s: float


def judge(
    history: History | None, rates_bps: Sequence[float | None], now: float
) -> tuple[History | None, Stall | None]:
    """Take one look: each rank's throughput, both directions together, None when unknown.

    A job that never talked, or of one rank, cannot stall. What cannot be seen starts anew.
    """
    if len(rates_bps) < 2 or any(rate is None for rate in rates_bps):
        return None, None
    rates = [rate or 0.0 for rate in rates_bps]
    if history is None or len(history.last) != len(rates):
        history = History(last=(now,) * len(rates))
    peak = max(history.peak_bps, *rates)
    noise = max(NOISE_BPS, NOISE_SHARE * peak)
    last = tuple(
        now if rate > noise else before for rate, before in zip(rates, history.last, strict=True)
    )
    silent_s = now - max(history.last)
    if any(rate > noise for rate in rates):
        longest = max(history.longest_s, silent_s) if history.talked else history.longest_s
        return History(last, talked=True, peak_bps=peak, longest_s=longest), None
    kept = replace(history, last=last, peak_bps=peak)
    if not history.talked or silent_s < max(LEAST_S, 2 * history.longest_s):
        return kept, None
    first = min(last)
    rank = last.index(first) if last.count(first) == 1 else None
    return kept, Stall(rank, silent_s)


class StallWatch:
    """Looks once a second. ``rates`` gives an endpoint's throughput over the last second."""

    def __init__(self, state: State, rates: Callable[[str], Rates]) -> None:
        self._state = state
        self._rates = rates
        self._histories: dict[str, History] = {}

    def look(self) -> None:
        """Judge every job that should be talking; one that is paused or moved starts anew."""
        state, kept = self._state, {}
        for job in state.jobs.values():
            if job.state != "running" or state.transaction_of(job.name) is not None:
                continue
            history, stall = judge(
                self._histories.get(job.name), self._both_ways(job), state.clock()
            )
            if history is not None:
                kept[job.name] = history
            if stall is None:
                self._goes_on(job.name)
            elif job.name not in state.stalled:
                who = "no rank sends" if stall.rank is None else f"rank {stall.rank} fell silent"
                text = f"{who}; nothing sent for {stall.silent_s:.0f} s"
                state.stalled[job.name] = (state.clock(), text)
                state.events.add("warning", f"job/{job.name}", "JobStalled", text)
        self._histories = kept
        for name in state.stalled.keys() - kept.keys():
            del state.stalled[name]

    def _goes_on(self, name: str) -> None:
        if self._state.stalled.pop(name, None) is not None:
            self._state.events.add("info", f"job/{name}", "JobProgresses", "its ranks send again")

    def _both_ways(self, job: JobRecord) -> list[float | None]:
        found: list[float | None] = []
        for endpoint in job.endpoints:
            rates = self._rates(endpoint)
            known = rates.rx_bps is not None and rates.tx_bps is not None
            found.append((rates.rx_bps or 0.0) + (rates.tx_bps or 0.0) if known else None)
        return found
