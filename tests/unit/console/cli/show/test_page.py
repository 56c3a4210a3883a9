"""Sections of a report: drawings are sound SVG, foreign text is text, and rows may be anything."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.cli.show.page.bars import Bar, Cell, bars, heat_map
from console.cli.show.page.communication import advised, communication, predicted
from console.cli.show.page.curves import Axis, Curve, Point, curves
from console.cli.show.page.measured import measured
from console.cli.show.page.values import change, interval, mid, num, per_second, seconds
from tests.parts.api import studied
from tests.parts.api.studied import MARKUP

X = Axis("x", str)
LOG = Axis("x", str, log=True)


def drawings(page: str) -> list[ET.Element]:
    """Every drawing of a page, parsed."""
    found = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    return [ET.fromstring(one) for one in found]  # noqa: S314 - our own


def places(drawing: ET.Element, tag: str, *names: str) -> list[float]:
    return [float(one.get(name, "nan")) for one in drawing.iter(tag) for name in names]


@pytest.mark.parametrize(
    ("view", "told", "count"),
    [
        (studied.links(("gpu0", "gpu1", "gpu2", "gpu3")), "gpu1 (sends)", 2),
        (studied.collectives(), "remote, all_reduce, 2 ranks", 1),
        (studied.scaling(), "2 ranks, predicted", 2),
        (studied.storage(), "99th percentile against size", 4),
        (studied.loading(), "49 samples/s", 1),
        (studied.comparison(), "Recommended: local", 1),
        (studied.measurement("new", [], summary={"answer": MARKUP}), "answer", 0),
    ],
)
def test_each_type_has_its_drawings(view: Any, told: str, count: int) -> None:
    page = measured([view.model_dump(mode="json")])
    assert told in page
    assert len(drawings(page)) == count
    assert MARKUP not in page


def test_an_invalid_measurement_says_so_first() -> None:
    view = studied.measurement("storage", [], invalid=(f"load 3.1 {MARKUP}",))
    page = measured([view.model_dump(mode="json")])
    assert "Not valid" in page
    assert "load 3.1 &lt;img" in page


def test_what_a_job_communicates() -> None:
    page = communication(studied.comms().model_dump(mode="json"))
    assert "on a rank&#x27;s time line" in page
    assert "rank 1 (gpu1): damaged &lt;img" in page
    assert MARKUP not in page
    step, operations, calls, latency = drawings(page)
    assert len(list(step.iter("rect"))) == 3
    assert "all_reduce" in "".join(operations.itertext())
    assert [t.text for t in calls.iter("text") if "iB" in str(t.text)] == ["4 KiB", "1 MiB"]
    assert "10 ms (8 ms to 15 ms)" in "".join(latency.itertext())


def test_predictions_and_advice() -> None:
    found = [p.model_dump(mode="json") for p in studied.predictions("red")]
    page = predicted(found) + advised(studied.advice("red", "red").model_dump(mode="json"))
    assert "0.58 s to 0.61 s" in page
    assert "saves 30 % to 34 % of the step" in page
    assert "lightloom plan --job red" in page
    assert MARKUP not in page
    assert predicted([]) == ""
    assert advised({"findings": [], "unknown": [], "limit": None}) == ""


NAMES = """
    from to class size group bandwidth latency_s reason median ci low high placement ranks x
    operation out_of_place in_place bus_bw nwrong intensity step_s efficiency workers p99 op
    io_bytes bytes_per_s limit ceiling_samples_s predicted_step_s bytes calls avg_s
"""
FIELDS = st.sampled_from(NAMES.split())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(
    rows=st.lists(st.dictionaries(FIELDS, JSON, max_size=8), max_size=6),
    type_=st.sampled_from(("links", "collectives", "scaling", "storage", "input", "compare")),
)
@settings(max_examples=150, deadline=None)
def test_rows_of_any_form_make_a_page(rows: list[dict[str, Any]], type_: str) -> None:
    lists = {"groups": rows, "anomalies": rows, "fits": rows, "summary": {}}
    result = {"endpoints": ["gpu0"], "source": "measured", "rows": rows, **lists}
    page = measured([{"id": "m1", "type": type_, "valid": True, "result": result}])
    page += communication({"rows": rows, "ranks": rows, "overlap": None, "notes": []})
    assert all(math.isfinite(v) for d in drawings(page) for v in places(d, "rect", "x", "width"))


@given(
    st.lists(st.tuples(st.floats(1e-9, 1e12), st.floats(1e-9, 1e12)), min_size=1, max_size=20),
    st.sampled_from((X, LOG)),
    st.sampled_from((X, LOG)),
)
def test_points_lie_inside_the_drawing(points: list[tuple[float, float]], x: Axis, y: Axis) -> None:
    drawn = drawings(curves("t", [Curve("a", [Point(*p) for p in points])], x, y))[0]
    _, _, wide, high = map(float, drawn.get("viewBox", "").split())
    assert len(list(drawn.iter("circle"))) == len(points)
    assert all(0 <= v <= wide for v in places(drawn, "circle", "cx"))
    assert all(0 <= v <= high for v in places(drawn, "circle", "cy"))


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show() -> None:
    line = Curve("a", [Point(0.0, 1.0), Point(1.0, -1.0), Point(2.0, 3.0, 2.0, 4.0)])
    assert len(list(drawings(curves("t", [line], LOG, LOG))[0].iter("circle"))) == 1
    assert curves("t", [Curve("a", [Point(0.0, 1.0)])], LOG, X) == ""
    many = [Curve(str(n), [Point(1.0, 1.0)]) for n in range(20)]
    assert "And 8 more." in curves("t", many, X, X)


def test_bars_share_a_scale_that_includes_zero() -> None:
    found = [
        Bar(name="a", value=-1.0, text=""),
        Bar(name="b", value=3.0, text="", mark=(2.0, 4.0)),
        Bar(name="c", value=None, text="not measured"),
    ]
    drawn = drawings(bars("t", found))[0]
    left, _, frame = ((float(r.get("x", 0)), float(r.get("width", 0))) for r in drawn.iter("rect"))
    zero = left[0] + left[1]
    assert frame[0] - zero == pytest.approx(2 * left[1], rel=1e-2)
    assert bars("t", []) == ""
    assert "And 3 more." in bars("t", [Bar(name="x", value=1.0, text="")] * 43)


def test_a_heat_map_marks_groups_and_what_is_missing() -> None:
    cells = {
        (0, 1): Cell(1.0, 1, "fast"),
        (1, 0): Cell(2.0, 2, MARKUP),
        (1, 1): Cell(None, None, "x"),
    }
    page = heat_map("t", ["gpu0", "gpu1"], cells, per_second)
    assert MARKUP not in page
    drawn = drawings(page)[0]
    assert len(list(drawn.iter("rect"))) == 2
    assert len(list(drawn.iter("path"))) == 5  # two lines a group, one cross
    assert heat_map("t", [f"gpu{i}" for i in range(65)], cells, per_second) == ""


def test_values() -> None:
    assert [seconds(v) for v in (None, 0.0, 2.5e-7, 3.1e-6, 0.0452, 0.402, 12.0)] == [
        "-",
        "0 s",
        "250 ns",
        "3.1 µs",
        "45.2 ms",
        "0.402 s",
        "12 s",
    ]
    assert per_second(14.2e6) == "14.2 MB/s"
    assert change(-0.048) == "-4.8 %"
    assert interval({"low": 0.5, "high": 0.5}) == "0.5 s"
    assert (num(True), num("1"), num(10**400), num(math.nan)) == (None, None, None, None)
    assert mid({"median": None, "low": 1, "high": 3}) == 2.0
