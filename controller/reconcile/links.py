"""Reports the events of aggregators and their ports, and damps those that flap."""

from __future__ import annotations

from controller.devices.aggregators import (
    AggregatorConnected,
    AggregatorEvent,
    AggregatorLost,
    AggregatorRefused,
    AttachPoint,
    PortStatus,
)
from controller.reconcile.damping import Damper
from controller.state.state import State
from controller.transaction.circuits import endpoint_of, subject

REFUSAL_EVERY_S = 60.0
"""Shortest time between two events about refused claimants of one aggregator."""


class LinkWatch:
    """Handles the aggregators' events. In a storm, each one costs a counter; all cost one event."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._damper = Damper()
        self._refused_at: dict[str, float] = {}
        """Per aggregator: when a refused claimant was last reported."""

    def handle(self, event: AggregatorEvent) -> None:
        """Handle one event."""
        match event:
            case AggregatorConnected(as_name=name, repaired=repaired):
                text = f"{len(repaired)} flows corrected" if repaired else "its flows are correct"
                self._report(f"aggregator/{name}", text, "AggregatorConnected", lost=False)
            case AggregatorLost(as_name=name):
                text = "it keeps forwarding; its flows cannot be changed"
                self._report(f"aggregator/{name}", text, "AggregatorLost", lost=True)
            case AggregatorRefused(as_name=name, claimant=claimant, reason=reason):
                self._refused(name, f"refused {claimant}: {reason}")
            case PortStatus(as_name=name, port=port, up=up):
                self._port(AttachPoint(name, port), up=up)

    def _refused(self, name: str, text: str) -> None:
        now = self._state.clock()
        last = self._refused_at.get(name)
        if last is None or not 0 <= now - last < REFUSAL_EVERY_S:
            self._refused_at[name] = now
            self._state.events.add("warning", f"aggregator/{name}", "SwitchRefused", text)

    def _port(self, point: AttachPoint, *, up: bool) -> None:
        """Report a port that carries light, unless a transaction is moving it."""
        state = self._state
        end = state.light.end_at(point)
        if end is None or endpoint_of(end) in state.transactions.locked():
            return
        text = f"the carrier of {point} {'is back' if up else 'is lost'}"
        self._report(subject(end, point), text, "LinkUp" if up else "LinkDown", lost=not up)

    def _report(self, obj: str, text: str, reason: str, *, lost: bool) -> None:
        state = self._state
        if lost and self._damper.lost(obj, state.clock()):
            text = "it is flapping: not used and not reported until it is stable"
            state.events.add("error", obj, "Flapping", text)
            state.light.flapping = state.light.flapping | {obj}
        elif not self._damper.held(obj):
            kind = obj.partition("/")[0]
            severity = "info" if not lost else "error" if kind == "aggregator" else "warning"
            state.events.add(severity, obj, reason, text)  # type: ignore[arg-type]
            state.jobs.wake.set()

    def calm(self) -> None:
        """Release the objects that have become stable; called periodically."""
        state = self._state
        for obj in self._damper.calmed(state.clock()):
            state.events.add("info", obj, "Stable", "it is stable and used again")
            state.light.flapping = state.light.flapping - {obj}
            state.jobs.wake.set()
