"""An ended transaction is a span, and each of its phases is a child span."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode

from controller.schema.plans import TransactionView
from controller.stream.tracing import trace_transaction

STARTED = 1_700_000_000.0


@dataclass
class Recorded(NonRecordingSpan):
    name: str
    below: str | None
    began: int
    attributes: dict[str, Any]
    ended: int | None = None
    status: tuple[StatusCode, str | None] | None = None

    def __post_init__(self) -> None:
        super().__init__(SpanContext(1, 1, is_remote=False))

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        assert isinstance(status, StatusCode)
        self.status = status, description

    def end(self, end_time: int | None = None) -> None:
        self.ended = end_time


@dataclass
class Provider(trace.TracerProvider, trace.Tracer):
    """A provider and tracer with the methods that the trace of a transaction needs."""

    spans: list[Recorded] = field(default_factory=list)

    def get_tracer(self, *args: Any, **named: Any) -> trace.Tracer:
        return self

    def start_as_current_span(self, *args: Any, **named: Any) -> Any:
        raise AssertionError("not used")

    def start_span(self, name: str, context: Any = None, *args: Any, **named: Any) -> Recorded:
        above = trace.get_current_span(context) if context else None
        span = Recorded(
            name,
            above.name if isinstance(above, Recorded) else None,
            named["start_time"],
            dict(named.get("attributes") or {}),
        )
        self.spans.append(span)
        return span


def ended(state: str) -> TransactionView:
    return TransactionView.model_validate(
        {
            "id": "t7",
            "state": state,
            "phase": "done",
            "cause": "attach",
            "epoch_before": 3,
            "epoch_after": 4,
            "moves": [{"endpoint": "gpu0", "from": "as0", "to": "as1"}],
            "jobs": ["red"],
            "dark_time_s": {"gpu0": 0.25},
            "started_at": STARTED,
            "finished_at": STARTED + 2,
            "phases": [
                {"name": "admit", "started_at": STARTED, "finished_at": STARTED + 0.5},
                {"name": "switch", "started_at": STARTED + 0.5},
            ],
            "error": "" if state == "committed" else "no light",
        }
    )


def test_the_transaction_and_each_phase_have_a_span() -> None:
    provider = Provider()
    trace_transaction(ended("committed"), provider)
    whole, admit, switch = provider.spans
    assert (whole.name, whole.below, whole.status) == ("transaction attach", None, None)
    assert (whole.began, whole.ended) == (int(STARTED * 1e9), int((STARTED + 2) * 1e9))
    assert whole.attributes["lightloom.jobs"] == ["red"]
    assert whole.attributes["lightloom.dark_time_s"] == 0.25
    assert [(s.name, s.below) for s in (admit, switch)] == [
        ("admit", whole.name),
        ("switch", whole.name),
    ]
    assert admit.ended == switch.began
    assert switch.ended == whole.ended


@pytest.mark.parametrize("state", ["rolled_back", "quarantined"])
def test_a_transaction_that_did_not_commit_is_an_error(state: str) -> None:
    provider = Provider()
    trace_transaction(ended(state), provider)
    assert provider.spans[0].status == (StatusCode.ERROR, "no light")
    assert provider.spans[0].attributes["lightloom.outcome"] == state


def test_without_a_provider_nothing_happens() -> None:
    trace_transaction(ended("committed"))
