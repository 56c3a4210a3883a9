"""Reports transactions as OpenTelemetry traces: a span each, with a child span per phase.

Only the API of OpenTelemetry is used, which does nothing until a site installs its SDK and
configures an exporter; FastAPI traces the requests in the same way. The spans are made when a
transaction has ended, from the times in its view.
"""

from __future__ import annotations

from collections.abc import AsyncIterable

from opentelemetry import trace
from opentelemetry.trace import StatusCode, TracerProvider

from controller.schema.plans import TransactionView
from controller.schema.stream import TransactionFrameView
from controller.stream.feed import Frame

NAME = "lightloom.controller"


async def trace_transactions(frames: AsyncIterable[Frame]) -> None:
    """Report every transaction that ends."""
    async for item in frames:
        if isinstance(item.data, TransactionFrameView) and item.data.finished_at is not None:
            trace_transaction(item.data)


def trace_transaction(view: TransactionView, provider: TracerProvider | None = None) -> None:
    """Report an ended transaction to ``provider``, by default the global one."""
    tracer = trace.get_tracer(NAME, tracer_provider=provider)
    ended_at = view.started_at if view.finished_at is None else view.finished_at
    whole = tracer.start_span(
        f"transaction {view.cause}",
        start_time=_ns(view.started_at),
        attributes={
            "lightloom.transaction": view.id,
            "lightloom.cause": view.cause,
            "lightloom.outcome": view.state,
            "lightloom.epoch_before": view.epoch_before,
            "lightloom.jobs": view.jobs,
            "lightloom.endpoints": [move.endpoint for move in view.moves],
            "lightloom.dark_time_s": max(view.dark_time_s.values(), default=0.0),
        },
    )
    below = trace.set_span_in_context(whole)
    for phase in view.phases:
        span = tracer.start_span(phase.name, below, start_time=_ns(phase.started_at))
        span.end(_ns(ended_at if phase.finished_at is None else phase.finished_at))
    if view.state != "committed":
        whole.set_status(StatusCode.ERROR, view.error or view.result)
    whole.end(_ns(ended_at))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
