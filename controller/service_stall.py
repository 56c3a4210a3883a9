"""Watches running jobs for stalls, and says so: an event, and a condition while it lasts."""

from __future__ import annotations

from collections.abc import Callable

from controller.records import JobRecord
from controller.stall import History, judge
from controller.state import State
from controller.telemetry import Rates


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
