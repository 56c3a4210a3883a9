"""``measure collectives`` through the controller on the rack: gloo and TensorFlow's ring."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest

from measure.collectives.kind import COLLECTIVES
from testbed.demo.api import Controller, Document
from testbed.demo.jobs import ENDED

pytestmark = [pytest.mark.root, pytest.mark.soak, pytest.mark.timeout(600)]

LIMIT_S = 240.0
SMALL, LARGE = 64 * 2**10, 2**20


def measured(controller: Controller, **settings: Any) -> Document:
    """Run a measurement to its end; return its result."""
    sizes = {"sizes": [SMALL, LARGE], "repetitions": 3, "point_s": 3}
    request = {"type": "collectives", "settings": {**sizes, **settings}}
    view = controller.post("/measurements", request)
    deadline = time.monotonic() + LIMIT_S
    while view["state"] not in ENDED:
        assert time.monotonic() < deadline, view
        time.sleep(1)
        view = controller.get(f"/measurements/{view['id']}")
    assert view["state"] == "completed", view["reason"]
    result: Document = view["result"]
    return result


def check(result: Document, operations: list[str], rings: int) -> None:
    """Every point has a figure of every rank, all sums are right, the table has its columns."""
    rows = result["rows"]
    assert len(rows) == 2 * len(operations) * rings
    for row in rows:
        half = row["in_place"] or row["out_of_place"]
        assert half is not None, row
        assert (half["n"], half["nwrong"]) == (3, 0)
        assert half["bus_bw"] > 0
    # Load and neighbours may spoil the figures of a shared machine, nothing else may.
    assert not [why for why in result["invalid_because"] if "repetitions" in why or "data" in why]
    lines = COLLECTIVES.table(result).splitlines()
    heads = [line.split() for line in lines if line.startswith("#") and "busbw" in line]
    columns = ["time", "algbw", "busbw", "#wrong"] * 2
    assert heads[0] == ["#", "size", "count", "type", "redop", "root", *columns]
    points = [line.split() for line in lines if line and not line.startswith("#")]
    assert len(points) == len(rows)
    for row, cells in zip(rows, points, strict=True):
        assert cells[:5] == [
            *(str(row[name]) for name in ("size", "count", "type", "redop", "root"))
        ]
        assert len(cells) == 13
    assert sum("Out of bounds values : 0 OK" in line for line in lines) == len(operations) * rings


def test_gloo_in_two_placements(controller: Controller) -> None:
    before = {e["name"]: e["home"] for e in controller.items("/endpoints")}
    operations = ["all_reduce", "all_gather"]
    result = measured(controller, placements=["local", "remote"], ranks=3, operations=operations)
    check(result, operations, rings=2)
    assert result["tool"]["name"] == "torch gloo"
    crossings = {row["placement"]: row["crossings"] for row in result["rows"]}
    assert crossings == {"local": 0, "remote": 2}
    for row in result["rows"]:
        homes = row["homes"]
        assert sum(a != b for a, b in pairwise([*homes, homes[0]])) == row["crossings"]
        assert row["link_share"] > 0
    after = {e["name"]: e["home"] for e in controller.items("/endpoints")}
    assert after == before


def test_the_ring_of_tensorflow(controller: Controller) -> None:
    result = measured(controller, framework="tensorflow", ranks=2)
    check(result, ["all_reduce"], rings=1)
    assert result["tool"]["name"] == "tensorflow ring"
    assert all(row["in_place"] is None for row in result["rows"])
