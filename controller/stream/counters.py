"""Prometheus counters of transactions, dark times, events and requests."""

from __future__ import annotations

from collections.abc import AsyncIterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from controller.schema.fabric import EventView
from controller.schema.plans import TransactionView
from controller.schema.stream import TransactionFrameView
from controller.stream.feed import Frame

DARK_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0)
DURATION_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)
REQUEST_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Counters:
    """Counters since the controller's start; their labels do not grow with jobs."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._transactions = Counter(
            "lightloom_transactions",
            "Transactions that ended",
            ("cause", "outcome"),
            registry=self.registry,
        )
        self._durations = Histogram(
            "lightloom_transaction_duration_seconds",
            "From admit to the end",
            ("cause",),
            buckets=DURATION_S,
            registry=self.registry,
        )
        self._dark = Histogram(
            "lightloom_dark_time_seconds",
            "From the first pair broken to the last path qualified, per endpoint moved",
            buckets=DARK_S,
            registry=self.registry,
        )
        self._events = Counter(
            "lightloom_events", "Events by severity", ("severity",), registry=self.registry
        )
        self._requests = Counter(
            "lightloom_http_requests",
            "Requests answered",
            ("operation", "status"),
            registry=self.registry,
        )
        self._latency = Histogram(
            "lightloom_http_request_duration_seconds",
            "Time to an answer's first byte",
            buckets=REQUEST_S,
            registry=self.registry,
        )
        for severity in ("info", "warning", "error"):
            self._events.labels(severity)

    async def follow(self, frames: AsyncIterable[Frame]) -> None:
        """Count what the live feed publishes; never returns."""
        async for item in frames:
            if isinstance(item.data, EventView):
                self.event(item.data)
            elif isinstance(item.data, TransactionFrameView) and item.data.finished_at is not None:
                self.transaction(item.data)

    def transaction(self, view: TransactionView) -> None:
        """Count a transaction that ended."""
        self._transactions.labels(view.cause, view.state).inc()
        if view.finished_at is not None:
            self._durations.labels(view.cause).observe(view.finished_at - view.started_at)
        for dark_s in view.dark_time_s.values():
            self._dark.observe(dark_s)

    def event(self, view: EventView) -> None:
        """Count an event."""
        self._events.labels(view.severity).inc()

    def request(self, operation: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(operation, str(status)).inc()
        self._latency.observe(seconds)
