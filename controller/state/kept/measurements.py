"""The measurements of the site, without their results. Part of the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from controller.state.kinds.forms import JsonForm
from controller.state.kinds.kind import Kind, Records
from measure.kinds import MeasuredEndpoint, MeasuredSite, RunEnd

MeasurementState = Literal["pending", "running", "completed", "failed", "cancelled"]

KEPT_MEASUREMENTS = 200
"""Ended measurements that can still be read."""
KEPT_RESULT_BYTES = 64 * 2**20
"""Of the results of all measurements together."""


def _fabric_document(fabric: MeasuredSite) -> dict[str, Any]:
    return {
        "places": [[p.endpoint, p.server, p.home] for p in fabric.places],
        "access_bps": fabric.access_bps,
        "inter_aggregator_bps": fabric.inter_aggregator_bps,
        "links": [[sorted(pair), count] for pair, count in fabric.links.items()],
        "free_ports": dict(fabric.free_ports),
        "emulated": fabric.emulated,
        "fits": {name: list(fit) for name, fit in fabric.fits.items()},
        "ring_share": fabric.ring_share,
    }


def _fabric(document: Mapping[str, Any]) -> MeasuredSite:
    """``fits`` may be absent: older versions had none."""
    read = {
        "places": tuple(MeasuredEndpoint(*place) for place in document["places"]),
        "links": {frozenset(pair): count for pair, count in document["links"]},
        "fits": {name: (fit[0], fit[1]) for name, fit in document.get("fits", {}).items()},
    }
    return MeasuredSite(**{**document, **read})


@dataclass(slots=True, frozen=True)
class MeasurementRun:
    """One job of a measurement; ``endpoints`` in rank order."""

    label: str
    endpoints: tuple[str, ...]
    homes: Mapping[str, str] = field(default_factory=dict)
    end: RunEnd | None = None
    """None until it has ended."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MeasurementRecord:
    """One measurement: what was asked, what runs, how it ended."""

    id: str
    type: str
    state: MeasurementState = "pending"
    reason: str = ""
    user: str = ""
    project: str = "default"
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    endpoints: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    fabric: Annotated[MeasuredSite, JsonForm(_fabric_document, _fabric)] | None = None
    """As it was when the measurement was accepted; None of an imported one."""
    runs: tuple[MeasurementRun, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)
    """The homes that the caller asked for."""
    homes_before: Mapping[str, str] = field(default_factory=dict)
    """Where the endpoints were that it moved: they are put back at the end."""
    cancelling: bool = False
    """A cancellation was requested."""
    valid: bool | None = None
    invalid_because: tuple[str, ...] = ()
    result_bytes: int = 0

    @property
    def ended(self) -> bool:
        """True when it never runs again."""
        return self.state in ("completed", "failed", "cancelled")


MEASUREMENTS = Kind(
    "measurements",
    MeasurementRecord,
    key="id",
    order="submitted_at",
    columns=("type", "state", "submitted_at"),
    prefix="m",
)


class Measurements(Records[MeasurementRecord]):
    """Measurements by id."""

    def __init__(self) -> None:
        super().__init__(MEASUREMENTS)
        self.results: dict[str, str] = {}
        """Results, as JSON, that the store may not have yet."""

    def remove(self, key: str) -> MeasurementRecord | None:
        """Forget a measurement and its result."""
        self.results.pop(key, None)
        return super().remove(key)

    def surplus(self) -> tuple[str, ...]:
        """Return the oldest ended measurements beyond the limits; changes nothing."""
        ended = [record for record in self._records.values() if record.ended]
        left, gone = KEPT_RESULT_BYTES, []
        for number, record in enumerate(reversed(ended)):
            left -= record.result_bytes
            if number >= KEPT_MEASUREMENTS or left < 0:
                gone.append(record.id)
        return tuple(reversed(gone))

    def valid(
        self, kind: str, suits: Callable[[MeasurementRecord], bool] = lambda record: True
    ) -> Iterator[MeasurementRecord]:
        """Yield the valid measurements that suit, the newest first; imports are left out."""
        for record in reversed(self._records.values()):
            ours = record.type == kind and record.fabric is not None
            if ours and record.state == "completed" and record.valid and suits(record):
                yield record
