"""Span, its lower bound, and fragmentation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler import metrics
from scheduler.model import Aggregator, Endpoint, Fabric, Job, Site
from tests.unit.scheduler.racks import CASE_A, PAPER_HOMES, PAPER_SITE, RED, paper


def least_span(site: Site, endpoints: Sequence[str]) -> int:
    """Return the bound for the endpoints with these names."""
    members = [e for e in site.endpoints if e.name in endpoints]
    return metrics.SpanBound(Fabric(site, {})).least(members)


def test_span_counts_aggregators_and_every_dark_endpoint() -> None:
    homes = {"a": "x", "b": "x", "c": "y", "d": None}
    assert metrics.span("ab", homes) == 1
    assert metrics.span("abc", homes) == 2
    assert metrics.span("abd", homes) == 2
    assert metrics.span("ade", homes) == 3
    assert metrics.span("", homes) == 0


def test_least_span_on_one_switch_is_the_ceiling() -> None:
    assert least_span(PAPER_SITE, RED.endpoints) == 1
    assert least_span(PAPER_SITE, [f"gpu{i}" for i in range(5)]) == 2
    assert least_span(PAPER_SITE, []) == 0


def test_least_span_sees_the_ports_per_switch() -> None:
    site = Site(
        "two",
        tuple(Endpoint(f"e{i}", ocs="ocs0") for i in range(4)),
        tuple(Aggregator(f"as{i}", {"ocs0": 2, "ocs1": 2}) for i in range(3)),
    )
    assert least_span(site, ["e0", "e1"]) == 1
    assert least_span(site, ["e0", "e1", "e2"]) == 2


def test_least_span_sees_hard_wired_members_and_missing_ports() -> None:
    site = Site(
        "wired",
        (Endpoint("a", fixed="as0"), Endpoint("b", fixed="as1"), Endpoint("c", ocs="ocs9")),
        (Aggregator("as0", {}, fixed_ports=4), Aggregator("as1", {}, fixed_ports=4)),
    )
    assert least_span(site, ["a", "b"]) == 2
    assert least_span(site, ["c"]) == 1


def test_excess_span_of_the_paper_case() -> None:
    assert metrics.total_excess_span(paper(*CASE_A), PAPER_HOMES) == 2
    assert metrics.total_excess_span(paper(RED), PAPER_HOMES) == 1
    compact = [Job("one", ("gpu0",)), Job("two", ("gpu0", "gpu1"))]
    assert metrics.total_excess_span(paper(*compact), PAPER_HOMES) == 0


def test_free_endpoints_per_aggregator_leave_out_busy_dark_and_lost_ones() -> None:
    homes = dict(PAPER_HOMES) | {"gpu5": None}
    fabric = paper(Job("two", ("gpu0", "gpu2")), homes=homes, unavailable=["gpu3"])
    assert metrics.free_by_aggregator(fabric) == {"as0": 2, "as1": 0}
    assert metrics.free_by_aggregator(Fabric(Site("none", (), ()), {})) == {}


def test_fragmentation_figures() -> None:
    free = {"a": 3, "b": 1, "c": 0}
    assert metrics.stranded(free, 2) == pytest.approx(0.5)
    assert metrics.stranded({"a": 0}, 2) == 0.0
    assert metrics.external_fragmentation(free) == pytest.approx(0.25)
    assert metrics.external_fragmentation({}) == 0.0
