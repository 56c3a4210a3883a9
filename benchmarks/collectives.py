"""Holds the busbw of all-reduces against their ring's rate, on a rack that is up.

``python -m benchmarks.collectives --url http://127.0.0.1:8470`` runs ``measure collectives`` for
each number of ranks and each placement (those that do not fit are left out). The expectation is
the ring's max-min rate (``scheduler.steptime.road.Roads``) less framing: 1,448 of 1,514 bytes. Its
rival is the rate of an access link, which knows nothing of shared links. Both errors are relative
to the expectation. Goals: every busbw at 4 MiB or more within 5 % of the ring's rate; no wrong
element. The load of the machine is part of the error: a 2-core machine computes for all ranks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.predict_error import carried_out
from controller.telemetry.steps import roads_of
from scheduler.steptime.identify import GOODPUT
from scheduler.steptime.road import Roads
from scheduler.steptime.sites import SharedLinks
from sitefile import load_site
from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller
from testbed.demo.errors import DemoError

LEAST_BYTES = 4 * 2**20
GOAL = 0.05


def compared(row: dict[str, Any], links: SharedLinks) -> dict[str, Any]:
    """Return a point with both expectations, bytes/s; errors are None without a figure."""
    half = row["in_place"] or row["out_of_place"]
    homes = dict(zip(row["order"], row["homes"], strict=True))
    rate = Roads({"": row["order"]}, homes, links).steady[""]
    access = links.access_bps / 8 * GOODPUT
    busbw = half and half["bus_bw"]
    return {
        "placement": row["placement"],
        "ranks": row["ranks"],
        "size": row["size"],
        "busbw": busbw,
        "ring": rate * access,
        "error": None if busbw is None else busbw / (rate * access) - 1,
        "rival_error": None if busbw is None else busbw / access - 1,
        "wrong": None if half is None else half["nwrong"],
        "disturbed": row["disturbed"],
        "reason": row["reason"],
    }


def settings(given: argparse.Namespace, placement: str, ranks: int) -> dict[str, Any]:
    """Return those of one measurement."""
    found = {"placements": [placement], "ranks": ranks, "sizes": given.sizes}
    return found | {"framework": given.framework, "point_s": given.point_s}


def main() -> None:
    """Print the points as JSON; exit status 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8470")
    parser.add_argument("--site", type=Path, default=PAPER_SITE)
    parser.add_argument("--ranks", default="2,3,4,6")
    parser.add_argument("--placements", default="local,hybrid,remote")
    parser.add_argument("--sizes", default="4m")
    parser.add_argument("--point-s", type=float, default=10.0)
    parser.add_argument("--framework", default="torch")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="starts nothing after it")
    given = parser.parse_args()
    links = roads_of(load_site(given.site))
    if links is None:
        raise SystemExit(f"{given.site} does not give the rates of its links")
    until = time.monotonic() + given.budget_s
    points: list[dict[str, Any]] = []
    left_out: list[str] = []
    with Controller(given.url) as controller:
        for ranks in map(int, given.ranks.split(",")):
            for placement in given.placements.split(","):
                case = f"{placement}, {ranks} ranks"
                if time.monotonic() > until:
                    left_out.append(f"{case}: no time left")
                    continue
                asked = settings(given, placement, ranks)
                try:
                    result = carried_out(controller, {"type": "collectives", "settings": asked})
                except DemoError as error:
                    left_out.append(f"{case}: {error}")
                    continue
                for row in result["rows"]:
                    point = compared(row, links) | {"load_1m": result["environment"]["load_1m"]}
                    points.append(point | {"valid": result["valid"]})
                    print(json.dumps(points[-1]), file=sys.stderr)
    large = [point for point in points if point["size"] >= LEAST_BYTES]
    errors = [abs(point["error"]) for point in large if point["error"] is not None]
    rivals = [abs(point["rival_error"]) for point in large if point["rival_error"] is not None]
    wrong = sum(point["wrong"] or 0 for point in points)
    figures = {
        "median_error": statistics.median(errors) if errors else None,
        "worst_error": max(errors, default=None),
        "rival_median_error": statistics.median(rivals) if rivals else None,
        "rival_worst_error": max(rivals, default=None),
        "wrong": wrong,
    }
    print(json.dumps({"points": points, "left_out": left_out, **figures}, indent=2))
    met = bool(errors) and len(errors) == len(large) and max(errors) <= GOAL and not wrong
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
